// Does a number grow without end, or did it only settle?
#pragma once

#include <span>

namespace kvtier::load {

struct Point {
  double minutes = 0;
  double value = 0;
};

// The slope of the line through `points` (least squares), a minute. 0 for fewer than two points, or
// all of one moment.
double SlopeOf(std::span<const Point> points);

// The points at or after `minutes`: those before are warm-up.
std::span<const Point> After(std::span<const Point> points, double minutes);

}  // namespace kvtier::load
