// Which parts of the host pool are lent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvtier {

// Best fit, lowest address first among equals; free neighbours become one. A pool has a few
// dozen parts at most, so that a walk over the free ones costs nothing. Not thread-safe.
class PoolSpace {
 public:
  explicit PoolSpace(int64_t size_bytes) : size_bytes_(size_bytes) { free_[0] = size_bytes; }

  // The offset of `bytes` > 0 in one piece, or nothing.
  std::optional<int64_t> Take(int64_t bytes);
  // This very piece, if it is free.
  bool TakeAt(int64_t offset_bytes, int64_t bytes);
  // What Take or TakeAt gave, with the same size.
  void GiveBack(int64_t offset_bytes, int64_t bytes);

  int64_t size_bytes() const { return size_bytes_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t free_bytes() const { return size_bytes_ - used_bytes_; }
  int64_t largest_free_bytes() const;
  // From here on nothing has ever been lent: the memory is as the kernel gave it, zero.
  int64_t pristine_from() const { return pristine_from_; }
  // Somebody else has lent parts of it, before.
  void ForgetPristine() { pristine_from_ = size_bytes_; }

 private:
  const int64_t size_bytes_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
  int64_t used_bytes_ = 0;
  int64_t pristine_from_ = 0;
};

}  // namespace kvtier
