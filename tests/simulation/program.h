// What a simulation plays: verbs of four bytes, whose meaning depends on what there is when they
// are played. Any bytes are a program, and any verb can be left out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/fuzz/target.h"

namespace kvtier::simulation {

enum class Verb : uint8_t {
  kOpen,
  kClose,
  kEvict,
  kAttach,
  kDetach,
  kAdmit,
  kRelease,
  kAssign,
  kShare,
  kFree,
  kInvalidate,
  kBackup,
  kSwapIn,
  kStep,
  kReap,
  kAdvance,
  kSettle,
  kFault,
  kRestart,
  kDrain,
  kGuess,
  kExpire,
  kKill,
};
inline constexpr int kVerbCount = 23;
inline constexpr int kVerbBytes = 4;
inline constexpr size_t kVerbsMax = 200;

struct Step {
  Verb verb = Verb::kSettle;
  uint8_t a = 0, b = 0, c = 0;
};

std::vector<Step> ParseProgram(absl::string_view bytes);
std::string MutateProgram(absl::string_view bytes, fuzz::Random& random);
std::vector<std::string> SplitProgram(absl::string_view bytes);
std::string DescribeProgram(absl::string_view bytes);

}  // namespace kvtier::simulation
