// Host memory as a pool has it: pinned, mapped into the GPU, in one of the ways one can get it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/host_pool/host_pool_memory.h"

namespace kvtier::testing {

// Calls function(i) for i in [0, count) on all processors, and waits.
template <typename Function>
void ForEach(int64_t count, const Function& function) {
  std::vector<std::thread> threads;
  const auto processors = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t thread_count = processors > 0 ? processors : 1;
  for (int64_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&function, t, count, thread_count] {
      for (int64_t i = t; i < count; i += thread_count) function(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// "memfd": the daemon's way, a memfd with 2 MiB pages where the system gives them, registered in
// pieces of 1 GiB. "hugetlb": the same with reserved 2 MiB pages. "anonymous": private memory with
// 2 MiB pages, registered in one piece. "cuda": cudaHostAlloc.
class PinnedPool {
 public:
  // Ends the process with a reason if there is no such memory.
  PinnedPool(const std::string& kind, int64_t bytes);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return bytes_; }
  const std::string& kind() const { return kind_; }
  // In 2 MiB pages, as the kernel says; -1: not asked (memory that is not of the daemon's kind).
  int64_t huge_bytes() const { return memory_.data() != nullptr ? memory_.HugeBytes() : -1; }
  double seconds_to_pin() const { return seconds_to_pin_; }

 private:
  void TakeDaemonMemory(HugePages huge_pages);
  void TakeAnonymousMemory();
  void Register(int64_t piece_bytes);

  const std::string kind_;
  const int64_t bytes_;  // a multiple of 2 MiB
  uint8_t* data_ = nullptr;
  PoolMemory memory_;              // of the daemon's kind
  int64_t registered_pieces_ = 0;  // of piece_bytes_
  int64_t piece_bytes_ = 0;
  double seconds_to_pin_ = 0;
};

}  // namespace kvtier::testing
