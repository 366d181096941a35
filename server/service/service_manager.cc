#include "server/service/service_manager.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace kvtier {
namespace {

absl::string_view Variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets one
  return value == nullptr ? "" : value;
}

absl::Duration WatchdogLimit() {
  int64_t pid = 0;
  const absl::string_view meant = Variable("WATCHDOG_PID");
  if (!meant.empty() && (!absl::SimpleAtoi(meant, &pid) || pid != getpid())) return {};
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &microseconds)) return {};
  return absl::Microseconds(std::max<int64_t>(microseconds, 0));
}

// A line break would begin another variable.
std::string StatusLine(absl::string_view status) {
  return absl::StrCat("STATUS=", absl::StrReplaceAll(status, {{"\n", " "}}), "\n");
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  return ServiceManager(Variable("NOTIFY_SOCKET"), WatchdogLimit());
}

ServiceManager::ServiceManager(absl::string_view socket, absl::Duration watchdog_limit)
    : watchdog_limit_(watchdog_limit) {
  const bool abstract = !socket.empty() && socket[0] == '@';
  const bool path = !socket.empty() && socket[0] == '/';
  if ((!abstract && !path) || socket.size() >= sizeof(address_.sun_path)) return;
  address_.sun_family = AF_UNIX;
  std::copy(socket.begin(), socket.end(), address_.sun_path);
  if (abstract) address_.sun_path[0] = '\0';
  address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size() +
                                          (path ? 1 : 0));  // its end
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void ServiceManager::Send(absl::string_view text) const {
  if (!present()) return;
  // Nobody to tell if it fails.
  (void)sendto(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address_), address_bytes_);
}

void ServiceManager::Starting(absl::string_view status, absl::Duration more_time) const {
  Send(absl::StrCat(StatusLine(status),
                    "EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(more_time), "\n"));
}

void ServiceManager::Ready(absl::string_view status) const {
  Send(absl::StrCat("READY=1\n", StatusLine(status)));
}

void ServiceManager::Reloading(int64_t monotonic_microseconds) const {
  Send(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", monotonic_microseconds, "\n"));
}

void ServiceManager::Stopping(absl::string_view status) const {
  Send(absl::StrCat("STOPPING=1\n", StatusLine(status)));
}

void ServiceManager::Heartbeat(absl::Time now) {
  if (watchdog_limit_ <= absl::ZeroDuration()) return;
  // A clock that was set back must not silence it.
  if (now >= last_heartbeat_ && now < last_heartbeat_ + watchdog_limit_ / 3) return;
  last_heartbeat_ = now;
  Send("WATCHDOG=1\n");
}

}  // namespace kvtier
