#include "tests/simulation/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvtier::simulation {
namespace {

constexpr std::array<absl::string_view, kVerbCount> kNames = {
    "open",   "close",   "evict",  "attach",     "detach",  "admit",   "release",
    "assign", "share",   "free",   "invalidate", "backup",  "swap_in", "step",
    "reap",   "advance", "settle", "fault",      "restart", "drain",   "guess"};

// How often each verb is drawn: rarely what ends everything.
constexpr std::array<uint8_t, kVerbCount> kWeights = {6,  2,  1,  8, 2, 14, 5, 14, 8, 6, 4,
                                                      22, 26, 10, 3, 1, 4,  2, 1,  1, 2};

std::string DrawStep(fuzz::Random& random) {
  int total = 0;
  for (const uint8_t weight : kWeights) total += weight;
  int drawn = static_cast<int>(fuzz::Below(random, static_cast<uint64_t>(total)));
  int verb = 0;
  while (drawn >= kWeights[verb]) drawn -= kWeights[verb++];
  std::string step(1, static_cast<char>(verb));
  for (int i = 1; i < kVerbBytes; ++i) {
    // The calls' third byte has the weather in its upper bits: mostly a fine one.
    const bool small = i == 3 && fuzz::Below(random, 2) == 0;
    step += static_cast<char>(fuzz::Below(random, small ? 64 : 256));
  }
  return step;
}

}  // namespace

std::vector<Step> ParseProgram(absl::string_view bytes) {
  std::vector<Step> steps;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  for (size_t i = 0; i + kVerbBytes <= bytes.size() && steps.size() < kVerbsMax; i += kVerbBytes) {
    steps.push_back({static_cast<Verb>(at(i) % kVerbCount), at(i + 1), at(i + 2), at(i + 3)});
  }
  return steps;
}

std::string MutateProgram(absl::string_view bytes, fuzz::Random& random) {
  std::vector<std::string> steps = SplitProgram(bytes);
  for (uint64_t changes = 1 + fuzz::Below(random, 12); changes > 0; --changes) {
    const size_t at = fuzz::Below(random, steps.size() + 1);
    const auto place = steps.begin() + static_cast<std::ptrdiff_t>(at);
    switch (fuzz::Below(random, 6)) {
      case 0:
        if (at < steps.size()) steps.erase(place);
        break;
      case 1:
        if (at < steps.size()) steps[at][1 + fuzz::Below(random, 3)] = static_cast<char>(random());
        break;
      case 2:
        if (at < steps.size()) std::swap(steps[at], steps[fuzz::Below(random, steps.size())]);
        break;
      default:
        steps.insert(place, DrawStep(random));
    }
  }
  if (steps.size() > kVerbsMax) steps.resize(kVerbsMax);
  std::string made;
  for (const std::string& step : steps) made += step;
  return made;
}

std::vector<std::string> SplitProgram(absl::string_view bytes) {
  std::vector<std::string> steps;
  for (size_t i = 0; i + kVerbBytes <= bytes.size(); i += kVerbBytes) {
    steps.emplace_back(bytes.substr(i, kVerbBytes));
  }
  return steps;
}

std::string DescribeProgram(absl::string_view bytes) {
  std::string text;
  for (const Step& step : ParseProgram(bytes)) {
    absl::StrAppend(&text, kNames[static_cast<size_t>(step.verb)], " ", step.a, " ", step.b, " ",
                    step.c, "\n");
  }
  return text;
}

}  // namespace kvtier::simulation
