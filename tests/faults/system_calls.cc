#include "tests/faults/system_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <array>
#include <mutex>

namespace kvtier::faults {
namespace {

struct Description {
  const char* name;
  int error;  // when there is no more of what it asks for
};
constexpr std::array<Description, kSystemCallCount> kDescriptions = {{
    {"memfd_create", EMFILE}, {"ftruncate", ENOSPC},
    {"fallocate", ENOSPC},    {"mmap", ENOMEM},
    {"madvise", ENOMEM},      {"mincore", ENOMEM},
    {"mbind", ENOMEM},        {"open", EMFILE},
    {"openat", EMFILE},       {"fcntl", EMFILE},
    {"fstat", ENOMEM},        {"fstatfs", ENOMEM},
    {"stat", ENOMEM},         {"lstat", ENOMEM},
    {"flock", ENOLCK},        {"mkdir", ENOSPC},
    {"renameat", ENOSPC},     {"unlink", EIO},
    {"unlinkat", ENOMEM},     {"fdopendir", ENOMEM},
    {"readdir", EIO},         {"read", EIO},
    {"write", ENOSPC},        {"socket", EMFILE},
    {"bind", ENOMEM},         {"listen", ENOMEM},
    {"fchmod", ENOMEM},       {"chmod", ENOMEM},
    {"fchownat", ENOMEM},     {"connect", EAGAIN},
    {"getsockopt", ENOMEM},   {"accept4", EMFILE},
    {"send", ENOBUFS},        {"sendmsg", ENOBUFS},
    {"sendto", ENOBUFS},      {"recv", ENOMEM},
    {"recvmsg", ENOMEM},      {"poll", ENOMEM},
    {"eventfd", EMFILE},      {"pthread_create", EAGAIN},
}};

// What shall fail. The calls come on any thread, so there is one for the process.
struct Plan {
  std::mutex mutex;
  std::array<bool, kSystemCallCount> chosen{};
  bool paused = false;
  int64_t left = 0;    // calls until the one that fails; 0: none does
  int64_t number = 0;  // that it was counted down from
  std::optional<int> error;
  std::optional<SystemCall> hit;
};
Plan& ThePlan() {
  static Plan* const plan = new Plan;
  return *plan;
}

// 0, or the errno that this call fails with.
int ErrorOf(SystemCall call) {
  const auto index = static_cast<size_t>(call);
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  if (plan.paused || plan.left == 0 || !plan.chosen[index] || --plan.left > 0) return 0;
  plan.hit = call;
  return plan.error.value_or(kDescriptions[index].error);
}

// True: errno is set, and the call shall not be made.
bool Fails(SystemCall call) {
  const int error = ErrorOf(call);
  if (error != 0) errno = error;
  return error != 0;
}

}  // namespace

const char* SystemCallName(SystemCall call) {
  return kDescriptions[static_cast<size_t>(call)].name;
}

std::vector<SystemCall> AllSystemCalls() {
  std::vector<SystemCall> all;
  for (int i = 0; i < kSystemCallCount; ++i) all.push_back(static_cast<SystemCall>(i));
  return all;
}

SystemCallFault::SystemCallFault(const std::vector<SystemCall>& calls, int64_t nth,
                                 std::optional<int> error) {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  plan.chosen = {};
  for (const SystemCall call : calls) plan.chosen[static_cast<size_t>(call)] = true;
  plan.left = plan.number = nth;
  plan.error = error;
  plan.paused = false;
  plan.hit.reset();
}

void SystemCallFault::Cancel() {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  plan.left = 0;
}

void SystemCallFault::Pause() {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  plan.paused = true;
}

void SystemCallFault::Resume() {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  plan.paused = false;
}

std::optional<SystemCall> SystemCallFault::hit() const {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  return plan.hit;
}

std::string SystemCallFault::ToString() const {
  Plan& plan = ThePlan();
  const std::lock_guard<std::mutex> lock(plan.mutex);
  return "number " + std::to_string(plan.number) + ", " +
         (plan.hit.has_value() ? SystemCallName(*plan.hit) : "which did not come");
}

int64_t FailEachSystemCall(const std::vector<SystemCall>& calls, int64_t attempts_max,
                           const std::function<void(SystemCallFault&)>& attempt,
                           std::optional<int> error) {
  for (int64_t nth = 1; nth <= attempts_max; ++nth) {
    SystemCallFault fault(calls, nth, error);
    attempt(fault);
    if (!fault.hit().has_value()) return nth - 1;
  }
  return -1;
}

}  // namespace kvtier::faults

using kvtier::faults::Fails;
using kvtier::faults::SystemCall;

// The linker gives calls of NAME to __wrap_NAME, and __real_NAME is the system's. A declaration
// and a definition for each, by the type of its result, its parameters, and what it hands on.
#define KVTIER_WRAP(call, result, failed, name, parameters, arguments) \
  extern "C" result __real_##name parameters;                          \
  extern "C" result __wrap_##name parameters {                         \
    if (Fails(SystemCall::call)) return failed;                        \
    return __real_##name arguments;                                    \
  }

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
KVTIER_WRAP(kMemfdCreate, int, -1, memfd_create, (const char* name, unsigned flags), (name, flags))
KVTIER_WRAP(kFtruncate, int, -1, ftruncate, (int fd, off_t bytes), (fd, bytes))
KVTIER_WRAP(kFallocate, int, -1, fallocate, (int fd, int mode, off_t from, off_t bytes),
            (fd, mode, from, bytes))
KVTIER_WRAP(kMmap, void*, MAP_FAILED, mmap,
            (void* at, size_t bytes, int protection, int flags, int fd, off_t from),
            (at, bytes, protection, flags, fd, from))
KVTIER_WRAP(kMadvise, int, -1, madvise, (void* at, size_t bytes, int advice), (at, bytes, advice))
KVTIER_WRAP(kMincore, int, -1, mincore, (void* at, size_t bytes, unsigned char* pages),
            (at, bytes, pages))
KVTIER_WRAP(kMbind, long, -1, mbind,  // NOLINT(google-runtime-int): the library's types
            (void* at, unsigned long bytes, int mode, const unsigned long* nodes,
             unsigned long node_count, unsigned flags),
            (at, bytes, mode, nodes, node_count, flags))
KVTIER_WRAP(kFstat, int, -1, fstat, (int fd, struct stat* file), (fd, file))
KVTIER_WRAP(kFstatfs, int, -1, fstatfs, (int fd, struct statfs* system), (fd, system))
KVTIER_WRAP(kStat, int, -1, stat, (const char* path, struct stat* file), (path, file))
KVTIER_WRAP(kLstat, int, -1, lstat, (const char* path, struct stat* file), (path, file))
KVTIER_WRAP(kFlock, int, -1, flock, (int fd, int operation), (fd, operation))
KVTIER_WRAP(kMkdir, int, -1, mkdir, (const char* path, mode_t mode), (path, mode))
KVTIER_WRAP(kRenameat, int, -1, renameat, (int from, const char* old, int to, const char* now),
            (from, old, to, now))
KVTIER_WRAP(kUnlink, int, -1, unlink, (const char* path), (path))
KVTIER_WRAP(kUnlinkat, int, -1, unlinkat, (int folder, const char* path, int flags),
            (folder, path, flags))
KVTIER_WRAP(kFdopendir, DIR*, nullptr, fdopendir, (int fd), (fd))
KVTIER_WRAP(kReaddir, struct dirent*, nullptr, readdir, (DIR * folder), (folder))
KVTIER_WRAP(kRead, ssize_t, -1, read, (int fd, void* bytes, size_t size), (fd, bytes, size))
KVTIER_WRAP(kWrite, ssize_t, -1, write, (int fd, const void* bytes, size_t size), (fd, bytes, size))
KVTIER_WRAP(kSocket, int, -1, socket, (int domain, int type, int protocol),
            (domain, type, protocol))
KVTIER_WRAP(kBind, int, -1, bind, (int fd, const sockaddr* address, socklen_t size),
            (fd, address, size))
KVTIER_WRAP(kListen, int, -1, listen, (int fd, int backlog), (fd, backlog))
KVTIER_WRAP(kFchmod, int, -1, fchmod, (int fd, mode_t mode), (fd, mode))
KVTIER_WRAP(kChmod, int, -1, chmod, (const char* path, mode_t mode), (path, mode))
KVTIER_WRAP(kFchownat, int, -1, fchownat,
            (int folder, const char* path, uid_t owner, gid_t group, int flags),
            (folder, path, owner, group, flags))
KVTIER_WRAP(kConnect, int, -1, connect, (int fd, const sockaddr* address, socklen_t size),
            (fd, address, size))
KVTIER_WRAP(kGetsockopt, int, -1, getsockopt,
            (int fd, int level, int name, void* value, socklen_t* size),
            (fd, level, name, value, size))
KVTIER_WRAP(kAccept4, int, -1, accept4, (int fd, sockaddr* address, socklen_t* size, int flags),
            (fd, address, size, flags))
KVTIER_WRAP(kSend, ssize_t, -1, send, (int fd, const void* bytes, size_t size, int flags),
            (fd, bytes, size, flags))
KVTIER_WRAP(kSendmsg, ssize_t, -1, sendmsg, (int fd, const msghdr* message, int flags),
            (fd, message, flags))
KVTIER_WRAP(kSendto, ssize_t, -1, sendto,
            (int fd, const void* bytes, size_t size, int flags, const sockaddr* address,
             socklen_t address_size),
            (fd, bytes, size, flags, address, address_size))
KVTIER_WRAP(kRecv, ssize_t, -1, recv, (int fd, void* bytes, size_t size, int flags),
            (fd, bytes, size, flags))
KVTIER_WRAP(kRecvmsg, ssize_t, -1, recvmsg, (int fd, msghdr* message, int flags),
            (fd, message, flags))
KVTIER_WRAP(kPoll, int, -1, poll, (pollfd * entries, nfds_t count, int timeout),
            (entries, count, timeout))
KVTIER_WRAP(kEventfd, int, -1, eventfd, (unsigned value, int flags), (value, flags))

// These have parameters that depend on others: each is handed on in a register, used or not.
extern "C" int __real_open(const char* path, int flags, mode_t mode);
extern "C" int __wrap_open(const char* path, int flags, mode_t mode) {
  return Fails(SystemCall::kOpen) ? -1 : __real_open(path, flags, mode);
}
extern "C" int __real_openat(int folder, const char* path, int flags, mode_t mode);
extern "C" int __wrap_openat(int folder, const char* path, int flags, mode_t mode) {
  return Fails(SystemCall::kOpenat) ? -1 : __real_openat(folder, path, flags, mode);
}
extern "C" int __real_fcntl(int fd, int command, void* argument);
extern "C" int __wrap_fcntl(int fd, int command, void* argument) {
  return Fails(SystemCall::kFcntl) ? -1 : __real_fcntl(fd, command, argument);
}

// Says what is wrong by its result, not by errno.
extern "C" int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*main)(void*), void* argument);
extern "C" int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*main)(void*), void* argument) {
  const int error = kvtier::faults::ErrorOf(SystemCall::kPthreadCreate);
  return error != 0 ? error : __real_pthread_create(thread, attributes, main, argument);
}
// NOLINTEND(bugprone-reserved-identifier)
