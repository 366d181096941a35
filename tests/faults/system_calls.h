// Makes calls of the operating system fail, one by one. For tests.
//
//   const int64_t failed = FailEachSystemCall({SystemCall::kMmap}, 1000,
//       [&](SystemCallFault& fault) { ... fault.hit() says which call failed, if any ... });
//
// Linked into a test it stands before the calls that this project's own code makes (the linker's
// --wrap); what libraries call themselves is left alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvtier::faults {

// munmap and close are not here: they fail for wrong arguments alone.
enum class SystemCall {
  kMemfdCreate,
  kFtruncate,
  kFallocate,
  kMmap,
  kMadvise,
  kMincore,
  kMbind,
  kOpen,
  kOpenat,
  kFcntl,
  kFstat,
  kFstatfs,
  kStat,
  kLstat,
  kFlock,
  kMkdir,
  kRenameat,
  kUnlink,
  kUnlinkat,
  kFdopendir,
  kReaddir,
  kRead,
  kWrite,
  kSocket,
  kBind,
  kListen,
  kFchmod,
  kChmod,
  kFchownat,
  kConnect,
  kGetsockopt,
  kAccept4,
  kSend,
  kSendmsg,
  kSendto,
  kRecv,
  kRecvmsg,
  kPoll,
  kEventfd,
  kPthreadCreate,
};
inline constexpr int kSystemCallCount = 40;
const char* SystemCallName(SystemCall call);
std::vector<SystemCall> AllSystemCalls();

// Fails one call; one at a time in a process.
class SystemCallFault {
 public:
  // The `nth` (from 1) of `calls` that any thread makes from now on fails, with `error` if that is
  // given, else with what the system says when it has no more of what the call asks for.
  SystemCallFault(const std::vector<SystemCall>& calls, int64_t nth,
                  std::optional<int> error = std::nullopt);
  ~SystemCallFault() { Cancel(); }
  SystemCallFault(const SystemCallFault&) = delete;
  SystemCallFault& operator=(const SystemCallFault&) = delete;

  // Nothing fails any more.
  void Cancel();
  // Nothing fails and nothing is counted until Resume: for what a test does by itself.
  void Pause();
  void Resume();
  // The call that failed, if it came.
  std::optional<SystemCall> hit() const;
  // "number 3, mmap", to find it again.
  std::string ToString() const;
};

// Runs `attempt` with the first of `calls` failing, then the second, and so on, until an attempt
// in which none was left to fail. Returns how many failed, or -1 after `attempts_max` attempts.
int64_t FailEachSystemCall(const std::vector<SystemCall>& calls, int64_t attempts_max,
                           const std::function<void(SystemCallFault&)>& attempt,
                           std::optional<int> error = std::nullopt);

}  // namespace kvtier::faults
