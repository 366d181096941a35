#include "tests/load/growth.h"

#include <algorithm>

namespace kvtier::load {

double SlopeOf(std::span<const Point> points) {
  const auto count = static_cast<double>(points.size());
  double minutes = 0, value = 0;
  for (const Point& point : points) {
    minutes += point.minutes / count;
    value += point.value / count;
  }
  double both = 0, squares = 0;
  for (const Point& point : points) {
    both += (point.minutes - minutes) * (point.value - value);
    squares += (point.minutes - minutes) * (point.minutes - minutes);
  }
  return squares > 0 ? both / squares : 0;
}

std::span<const Point> After(std::span<const Point> points, double minutes) {
  const auto first = std::find_if(points.begin(), points.end(),
                                  [&](const Point& point) { return point.minutes >= minutes; });
  return points.subspan(static_cast<size_t>(first - points.begin()));
}

}  // namespace kvtier::load
