// One thing that is fuzzed: how an input is played, changed and taken apart.
//
// A fuzz target is a binary that defines GetTarget(). Built as every other test it plays its
// corpus and some thousand inputs made of it by a seeded generator (driver.h); built with
// --config=fuzz the same target is what libFuzzer drives by coverage (tools/fuzz).
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier::fuzz {

using Random = std::mt19937_64;

// What an input did, added to what others did before it.
struct Played {
  int64_t operations = 0;  // calls, packets, files: what the target counts
  int64_t errors = 0;      // those that were refused, as they should be
};

struct Target {
  // An error: something came out that must not. (A crash or a sanitizer's report is one, too.)
  absl::Status (*play)(absl::string_view input, Played* played) = nullptr;
  // Another input, a little different. Null: bytes are changed.
  std::string (*mutate)(absl::string_view input, Random& random) = nullptr;
  // Pieces that make the input when put together, any of which can be left out: what a failing
  // input is reduced by. Null: its bytes.
  std::vector<std::string> (*split)(absl::string_view input) = nullptr;
  // An input of a file of the corpus. Null: the file is one.
  absl::StatusOr<std::string> (*read)(absl::string_view file) = nullptr;
  // For people. Null: hexadecimal alone.
  std::string (*describe)(absl::string_view input) = nullptr;
};

Target GetTarget();

// Below `bound`, which is at least 1.
inline uint64_t Below(Random& random, uint64_t bound) { return random() % bound; }

}  // namespace kvtier::fuzz
