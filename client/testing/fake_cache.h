// The memory of a cache as a daemon would share it, made by a test: sealed memfds with every
// array of a layout, and the AttachCache answer that describes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// 2 groups: one of two contiguous layers (32 and 48 bytes), one of a split-page layer (32 + 4);
// top_k 8, hot_size 16, 8 blocks of 4 slots, 2 regions.
v1::CacheLayout SmallLayout();

class FakeCache {
 public:
  // `layout` as a client would send it.
  explicit FakeCache(v1::CacheLayout layout);
  ~FakeCache();
  FakeCache(const FakeCache&) = delete;
  FakeCache& operator=(const FakeCache&) = delete;

  // Tests change it as they like.
  v1::AttachCacheResponse& answer() { return answer_; }
  const v1::AttachCacheResponse& answer() const { return answer_; }

  // A duplicate of the descriptor behind `token`, as a daemon passes it; NOT_FOUND if there is
  // none.
  absl::StatusOr<int> Redeem(const std::string& token) const;

  // The start of an array.
  template <typename T>
  T* Array(const v1::Buffer& buffer) const {
    return reinterpret_cast<T*>(DataOf(buffer));
  }

  // Puts another descriptor in the place of a segment's: of `bytes`, with these seals.
  void ReplaceDescriptor(int segment_index, int64_t bytes, int seals);

 private:
  struct Memory {
    int fd = -1;
    uint8_t* data = nullptr;
    int64_t bytes = 0;
  };

  uint8_t* DataOf(const v1::Buffer& buffer) const;
  void Place(v1::SegmentKind kind, int64_t bytes, v1::Buffer* buffer);
  void PlaceGroup(int group);
  void MakeMemory();
  void FillState();

  v1::AttachCacheResponse answer_;
  std::map<int, Memory> memories_;  // by segment_index
};

}  // namespace kvtier::client
