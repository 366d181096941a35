#include "server/core/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

TEST(ThreadTest, RunsNamedWithSignalsBlocked) {
  std::string name;
  bool blocked = false;
  Thread thread = *Thread::Start("a-name-longer-than-fifteen-bytes", [&] {
    char buffer[16];
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) == 1;
  });
  thread.Join();
  thread.Join();  // nothing
  EXPECT_EQ(name, "a-name-longer-t");
  EXPECT_TRUE(blocked);

  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "the creator's mask is as it was";
}

TEST(ThreadTest, DestructionAndAssignmentJoin) {
  std::atomic<int> ended = 0;
  {
    Thread first = *Thread::Start("first", [&] { ++ended; });
    Thread second = *Thread::Start("second", [&] { ++ended; });
    first = std::move(second);
    EXPECT_GE(ended, 1);
    const Thread moved(std::move(first));
  }
  EXPECT_EQ(ended, 2);
}

// In a child, which can give up its right to make threads.
TEST(ThreadTest, NoThreadLeftIsAnError) {
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(2);
    const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_NPROC, &none);
    const absl::StatusOr<Thread> thread = Thread::Start("refused", [] {});
    _exit(thread.status().code() == absl::StatusCode::kResourceExhausted &&
                  ErrorReasonOf(thread.status()) == "LIMIT_REACHED"
              ? 0
              : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "needs root to become another user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvtier
