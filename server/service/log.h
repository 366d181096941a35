// One event, one line, on standard error:
//
//   2026-01-31T12:00:00.123Z level=info event=session_opened session_id=1f.. client_name="vLLM 0"
//
// or, as JSON:
//
//   {"time":"2026-01-31T12:00:00.123Z","level":"info","event":"session_opened",...}
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace kvtier {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// "info"
absl::string_view LogLevelName(LogLevel level);

// Thread-safe: a line is one write().
//
// Nobody floods it: of each event, kLinesAtOnce lines are written at once and kLinesPerSecond from
// then on. What is left out is counted in the next line of that event that is written
// (suppressed=17). Errors are always written.
class Log {
 public:
  static constexpr double kLinesAtOnce = 50;
  static constexpr double kLinesPerSecond = 10;

  // A name and a value. Text with blanks or odd characters is quoted and escaped.
  struct Field {
    Field(absl::string_view name, absl::string_view value) : name(name), value(value) {}
    Field(absl::string_view name, const char* value) : name(name), value(value) {}
    Field(absl::string_view name, const std::string& value) : name(name), value(value) {}
    template <typename Number>
    Field(absl::string_view name, Number value)
        : name(name), value(absl::StrCat(value)), is_number(std::is_integral_v<Number>) {}

    absl::string_view name;
    std::string value;
    bool is_number = false;
  };

  // `clock` must outlive the log. Writes to descriptor `fd`.
  explicit Log(const Clock* clock, int fd = 2) : clock_(clock), fd_(fd) {}

  // Events below it are not written.
  void SetLevel(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  void SetFormat(LogFormat format) { format_.store(format, std::memory_order_relaxed); }
  bool Writes(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }

  // `event` is a literal.
  void Event(LogLevel level, absl::string_view event,
             std::initializer_list<Field> fields = {}) const;
  void Event(absl::string_view event, std::initializer_list<Field> fields = {}) const {
    Event(LogLevel::kInfo, event, fields);
  }

  // Since the start.
  int64_t suppressed_lines() const { return suppressed_.load(std::memory_order_relaxed); }

 private:
  // What is left of an event's allowance.
  struct Allowance {
    absl::Time filled;
    double lines = kLinesAtOnce;
    int64_t suppressed = 0;  // since its last line
  };
  // False: not this one. Else how many were left out before it.
  bool Allow(absl::string_view event, absl::Time now, int64_t* suppressed) const
      KVTIER_EXCLUDES(mutex_);

  const Clock* const clock_;
  const int fd_;
  std::atomic<LogLevel> level_{LogLevel::kInfo};
  std::atomic<LogFormat> format_{LogFormat::kText};
  mutable std::atomic<int64_t> suppressed_{0};
  mutable Mutex mutex_;  // rank: a leaf
  // By event: as many as there are literals.
  mutable absl::flat_hash_map<std::string, Allowance> allowances_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
