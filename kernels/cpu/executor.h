// Threads and scratch memory that the CPU kernels use again from call to call.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace kvtier::cpu {

struct CallScratch;
struct Workspace;

// Owns `thread_count() - 1` threads: the caller of a kernel is the remaining one, so that an
// Executor of 1 owns none. The threads sleep between calls, block every signal, and end in the
// destructor. After fork() the child must not use its copy.
//
// Not thread-safe: one call at a time. Scratch memory grows with the largest shape seen and is
// kept, so that a step allocates nothing once shapes repeat.
class Executor {
 public:
  static constexpr int32_t kThreadsMax = 64;

  // `thread_count` is clamped to [1, kThreadsMax]. Threads that the system refuses are done
  // without: results never depend on how many there are.
  explicit Executor(int32_t thread_count);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int32_t thread_count() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // The rest is for the kernels of this folder.

  // Runs task(worker, index) once for each index in [0, count), in any order, and returns after
  // the last of them. `worker` is in [0, thread_count()) and names the running thread. Everything
  // done before the call is visible to the tasks, and what they did after it.
  template <typename Task>
  void ParallelFor(int64_t count, const Task& task) {
    Run(
        count,
        [](const void* context, int32_t worker, int64_t index) {
          (*static_cast<const Task*>(context))(worker, index);
        },
        &task);
  }

  Workspace& workspace(int32_t worker) { return *workspaces_[worker]; }
  CallScratch& call_scratch() { return *call_scratch_; }

 private:
  using Function = void (*)(const void* context, int32_t worker, int64_t index);

  struct Thread {
    Executor* executor;
    int32_t worker;
    pthread_t handle;
  };

  static void* ThreadMain(void* thread);
  void Run(int64_t count, Function function, const void* context);
  void WorkOff(int32_t worker, int64_t count, Function function, const void* context);
  void Serve(int32_t worker);

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;  // one a thread
  std::unique_ptr<CallScratch> call_scratch_;

  std::atomic<int64_t> next_index_{0};  // of the open job

  std::mutex mutex_;  // guards all below
  std::condition_variable job_opened_;
  std::condition_variable helper_left_;
  Function function_ = nullptr;  // null: no job is open
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t job_ = 0;      // number of the job opened last
  int32_t helpers_ = 0;  // threads inside the open job, without the caller
  bool stopping_ = false;
};

}  // namespace kvtier::cpu
