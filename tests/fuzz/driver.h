// Plays inputs of a target without libFuzzer, from a seed, and reduces one that fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {

// `input` with bytes flipped, inserted, removed and repeated; words of `dictionary` put in.
std::string MutateBytes(absl::string_view input, Random& random,
                        const std::vector<std::string>& dictionary = {});

// A shorter input that fails, too: no single piece of it can be left out.
std::string Shrink(const Target& target, const std::string& input);

// Spent when either is.
struct Budget {
  int64_t operations = 0;
  uint64_t seed = 1;
  absl::Time until = absl::InfiniteFuture();  // by the machine's clock
};

struct Failure {
  std::string input;
  absl::Status status;
};

// Plays `corpus`, then inputs made of it until `budget` is spent. True: all went as it must.
bool Drive(const Target& target, const std::vector<std::string>& corpus, const Budget& budget,
           Played* played, Failure* failure);

}  // namespace kvtier::fuzz
