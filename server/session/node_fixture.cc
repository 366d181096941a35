#include "server/session/node_fixture.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

int OpenDescriptors() {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

class ClaimsCuda final : public DeviceBackend {
 public:
  explicit ClaimsCuda(std::unique_ptr<DeviceBackend> inner) : inner_(std::move(inner)) {}
  std::vector<DeviceInfo> Devices() const override {
    std::vector<DeviceInfo> devices = inner_->Devices();
    for (DeviceInfo& device : devices) device.kind = BackendKind::kCuda;
    return devices;
  }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view device_uuid,
                                                         absl::string_view purpose,
                                                         int64_t bytes) override {
    return inner_->Allocate(device_uuid, purpose, bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      absl::string_view device_uuid) override {
    return inner_->CreateStream(device_uuid);
  }
  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t* data,
                                                                 int64_t bytes) override {
    return inner_->RegisterHost(data, bytes);
  }
  void StopRegistering() override { inner_->StopRegistering(); }
  absl::Status Health() const override { return inner_->Health(); }

 private:
  const std::unique_ptr<DeviceBackend> inner_;
};

}  // namespace

CacheLayout SmallLayout::Make() const {
  CacheLayout layout;
  for (int32_t g = 0; g < groups; ++g) {
    GroupLayout& group = layout.groups.emplace_back();
    group.top_k = top_k;
    group.hot_size = hot_size;
    for (int32_t l = 0; l < layers; ++l) {
      RowLayout row;
      row.value_bytes = row_bytes;
      row.row_stride = row_bytes;
      group.layers.push_back(row);
    }
  }
  layout.block_size = block_size;
  layout.block_count = block_count;
  layout.max_requests = max_requests;
  layout.rows_per_request = rows_per_request;
  layout.max_blocks_per_request = block_count;
  layout.step_rows = max_requests * rows_per_request;
  layout.dtype_tag = "test";
  return layout;
}

WorkerMemory::WorkerMemory(Node* node, Peer peer, const AttachResult& attached)
    : layout_(attached.layout),
      tier_(TierGeometryOf(attached.layout)),
      host_(HostGeometryOf(attached.layout)) {
  for (const SegmentInfo& segment : attached.segments) {
    const absl::StatusOr<UniqueFd> fd = node->RedeemToken(segment.fd_token, peer);
    EXPECT_TRUE(fd.ok()) << fd.status();
    Map map;
    map.mapping_bytes = segment.size_bytes;
    const int protection = segment.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const address =
        mmap(nullptr, segment.size_bytes, protection, MAP_SHARED, fd->get(), segment.offset_bytes);
    EXPECT_NE(address, MAP_FAILED);
    map.mapping = map.data = static_cast<uint8_t*>(address);
    maps_.push_back(map);
  }
}

WorkerMemory::WorkerMemory(WorkerMemory&& other) noexcept = default;

WorkerMemory::~WorkerMemory() {
  for (const Map& map : maps_) munmap(map.mapping, map.mapping_bytes);
}

uint8_t* WorkerMemory::HotRow(int group, int layer, int32_t row) const {
  return maps_[static_cast<int>(SegmentKind::kHotBuffer)].data +
         tier_.groups[group].hot[layer].offset_bytes +
         ValueOffset(layout_.groups[group].layers[layer], row);
}

uint8_t* WorkerMemory::HostRow(int group, int layer, int32_t slot) const {
  return maps_[static_cast<int>(SegmentKind::kHostPool)].data +
         host_.layers[group][layer].offset_bytes +
         ValueOffset(layout_.groups[group].layers[layer], slot);
}

std::vector<int32_t> WorkerMemory::Owner(int group, int32_t region) const {
  const int32_t hot_size = layout_.groups[group].hot_size;
  const auto* const owner =
      reinterpret_cast<const int32_t*>(segment(SegmentKind::kState) +
                                       tier_.groups[group].owner.offset_bytes) +
      int64_t{region} * hot_size;
  return {owner, owner + hot_size};
}

std::vector<int32_t> WorkerMemory::Lru(int group, int32_t region) const {
  const int32_t hot_size = layout_.groups[group].hot_size;
  const auto* const lru = reinterpret_cast<const int16_t*>(segment(SegmentKind::kState) +
                                                           tier_.groups[group].lru.offset_bytes) +
                          int64_t{region} * hot_size;
  return {lru, lru + hot_size};
}

std::vector<int32_t> WorkerMemory::TableRow(int32_t region) const {
  const int32_t max_blocks = layout_.max_blocks_per_request;
  const auto* const row = reinterpret_cast<const int32_t*>(segment(SegmentKind::kState) +
                                                           tier_.block_table.offset_bytes) +
                          int64_t{region} * max_blocks;
  return {row, row + max_blocks};
}

int32_t WorkerMemory::SequenceLength(int32_t region) const {
  return reinterpret_cast<const int32_t*>(segment(SegmentKind::kState) +
                                          tier_.sequence_lengths.offset_bytes)[region];
}

int32_t* WorkerMemory::StepArray(const ArrayExtent& extent) const {
  return reinterpret_cast<int32_t*>(maps_[static_cast<int>(SegmentKind::kStep)].data +
                                    extent.offset_bytes);
}

int32_t WorkerMemory::BlockGeneration(int32_t block) const {
  return reinterpret_cast<const int32_t*>(segment(SegmentKind::kBlockGeneration))[block];
}

bool WorkerMemory::HotRowIs(int group, int32_t row, int32_t slot, uint8_t salt) const {
  for (size_t l = 0; l < layout_.groups[group].layers.size(); ++l) {
    const int32_t layer = FirstLayerOf(group) + static_cast<int32_t>(l);
    const uint8_t* const bytes = HotRow(group, static_cast<int>(l), row);
    for (int32_t j = 0; j < layout_.groups[group].layers[l].value_bytes; ++j) {
      if (bytes[j] != static_cast<uint8_t>(PatternByte(slot, layer, j) + salt)) return false;
    }
  }
  return true;
}

bool WorkerMemory::HotRowIsZero(int group, int32_t row) const {
  for (size_t l = 0; l < layout_.groups[group].layers.size(); ++l) {
    const uint8_t* const bytes = HotRow(group, static_cast<int>(l), row);
    const int32_t count = layout_.groups[group].layers[l].value_bytes;
    if (std::any_of(bytes, bytes + count, [](uint8_t b) { return b != 0; })) return false;
  }
  return true;
}

int WorkerMemory::FirstLayerOf(int group) const {
  int layer = 0;
  for (int g = 0; g < group; ++g) layer += static_cast<int>(layout_.groups[g].layers.size());
  return layer;
}

NodeFixture::NodeFixture(const Options& options)
    : options_(options),
      manual_clock_(absl::FromUnixSeconds(1'000'000'000)),
      plan_(std::make_shared<FaultPlan>()) {
  backend_ = MakeFaultInjectingBackend(*MakeCpuBackend({}), plan_);
  if (options.claims_cuda) backend_ = std::make_unique<ClaimsCuda>(std::move(backend_));
  if (options.has_folder) {
    char name[] = "/dev/shm/kvtier-test-XXXXXX";
    folder_ = mkdtemp(name);
  }
  MakePool();
  RestartNode();
}

NodeFixture::~NodeFixture() {
  plan_->Clear();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void NodeFixture::MakePool() {
  pool_.reset();
  pool_ = *HostPool::Create({.size_bytes = options_.pool_bytes,
                             .huge_pages = HugePages::kNever,
                             .touch_threads = 1,
                             .chunk_bytes = options_.pool_bytes,
                             .folder = folder_},
                            backend_.get());
  pool_->Start([](int64_t, int64_t) {});
  EXPECT_TRUE(pool_->WaitReady(absl::InfiniteFuture()).ok());
}

void NodeFixture::RestartNode() {
  node_.reset();
  if (!folder_.empty()) MakePool();
  fds_before_ = OpenDescriptors();
  const Clock* const clock =
      options_.manual_clock ? static_cast<const Clock*>(&manual_clock_) : &system_clock_;
  node_ = std::make_unique<Node>(options_.node, clock, backend_.get(), pool_.get());
  const absl::StatusOr<std::vector<std::string>> dropped = node_->AdoptCaches();
  EXPECT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(dropped.value_or(std::vector<std::string>()), ::testing::IsEmpty());
}

void NodeFixture::RestartEmpty() {
  node_.reset();
  if (!folder_.empty()) {
    pool_.reset();
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
  }
  RestartNode();
}

absl::Time NodeFixture::Soon() const {
  return (options_.manual_clock ? manual_clock_.Now() : system_clock_.Now()) + absl::Seconds(30);
}

std::string NodeFixture::Open(const std::string& name, Peer peer) {
  const absl::StatusOr<std::string> session = node_->OpenSession(name, peer, nullptr);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.value_or("");
}

Worker NodeFixture::Attach(const std::string& session, const std::string& cache,
                           const CacheLayout& layout) {
  absl::StatusOr<AttachResult> attached = node_->AttachCache(session, cache, layout, "", Soon());
  EXPECT_TRUE(attached.ok()) << attached.status();
  if (!attached.ok()) return {};
  Worker worker = {session, cache, *attached, nullptr};
  worker.memory =
      std::make_unique<WorkerMemory>(node_.get(), Peer{.pid = 1, .uid = 1000}, worker.attached);
  return worker;
}

Worker NodeFixture::OpenAndAttach(const CacheLayout& layout, const std::string& cache) {
  return Attach(Open(), cache, layout);
}

int32_t NodeFixture::Admit(const Worker& worker, const std::string& request, int32_t reserve) {
  const absl::StatusOr<int32_t> region =
      node_->AdmitRequest(worker.session, worker.cache, request, reserve, Soon());
  EXPECT_TRUE(region.ok()) << region.status();
  return region.value_or(-1);
}

AssignResult NodeFixture::Assign(const Worker& worker, const std::string& request, int32_t count,
                                 const std::vector<int32_t>& shared) {
  const absl::StatusOr<AssignResult> assigned =
      node_->AssignBlocks(worker.session, worker.cache, request, count, shared, {}, Soon());
  EXPECT_TRUE(assigned.ok()) << assigned.status();
  return assigned.value_or(AssignResult{});
}

OperationOutcome NodeFixture::SwapIn(const Worker& worker, const SwapInCall& call) {
  const auto completions = std::make_shared<Completions>();
  const auto outcome = std::make_shared<OperationOutcome>();
  const auto arrived = completions->Expect();
  const absl::StatusOr<int64_t> ticket =
      node_->SwapIn(worker.session, call, [outcome, arrived](OperationOutcome done) {
        *outcome = std::move(done);
        arrived(absl::OkStatus());
      });
  if (!ticket.ok()) return {.status = ticket.status()};
  completions->Wait(system_clock_, absl::InfiniteFuture()).IgnoreError();
  EXPECT_EQ(outcome->ticket, *ticket);
  return *outcome;
}

OperationOutcome NodeFixture::SwapInSlots(const Worker& worker, const std::string& request,
                                          std::vector<int32_t> slots, int32_t newest, int group) {
  SwapInCall call;
  call.cache = worker.cache;
  call.group = group;
  call.use_slots = true;
  call.inline_rows = {{.request_id = request, .topk = std::move(slots), .newest_slot = newest}};
  return SwapIn(worker, call);
}

absl::Status NodeFixture::Backup(const Worker& worker, const std::vector<InlineBackupRow>& rows) {
  const auto completions = std::make_shared<Completions>();
  const auto arrived = completions->Expect();
  BackupCall call;
  call.cache = worker.cache;
  call.inline_rows = rows;
  const absl::StatusOr<int64_t> ticket = node_->Backup(
      worker.session, call, [arrived](const OperationOutcome& done) { arrived(done.status); });
  if (!ticket.ok()) return ticket.status();
  return completions->Wait(system_clock_, absl::InfiniteFuture());
}

absl::Status NodeFixture::BackupPattern(const Worker& worker, const std::string& request,
                                        int32_t region, int32_t slot, uint8_t salt) {
  const CacheLayout& layout = worker.attached.layout;
  int32_t layer = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupShape shape = ShapeOf(layout, static_cast<int>(g));
    const int32_t row = region * shape.region_stride + shape.hot_size;
    for (size_t l = 0; l < layout.groups[g].layers.size(); ++l, ++layer) {
      uint8_t* const bytes = worker.memory->HotRow(static_cast<int>(g), static_cast<int>(l), row);
      for (int32_t j = 0; j < layout.groups[g].layers[l].value_bytes; ++j) {
        bytes[j] = static_cast<uint8_t>(PatternByte(slot, layer, j) + salt);
      }
    }
  }
  return Backup(worker, {{.request_id = request, .slot = slot}});
}

CacheSnapshot NodeFixture::Stats(const std::string& cache) {
  const absl::StatusOr<NodeSnapshot> snapshot = node_->Snapshot(cache);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  return snapshot.ok() ? snapshot->caches.front() : CacheSnapshot{};
}

Counts NodeFixture::Total(const std::string& cache) {
  Counts total;
  for (const Counts& group : Stats(cache).groups) {
    for (int32_t i = 0; i < kCounterCount; ++i) total.values[i] += group.values[i];
  }
  return total;
}

void NodeFixture::WaitForQuarantine(const std::string& cache) {
  while (Stats(cache).blocks_quarantined > 0) std::this_thread::yield();
}

void NodeFixture::ExpectBaseline() {
  EXPECT_TRUE(node_->CloseAllSessions("the test ends", absl::InfiniteFuture()).ok());
  EXPECT_EQ(node_->DeviceBytesUsed(kCpuDeviceUuid), 0);
  EXPECT_EQ(pool_->stats().used_bytes, 0);
  EXPECT_TRUE(node_->Sessions().empty());
  for (const std::string& file : CacheFiles()) EXPECT_FALSE(absl::EndsWith(file, ".new")) << file;
  // Descriptors of the last callbacks' contexts are closed with the threads.
  EXPECT_EQ(OpenDescriptors(), fds_before_);
}

std::vector<std::string> NodeFixture::CacheFiles() const {
  std::vector<std::string> files;
  if (folder_.empty()) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "cache-")) files.push_back(name);
  }
  return files;
}

::testing::AssertionResult IsError(const absl::Status& status, absl::StatusCode code,
                                   const std::string& reason) {
  if (status.code() == code && ErrorReasonOf(status) == reason) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << status << " [" << ErrorReasonOf(status) << "], expected "
                                       << absl::StatusCodeToString(code) << " [" << reason << "]";
}

}  // namespace kvtier
