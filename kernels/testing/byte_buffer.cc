#include "kernels/testing/byte_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvtier::testing {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int64_t kAlignment = 64;

bool AllCanary(const uint8_t* bytes, int64_t count) {
  return std::all_of(bytes, bytes + count, [](uint8_t b) { return b == kCanary; });
}

}  // namespace

ByteBuffer::ByteBuffer(int64_t size, bool sparse) : size_(size), sparse_(sparse) {
  if (sparse) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    memory_ = {static_cast<uint8_t*>(memory), Release{size}};
    data_ = memory_.get();
    return;
  }
  const int64_t total = (size + 2 * kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_ = {static_cast<uint8_t*>(std::aligned_alloc(kAlignment, total)), Release{0}};
  if (memory_ == nullptr) std::abort();
  std::memset(memory_.get(), kCanary, total);
  data_ = memory_.get() + kGuardBytes;
}

bool ByteBuffer::GuardsIntact() const {
  return sparse_ ||
         (AllCanary(data_ - kGuardBytes, kGuardBytes) && AllCanary(data_ + size_, kGuardBytes));
}

void ByteBuffer::Release::operator()(uint8_t* memory) const {
  if (mapped_bytes > 0) {
    munmap(memory, mapped_bytes);
  } else {
    std::free(memory);
  }
}

}  // namespace kvtier::testing
