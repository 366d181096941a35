// What sessions use of the node's devices, and whether the devices get on with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/mutex.h"
#include "server/session/progress.h"

namespace kvtier {

// Of one device stream. Thread-safe; takes no lock but where it says so.
class StreamUse {
 public:
  StreamUse(std::string device_uuid, std::string session_id)
      : device_uuid_(std::move(device_uuid)), session_id_(std::move(session_id)) {}

  const std::string& device_uuid() const { return device_uuid_; }
  const std::string& session_id() const { return session_id_; }

  void AddBytes(int64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Work is about to be enqueued whose end will be told; its end; it was not enqueued after all.
  void Given(absl::Time now);
  void Answered(absl::Time now);
  void Refused() { waiting_.fetch_sub(1); }
  // Ends that have not been told.
  int64_t waiting() const { return waiting_.load(); }
  // What the stream may wait for instead of its device. Takes a leaf lock.
  void SetProgress(std::shared_ptr<Progress> progress) KVTIER_EXCLUDES(mutex_);

  // How long the device has been given work of which it has ended none. Zero while the stream
  // waits for its worker. Takes a leaf lock.
  absl::Duration StandsStill(absl::Time now) KVTIER_EXCLUDES(mutex_);

  // Nothing is used any more.
  void End() { ended_.store(true); }
  bool ended() const { return ended_.load(); }

 private:
  const std::string device_uuid_, session_id_;
  std::atomic<int64_t> bytes_{0}, waiting_{0};
  std::atomic<int64_t> since_nanoseconds_{0};  // of the first that waits, or the last end
  std::atomic<bool> ended_{false};
  Mutex mutex_;  // rank: a leaf
  std::shared_ptr<Progress> progress_ KVTIER_GUARDED_BY(mutex_);
};

// Thread-safe.
class DeviceUse {
 public:
  std::shared_ptr<StreamUse> Add(std::string device_uuid, std::string session_id)
      KVTIER_EXCLUDES(mutex_);
  int64_t BytesOf(absl::string_view device_uuid) const KVTIER_EXCLUDES(mutex_);
  // What has stood still the longest, if longer than `patience`: for people. Empty: nothing.
  std::string StandsStill(absl::Time now, absl::Duration patience) const KVTIER_EXCLUDES(mutex_);

 private:
  std::vector<std::shared_ptr<StreamUse>> Streams() const KVTIER_EXCLUDES(mutex_);

  mutable Mutex mutex_;  // rank: a leaf
  std::vector<std::shared_ptr<StreamUse>> streams_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
