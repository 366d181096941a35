#include "server/service/log.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"

namespace kvtier {
namespace {

constexpr size_t kValueBytesMax = 512;

bool IsPlain(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != '=';
  });
}

void AppendValue(absl::string_view value, std::string* line) {
  const absl::string_view kept = value.substr(0, kValueBytesMax);
  if (IsPlain(kept)) {
    absl::StrAppend(line, kept);
  } else {
    absl::StrAppend(line, "\"", absl::CHexEscape(kept), "\"");
  }
  if (kept.size() < value.size()) absl::StrAppend(line, "...");
}

}  // namespace

void Log::Event(absl::string_view event, std::initializer_list<Field> fields) const {
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", clock_->Now(), absl::UTCTimeZone()),
                   " event=", event);
  for (const Field& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=");
    AppendValue(field.value, &line);
  }
  line += '\n';
  // Nobody to tell if it fails: a log that is not read must not stop the daemon. A pipe that is
  // full loses the line.
  pollfd entry = {.fd = fd_, .events = POLLOUT};
  if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return;
  while (write(fd_, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace kvtier
