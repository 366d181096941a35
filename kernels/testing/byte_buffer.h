// Memory for rows, with something around it that notices writes past its ends.
#pragma once

#include <cstdint>
#include <memory>

namespace kvtier::testing {

// Bytes that nothing should ever have written have this value.
inline constexpr uint8_t kCanary = 0xCD;

// `size` bytes at a 64-byte boundary. Dense: filled with kCanary, between two guards of kCanary.
// Sparse: address space only, which reads as zeros and takes memory where it is written; for the
// few gigabytes beyond which 32-bit arithmetic breaks.
class ByteBuffer {
 public:
  ByteBuffer(int64_t size, bool sparse);
  ByteBuffer(ByteBuffer&&) = default;
  ByteBuffer& operator=(ByteBuffer&&) = default;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  bool sparse() const { return sparse_; }

  // False once a byte of a guard changed. Always true if sparse.
  bool GuardsIntact() const;

 private:
  struct Release {
    int64_t mapped_bytes;  // 0: from the heap
    void operator()(uint8_t* memory) const;
  };

  int64_t size_;
  bool sparse_;
  std::unique_ptr<uint8_t, Release> memory_;
  uint8_t* data_;
};

}  // namespace kvtier::testing
