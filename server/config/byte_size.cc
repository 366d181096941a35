#include "server/config/byte_size.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvtier {

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  constexpr struct {
    const char* name;
    int64_t bytes;
  } kUnits[] = {{"KiB", int64_t{1} << 10},
                {"MiB", int64_t{1} << 20},
                {"GiB", int64_t{1} << 30},
                {"TiB", int64_t{1} << 40}};
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no size; write a number of bytes, or a number with KiB, MiB, GiB or TiB"));
  absl::string_view number = text;
  int64_t unit = 1;
  for (const auto& candidate : kUnits) {
    if (absl::ConsumeSuffix(&number, candidate.name)) {
      unit = candidate.bytes;
      break;
    }
  }
  int64_t whole = 0;
  if (absl::SimpleAtoi(number, &whole)) {
    if (whole <= 0 || whole > INT64_MAX / unit) return error;
    return whole * unit;
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0)) return error;
  const double bytes = value * static_cast<double>(unit);
  // Doubles count every byte up to 8 PiB.
  if (bytes > static_cast<double>(int64_t{1} << 53) || bytes != std::floor(bytes)) return error;
  return static_cast<int64_t>(bytes);
}

}  // namespace kvtier
