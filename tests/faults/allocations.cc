#include "tests/faults/allocations.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace kvtier::faults {
namespace {

std::atomic<int64_t> allocations_left{0};  // until the one that fails; 0: none does
std::atomic<bool> failed{false};
std::atomic<size_t> largest{0};
std::atomic<int64_t> live{0};

bool Fails(size_t size) {
  size_t before = largest.load(std::memory_order_relaxed);
  while (before < size && !largest.compare_exchange_weak(before, size)) {
  }
  if (allocations_left.load(std::memory_order_relaxed) <= 0) return false;
  if (allocations_left.fetch_sub(1) != 1) return false;
  failed = true;
  return true;
}

// As the standard says: the handler is asked, and what there is none for is thrown.
void* Allocate(size_t size, size_t alignment) {
  const size_t rounded = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  void* const memory = Fails(size) ? nullptr : aligned_alloc(alignment, rounded);
  if (memory != nullptr) {
    live.fetch_add(1, std::memory_order_relaxed);
    return memory;
  }
  if (const std::new_handler handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

void Free(void* memory) {
  if (memory != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  free(memory);
}

}  // namespace

void FailAllocation(int64_t nth) {
  failed = false;
  allocations_left = nth;
}
bool AllocationFailed() { return failed; }
size_t TakeLargestAllocation() { return largest.exchange(0); }
int64_t LiveAllocations() { return live.load(); }

}  // namespace kvtier::faults

using kvtier::faults::Allocate;
using kvtier::faults::Free;

void* operator new(size_t size) { return Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
// As the library's own, in whose place the address sanitizer has one that does not come here.
void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { Free(memory); }
void operator delete(void* memory, size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  Free(memory);
}
