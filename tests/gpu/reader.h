// A worker that knows every byte it wrote: eight blocks of rows, read again by steps of either
// plane, and a ninth block to which steps append. For tests in which somebody dies.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cache.h"
#include "client/demo/device.h"
#include "client/request.h"
#include "client/session.h"

namespace kvtier::testing {

struct ReaderOptions {
  std::string socket_path;
  std::string name = "reader";
  std::string cache = "kv";
  demo::Plane plane = demo::Plane::kInProcess;
  int32_t block_count = 64;
  int32_t max_requests = 4;
  // Tells the rows of one reader from those of another. 0..99.
  int32_t salt = 0;
  // Takes up the kept blocks of that salt instead of writing rows.
  bool adopt = false;
  absl::Duration call_timeout = absl::Seconds(20);
};

// Not thread-safe.
class Reader {
 public:
  static constexpr int32_t kBlockSize = 64, kFullBlocks = 8, kRows = kFullBlocks * kBlockSize;
  static constexpr int32_t kLayers = 2, kTopK = 64;

  // A session, a cache, a request, and all rows written. Errors: of those calls; NOT_FOUND if
  // blocks to adopt are not kept.
  static absl::StatusOr<std::unique_ptr<Reader>> Start(const ReaderOptions& options);

  // A step that asks for kTopK rows from `first` on, around the full blocks. How many rows of all
  // layers are wrong.
  absl::StatusOr<int> WrongRows(int32_t first);
  // Every row of the full blocks.
  absl::StatusOr<int> AllWrongRows();
  // Rows of the ninth block that are neither right nor zeros.
  absl::StatusOr<int> WrongAppendedRows();
  // A step with a newest row, and its backup if `backup`. UNAVAILABLE once the daemon is lost.
  absl::Status Append(bool backup = true);
  // Reads a block that is given to a new request. True: all zeros, as it must be.
  absl::StatusOr<bool> FreshBlockIsEmpty();
  // Rows appended and backed up, of kBlockSize at most; after `adopt` those that were kept.
  int32_t appended() const { return appended_ < kBlockSize ? appended_ : kBlockSize; }

  client::Session& session() { return session_; }
  client::Cache& cache() { return cache_; }
  client::Request& request() { return request_; }
  demo::Device& device() { return *device_; }
  // That Prefill and Append write, of a row of that position.
  static uint8_t ByteOf(int32_t salt, int32_t position);

 private:
  Reader(const ReaderOptions& options, client::Session session, client::Cache cache,
         client::Request request);
  absl::Status Prepare();
  absl::Status TakeKept();
  absl::Status Write();
  // Asks for `count` positions of a request from `first` on, modulo `modulus`.
  void SetStep(int32_t region, int32_t first, int32_t count, int32_t modulus);
  enum class Right { kWritten, kWrittenOrZero, kZero };
  int CountWrong(int32_t first, int32_t count, int32_t modulus, Right right) const;

  const ReaderOptions options_;
  client::Session session_;
  client::Cache cache_;
  client::Request request_;
  std::unique_ptr<demo::Device> device_;
  int32_t appended_ = 0;
};

// Has a reader step on a thread of its own until it is stopped, or the first error.
class Reading {
 public:
  // `append`: a newest row and its backup with each tenth step.
  Reading(Reader* reader, bool append);
  ~Reading();

  int64_t steps() const;
  int64_t wrong_rows() const;
  // Waits for further steps, the first error, or the end of the time. True: the steps.
  bool WaitForSteps(int64_t count, absl::Duration timeout);
  // Waits for the first error. True: it has come.
  bool WaitUntilEnded(absl::Duration timeout);
  // The first error, once the thread has ended. OK if it was stopped.
  absl::Status Stop();

 private:
  void Run(Reader* reader, bool append);

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stop_ = false, ended_ = false;
  int64_t steps_ = 0, wrong_rows_ = 0;
  absl::Status status_;

  std::thread thread_;
};

}  // namespace kvtier::testing
