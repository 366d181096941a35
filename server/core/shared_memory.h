// Memory in a sealed memfd that other processes can map.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier {

// A file descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset();
  // Another descriptor of the same file, or an invalid one with errno set.
  UniqueFd Duplicate() const;

 private:
  int fd_ = -1;
};

// Owns a memfd and a read-write mapping of all of it. The file cannot grow or shrink, so no
// holder of the descriptor can make another one's access fault. Zero-filled, touched on use.
class SharedMemory {
 public:
  // `bytes` > 0. With `read_only_for_others`, descriptors handed out cannot be mapped with
  // write access. Errors: RESOURCE_EXHAUSTED with errno text.
  static absl::StatusOr<SharedMemory> Create(absl::string_view name, int64_t bytes,
                                             bool read_only_for_others = false);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  const UniqueFd& fd() const { return fd_; }

 private:
  SharedMemory(UniqueFd fd, uint8_t* data, int64_t bytes);
  void Unmap();

  UniqueFd fd_;
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace kvtier
