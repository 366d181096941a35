// How much memory the rows that came in messages take, until the device is done with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace kvtier {

// Of one session on one cache. Thread-safe.
class InlineBytes {
 public:
  // Lets go of its bytes at its end, also if that comes after the end of who gave it.
  using Place = std::shared_ptr<void>;

  explicit InlineBytes(int64_t limit)
      : limit_(limit), used_(std::make_shared<std::atomic<int64_t>>(0)) {}

  // Who has none always gets a place. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED.
  absl::StatusOr<Place> Take(int64_t bytes);

 private:
  const int64_t limit_;
  const std::shared_ptr<std::atomic<int64_t>> used_;
};

}  // namespace kvtier
