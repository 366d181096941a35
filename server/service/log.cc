#include "server/service/log.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace kvtier {
namespace {

constexpr size_t kValueBytesMax = 512;

bool IsPlain(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != '=';
  });
}

std::string TextValue(absl::string_view value) {
  if (IsPlain(value)) return std::string(value);
  // Between double quotes a single one needs no escape.
  return absl::StrCat("\"", absl::StrReplaceAll(absl::CHexEscape(value), {{"\\'", "'"}}), "\"");
}

// Bytes that are no ASCII are written as the character of that number: a reader gets valid JSON
// whatever a client put into its name.
std::string JsonText(absl::string_view text) {
  std::string escaped = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte > '~') {
      absl::StrAppendFormat(&escaped, "\\u%04x", byte);
      continue;
    }
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped + "\"";
}

// A field as it is written in the end: what is long is cut.
struct Written {
  absl::string_view name;
  absl::string_view value;
  bool is_number = false;
  bool cut = false;
};

std::string TextLine(absl::string_view time, const std::vector<Written>& fields) {
  std::string line(time);
  for (const Written& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=", TextValue(field.value), field.cut ? "..." : "");
  }
  return line + "\n";
}

std::string JsonLine(absl::string_view time, const std::vector<Written>& fields) {
  std::string line = absl::StrCat("{\"time\":", JsonText(time));
  for (const Written& field : fields) {
    absl::StrAppend(&line, ",", JsonText(field.name), ":");
    if (field.is_number) {
      absl::StrAppend(&line, field.value);
    } else {
      absl::StrAppend(
          &line, JsonText(field.cut ? absl::StrCat(field.value, "...") : std::string(field.value)));
    }
  }
  return line + "}\n";
}

}  // namespace

absl::string_view LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

bool Log::Allow(absl::string_view event, absl::Time now, int64_t* suppressed) const {
  MutexLock lock(&mutex_);
  const auto [entry, added] = allowances_.try_emplace(event);
  Allowance& allowance = entry->second;
  if (added) allowance.filled = now;
  const double seconds = std::max(absl::ToDoubleSeconds(now - allowance.filled), 0.0);
  allowance.lines = std::min(allowance.lines + seconds * kLinesPerSecond, kLinesAtOnce);
  allowance.filled = now;
  if (allowance.lines < 1) {
    ++allowance.suppressed;
    return false;
  }
  allowance.lines -= 1;
  *suppressed = std::exchange(allowance.suppressed, 0);
  return true;
}

void Log::Event(LogLevel level, absl::string_view event,
                std::initializer_list<Field> fields) const {
  if (!Writes(level)) return;
  const absl::Time now = clock_->Now();
  int64_t suppressed = 0;
  if (level != LogLevel::kError && !Allow(event, now, &suppressed)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::vector<Written> written = {{"level", LogLevelName(level)}, {"event", event}};
  for (const Field& field : fields) {
    const absl::string_view value = field.value;
    const absl::string_view kept = value.substr(0, kValueBytesMax);
    written.push_back({field.name, kept, field.is_number, kept.size() < value.size()});
  }
  const std::string left_out = absl::StrCat(suppressed);
  if (suppressed > 0) written.push_back({"suppressed", left_out, true});

  const std::string time = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", now, absl::UTCTimeZone());
  const std::string line = format_.load(std::memory_order_relaxed) == LogFormat::kJson
                               ? JsonLine(time, written)
                               : TextLine(time, written);
  // Nobody to tell if it fails: a log that is not read must not stop the daemon. A pipe that is
  // full loses the line.
  pollfd entry = {.fd = fd_, .events = POLLOUT};
  if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLOUT) == 0) return;
  while (write(fd_, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace kvtier
