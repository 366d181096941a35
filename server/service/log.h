// One event, one line, on standard error:
//
//   2026-01-31T12:00:00.123Z event=session_opened session_id=1f.. client_name="vLLM rank 0"
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/core/clock.h"

namespace kvtier {

// Thread-safe: a line is one write().
class Log {
 public:
  // A name and a value. Text with blanks or odd characters is quoted and escaped.
  struct Field {
    Field(absl::string_view name, absl::string_view value) : name(name), value(value) {}
    Field(absl::string_view name, const char* value) : name(name), value(value) {}
    Field(absl::string_view name, const std::string& value) : name(name), value(value) {}
    template <typename Number>
    Field(absl::string_view name, Number value) : name(name), value(absl::StrCat(value)) {}

    absl::string_view name;
    std::string value;
  };

  // `clock` must outlive the log. Writes to descriptor `fd`.
  explicit Log(const Clock* clock, int fd = 2) : clock_(clock), fd_(fd) {}

  void Event(absl::string_view event, std::initializer_list<Field> fields = {}) const;

 private:
  const Clock* const clock_;
  const int fd_;
};

}  // namespace kvtier
