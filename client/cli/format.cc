#include "client/cli/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace kvtier::cli {
namespace {

// Three digits of a value below 1000, without a point where it is whole.
std::string ThreeDigits(double value) {
  if (value == std::floor(value) && value < 1000) return absl::StrFormat("%.0f", value);
  if (value < 10) return absl::StrFormat("%.2f", value);
  return value < 100 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

}  // namespace

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return absl::StrFormat("%.0f%s", value, kUnits[unit]);
  return absl::StrFormat("%.1f%s", value, kUnits[unit]);
}

std::string BytesPerSecond(double rate) {
  constexpr const char* kUnits[] = {" B/s", " kB/s", " MB/s", " GB/s", " TB/s"};
  int unit = 0;
  while (rate >= 999.5 && unit < 4) {
    rate /= 1000;
    ++unit;
  }
  return absl::StrCat(unit == 0 ? absl::StrFormat("%.0f", rate) : ThreeDigits(rate), kUnits[unit]);
}

std::string Rate(double per_second) {
  constexpr const char* kUnits[] = {"", "k", "M", "G"};
  int unit = 0;
  while (per_second >= 999.5 && unit < 3) {
    per_second /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(per_second), kUnits[unit]);
}

std::string Grouped(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string Percent(bool present, double fraction) {
  return present ? absl::StrFormat("%.1f %%", 100 * fraction) : "-";
}

std::string Latency(int64_t microseconds) {
  const double value = static_cast<double>(microseconds);
  if (microseconds < 1000) return absl::StrCat(microseconds, " us");
  if (microseconds < 1000000) return absl::StrCat(ThreeDigits(value / 1000), " ms");
  return absl::StrCat(ThreeDigits(value / 1000000), " s");
}

std::string Age(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(age), 0);
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m ", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h ", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d ", seconds / 3600 % 24, "h");
}

std::string Bar(double fraction, int width) {
  const double inside = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0;
  int full = static_cast<int>(std::lround(inside * width));
  if (inside > 0 && full == 0) full = 1;  // little is not nothing
  return absl::StrCat("[", std::string(full, '#'), std::string(width - full, '.'), "]");
}

std::string Table::Text() const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  std::vector<std::string> head;
  for (absl::string_view name : head_) {
    right.push_back(absl::ConsumePrefix(&name, ">"));
    head.emplace_back(name);
    widths.push_back(name.size());
  }
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", right[i] ? blanks : "", row[i],
                      right[i] ? "" : blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  append(head);
  for (const std::vector<std::string>& row : rows_) append(row);
  return text;
}

}  // namespace kvtier::cli
