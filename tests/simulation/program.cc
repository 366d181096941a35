#include "tests/simulation/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvtier::simulation {
namespace {

constexpr std::array<absl::string_view, kVerbCount> kNames = {
    "open",   "close", "evict",      "attach", "detach",  "admit",  "release", "assign",
    "share",  "free",  "invalidate", "backup", "swap_in", "step",   "reap",    "advance",
    "settle", "fault", "restart",    "drain",  "guess",   "expire", "kill"};

// How often each verb is drawn: rarely what ends everything.
constexpr std::array<uint8_t, kVerbCount> kWeights = {6,  2,  1, 8, 2, 14, 5, 14, 8, 6, 4, 22,
                                                      26, 10, 3, 1, 4, 2,  1, 1,  2, 2, 2};

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

struct Word {
  Verb verb;
  int b = -1, c = -1;  // -1: as drawn
};

// What leads somewhere and is seldom drawn by chance: verbs on one request, one after the other.
const std::vector<std::vector<Word>>& Phrases() {
  using enum Verb;
  static const std::vector<std::vector<Word>> phrases = {
      // A block that its request gets again, with its former row still hot.
      {{kAssign}, {kBackup}, {kSwapIn}, {kFree}, {kSettle}, {kAssign}, {kSwapIn}, {kBackup}},
      // The same by way of another request, whose rows come back by sharing.
      {{kBackup}, {kSwapIn}, {kFree}, {kSettle}, {kAssign}, {kBackup}, {kShare}, {kSwapIn}},
      // What a session leaves is kept, and taken up by the next.
      {{kAttach, -1, 21}, {kAssign}, {kBackup}, {kClose}, {kSettle}, {kShare}, {kSwapIn}},
      // A daemon that dies at work, and the next one.
      {{kAssign}, {kBackup}, {kKill}, {kSettle}, {kShare}, {kSwapIn}, {kAssign}, {kSettle}},
      // Time that runs out.
      {{kAttach, -1, 5}, {kClose}, {kSettle}, {kAdvance}, {kAdvance}, {kExpire}, {kAttach}},
      // Two caches that nobody uses, and the one that ends first gives way.
      {{kAttach, 3, 21},
       {kClose},
       {kSettle},
       {kOpen},
       {kAttach, 4, 5},
       {kClose},
       {kSettle},
       {kOpen},
       {kAttach, 1, 0}},
      // Reserved blocks that are drawn and given back.
      {{kAdmit, -1, 18}, {kAssign, -1, 129}, {kSettle}, {kAssign}, {kRelease}, {kSettle}}};
  return phrases;
}

// Mostly with the same arguments, so that they speak of the same request.
std::vector<std::string> DrawPhrase(fuzz::Random& random) {
  const std::vector<Word>& words = Phrases()[fuzz::Below(random, Phrases().size())];
  const std::string common = DrawStep(random);
  std::vector<std::string> phrase;
  for (const Word& word : words) {
    std::string step = fuzz::Below(random, 4) == 0 ? DrawStep(random) : common;
    step[0] = static_cast<char>(word.verb);
    if (word.b >= 0) step[2] = static_cast<char>(word.b);
    step[3] = static_cast<char>(word.c >= 0 ? word.c : fuzz::Below(random, 64));
    phrase.push_back(std::move(step));
  }
  return phrase;
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
    switch (fuzz::Below(random, 8)) {
      case 0:
        if (at < steps.size()) steps.erase(place);
        break;
      case 1:
        if (at < steps.size()) steps[at][1 + fuzz::Below(random, 3)] = static_cast<char>(random());
        break;
      case 2:
        if (at < steps.size()) std::swap(steps[at], steps[fuzz::Below(random, steps.size())]);
        break;
      case 3: {
        const std::vector<std::string> phrase = DrawPhrase(random);
        steps.insert(place, phrase.begin(), phrase.end());
        break;
      }
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
