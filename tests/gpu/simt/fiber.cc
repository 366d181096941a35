#include "tests/gpu/simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define KVTIER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVTIER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define KVTIER_TSAN 1
#endif
#endif
#if defined(KVTIER_ASAN)
#include <sanitizer/common_interface_defs.h>
#elif defined(KVTIER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {
namespace {

// Memory is taken where it is touched; the lowest part never, so that a stack that is too small
// does not end in another one.
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 4096;

}  // namespace

#if defined(__x86_64__)
// Saves the registers that a function must keep on the current stack, stores its pointer in
// *save, and takes up the stack `load`. swapcontext() would do, with two system calls each time.
extern "C" void kvtier_simt_switch(void** save, void* load);
asm(R"(
.text
.globl kvtier_simt_switch
.type kvtier_simt_switch, @function
kvtier_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvtier_simt_switch, .-kvtier_simt_switch
.globl kvtier_simt_start
.type kvtier_simt_start, @function
kvtier_simt_start:
  movq %r12, %rdi
  call *%r13
  ud2
.size kvtier_simt_start, .-kvtier_simt_start
)");
extern "C" void kvtier_simt_start();
#endif

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
  stack_ = static_cast<unsigned char*>(memory);
#if defined(KVTIER_TSAN)
  inside_context_ = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  // What kvtier_simt_switch() will pop: r15, r14, r13, r12, rbx, rbp and where to return to.
  // Nine words: the stack is then 16-byte aligned where Enter() is called.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes) - 9;
  top[2] = reinterpret_cast<uintptr_t>(&Fiber::Enter);
  top[3] = reinterpret_cast<uintptr_t>(this);
  top[6] = reinterpret_cast<uintptr_t>(&kvtier_simt_start);
  inside_ = top;
#else
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(+[](unsigned low, unsigned high) {
    Enter(reinterpret_cast<Fiber*>(uintptr_t{low} | uintptr_t{high} << 32));
  }),
              2, static_cast<unsigned>(address), static_cast<unsigned>(uint64_t{address} >> 32));
#endif
}

Fiber::~Fiber() {
#if defined(KVTIER_TSAN)
  __tsan_destroy_fiber(inside_context_);
#endif
  munmap(stack_, kStackBytes);
}

void Fiber::Enter(Fiber* fiber) {
#if defined(KVTIER_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_stack_, &fiber->outside_stack_bytes_);
#endif
  for (;;) {
    fiber->body_();
    fiber->Yield();
  }
}

void Fiber::Switch(bool into) {
#if defined(KVTIER_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, into ? stack_ : outside_stack_,
                                 into ? kStackBytes : outside_stack_bytes_);
#elif defined(KVTIER_TSAN)
  if (into) outside_context_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(into ? inside_context_ : outside_context_, 0);
#endif
#if defined(__x86_64__)
  kvtier_simt_switch(into ? &outside_ : &inside_, into ? inside_ : outside_);
#else
  swapcontext(into ? &outside_ : &inside_, into ? &inside_ : &outside_);
#endif
#if defined(KVTIER_ASAN)
  // Back: whoever came here tells where he came from.
  __sanitizer_finish_switch_fiber(fake_stack, into ? nullptr : &outside_stack_,
                                  into ? nullptr : &outside_stack_bytes_);
#endif
}

void Fiber::Resume() { Switch(/*into=*/true); }
void Fiber::Yield() { Switch(/*into=*/false); }

}  // namespace simt
