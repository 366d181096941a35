// A stack of its own for a piece of code, and changing from one to another.
#pragma once

#include <cstddef>
#include <functional>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

// Runs its body again and again: each Resume() goes on with it until its Yield(). A body that
// returns begins anew at the next Resume(). Neither may be called while another thread uses the
// fiber. Exceptions must not leave the body.
class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void Resume();  // from outside
  void Yield();   // from inside

 private:
  static void Enter(Fiber* fiber);
  void Switch(bool into);

  std::function<void()> body_;
  unsigned char* stack_;
#if defined(__x86_64__)
  void* inside_ = nullptr;  // stack pointers of who does not run
  void* outside_ = nullptr;
#else
  ucontext_t inside_, outside_;
#endif
  // What AddressSanitizer has to know about the other stack, and ThreadSanitizer about both.
  [[maybe_unused]] const void* outside_stack_ = nullptr;
  [[maybe_unused]] size_t outside_stack_bytes_ = 0;
  [[maybe_unused]] void* inside_context_ = nullptr;
  [[maybe_unused]] void* outside_context_ = nullptr;
};

}  // namespace simt
