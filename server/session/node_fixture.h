// A node on the CPU backend for tests, and a worker that maps what the node gives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/counters.h"
#include "server/core/cache_layout.h"
#include "server/core/clock.h"
#include "server/device/fault/fault_plan.h"
#include "server/session/node.h"

namespace kvtier {

// A layout with every default filled in, as the service floor does.
struct SmallLayout {
  int32_t top_k = 8;
  int32_t hot_size = 16;
  int32_t block_count = 32;
  int32_t max_requests = 4;
  int32_t rows_per_request = 1;
  int32_t block_size = 64;
  int32_t layers = 1;
  int32_t row_bytes = 656;
  int32_t groups = 1;

  CacheLayout Make() const;
};

// Byte `j` of row `slot` of layer `layer` (counted over all groups).
inline uint8_t PatternByte(int32_t slot, int32_t layer, int32_t j) {
  return static_cast<uint8_t>(31 * slot + 7 * j + 13 * layer);
}

// The segments of one attachment, mapped as another process would.
class WorkerMemory {
 public:
  WorkerMemory(Node* node, Peer peer, const AttachResult& attached);
  WorkerMemory(WorkerMemory&& other) noexcept;
  WorkerMemory& operator=(WorkerMemory&&) = delete;
  ~WorkerMemory();

  uint8_t* HotRow(int group, int layer, int32_t row) const;
  uint8_t* HostRow(int group, int layer, int32_t slot) const;
  std::vector<int32_t> Owner(int group, int32_t region) const;
  std::vector<int32_t> Lru(int group, int32_t region) const;
  std::vector<int32_t> TableRow(int32_t region) const;
  int32_t SequenceLength(int32_t region) const;
  int32_t* StepArray(const ArrayExtent& extent) const;
  int32_t BlockGeneration(int32_t block) const;
  const TierGeometry& geometry() const { return tier_; }
  const uint8_t* segment(SegmentKind kind) const { return maps_[static_cast<int>(kind)].data; }

  // Does hot row `row` hold the pattern of `slot`, in every layer of the group?
  bool HotRowIs(int group, int32_t row, int32_t slot, uint8_t salt = 0) const;
  bool HotRowIsZero(int group, int32_t row) const;

 private:
  struct Map {
    uint8_t* mapping = nullptr;
    int64_t mapping_bytes = 0;
    uint8_t* data = nullptr;
  };
  int FirstLayerOf(int group) const;

  CacheLayout layout_;
  TierGeometry tier_;
  HostGeometry host_;
  std::vector<Map> maps_;  // by SegmentKind
};

// One open session attached to one cache.
struct Worker {
  std::string session;
  std::string cache;
  AttachResult attached;
  std::unique_ptr<WorkerMemory> memory;
};

class NodeFixture : public ::testing::Test {
 protected:
  struct Options {
    bool manual_clock = false;
    // The device says that it is a GPU, whose memory the host must not read.
    bool claims_cuda = false;
    int64_t pool_bytes = int64_t{8} << 20;
    // The pool outlives the node: RestartNode is a restart of the daemon.
    bool has_folder = false;
    NodeOptions node = {.version = "test"};
  };

  NodeFixture() : NodeFixture(Options{}) {}
  explicit NodeFixture(const Options& options);
  ~NodeFixture() override;

  Node& node() { return *node_; }
  void RestartNode();
  // The same, without anything that the last node left in the pool's folder.
  void RestartEmpty();
  FaultPlan& plan() { return *plan_; }
  ManualClock& clock() { return manual_clock_; }
  HostPool& pool() { return *pool_; }
  absl::Time Soon() const;

  // Fail the test on errors.
  std::string Open(const std::string& name = "worker", Peer peer = {.pid = 1, .uid = 1000});
  Worker Attach(const std::string& session, const std::string& cache, const CacheLayout& layout);
  Worker OpenAndAttach(const CacheLayout& layout, const std::string& cache = "kv");
  int32_t Admit(const Worker& worker, const std::string& request, int32_t reserve = 0);
  AssignResult Assign(const Worker& worker, const std::string& request, int32_t count,
                      const std::vector<int32_t>& shared = {});

  // Waits for the outcome. The status is that of the call, or else of the work.
  OperationOutcome SwapIn(const Worker& worker, const SwapInCall& call);
  OperationOutcome SwapInSlots(const Worker& worker, const std::string& request,
                               std::vector<int32_t> slots, int32_t newest, int group = 0);
  absl::Status Backup(const Worker& worker, const std::vector<InlineBackupRow>& rows);
  // Writes the pattern of `slot` (+ `salt`) to the request's newest row and backs it up.
  absl::Status BackupPattern(const Worker& worker, const std::string& request, int32_t region,
                             int32_t slot, uint8_t salt = 0);

  CacheSnapshot Stats(const std::string& cache = "kv");
  Counts Total(const std::string& cache = "kv");
  // Waits until what was freed is free.
  void WaitForQuarantine(const std::string& cache = "kv");

  // Closes all sessions; then no memory, descriptor or block may be left, nor a file that was not
  // finished.
  void ExpectBaseline();
  // Of caches, in the pool's folder.
  std::vector<std::string> CacheFiles() const;

 private:
  void MakePool();

  const Options options_;
  std::string folder_;  // empty: none
  int fds_before_ = 0;
  SystemClock system_clock_;
  ManualClock manual_clock_;
  std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<DeviceBackend> backend_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<Node> node_;
};

// Matches code and reason.
::testing::AssertionResult IsError(const absl::Status& status, absl::StatusCode code,
                                   const std::string& reason);

}  // namespace kvtier
