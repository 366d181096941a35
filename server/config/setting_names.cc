// Names that were meant to be those of settings.

#include <algorithm>
#include <string>
#include <vector>

#include "server/config/setting.h"

namespace kvtier {
namespace {

// Letters to change, add or leave out to make one from the other.
int DistanceOf(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string NearestOf(absl::string_view name, const std::vector<absl::string_view>& known) {
  std::string nearest;
  // A third of the letters may be wrong: beyond that a guess confuses more than it helps.
  int best = std::max(2, static_cast<int>(name.size() / 3)) + 1;
  for (const absl::string_view candidate : known) {
    const int distance = DistanceOf(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = std::string(candidate);
    }
  }
  return nearest;
}

std::string NearestSetting(absl::string_view name) {
  std::vector<absl::string_view> known;
  for (const Setting& setting : Settings()) known.push_back(setting.name);
  return NearestOf(name, known);
}

}  // namespace kvtier
