// What became of connections; for metrics, health and the log.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace kvtier {

// Why the daemon ended a connection, or did not take it.
enum class Refusal {
  kNotAllowed,     // not in allowed_uids
  kSilent,         // has not finished its first words in time
  kCrowded,        // gave way to another, before it had finished them
  kNotHttp2,       // its first words are others
  kFull,           // as many are served as may be
  kProcessFull,    // as many of one process, or of a user's in containers, are served as may be
  kAddressFull,    // as many of one TCP address are served as may be
  kNoDescriptors,  // the process, or the machine, has none left
  kUnread,         // did not read its answers
};
inline constexpr size_t kRefusalCount = 9;

// As in metrics and in the log.
absl::string_view RefusalName(Refusal why);

// Thread-safe.
class ConnectionCounts {
 public:
  void Refused(Refusal why) { refused_[static_cast<size_t>(why)].fetch_add(1); }
  int64_t refused(Refusal why) const { return refused_[static_cast<size_t>(why)].load(); }

  void SetWaiting(size_t count) { waiting_.store(static_cast<int64_t>(count)); }
  int64_t waiting() const { return waiting_.load(); }

  // The errno with which accepting fails at present; 0: it works.
  void SetAcceptError(int error) { accept_error_.store(error); }
  int accept_error() const { return accept_error_.load(); }

 private:
  std::array<std::atomic<int64_t>, kRefusalCount> refused_{};
  std::atomic<int64_t> waiting_{0};
  std::atomic<int> accept_error_{0};
};

}  // namespace kvtier
