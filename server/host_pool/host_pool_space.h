// Which parts of the host pool are lent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace kvtier {

// Best fit, lowest address first among equals; free neighbours become one. A pool has a few
// dozen parts at most, so that a walk over the free ones costs nothing. Not thread-safe.
//
// It also knows what is zero, of what is lent as well: as the kernel gave it, or wiped since
// somebody had it. Lending changes nothing about that; who hands the memory on says MarkDirty.
class PoolSpace {
 public:
  struct Range {
    int64_t offset_bytes = 0;
    int64_t bytes = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

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

  // What may hold bytes of somebody's inside of a part, by address.
  std::vector<Range> DirtyIn(int64_t offset_bytes, int64_t bytes) const;
  void MarkDirty(int64_t offset_bytes, int64_t bytes);
  void MarkClean(int64_t offset_bytes, int64_t bytes);

 private:
  const int64_t size_bytes_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
  int64_t used_bytes_ = 0;
  std::map<int64_t, int64_t> dirty_;  // offset -> end; neighbours are one
};

}  // namespace kvtier
