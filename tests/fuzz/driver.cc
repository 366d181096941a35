#include "tests/fuzz/driver.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace kvtier::fuzz {
namespace {

// Inputs that were made and not thrown away; the corpus always stays.
constexpr size_t kPoolMax = 256;
constexpr int kChangesMax = 6;

std::vector<std::string> Pieces(const Target& target, absl::string_view input) {
  if (target.split != nullptr) return target.split(input);
  std::vector<std::string> bytes;
  bytes.reserve(input.size());
  for (const char byte : input) bytes.emplace_back(1, byte);
  return bytes;
}

bool Fails(const Target& target, const std::string& input) {
  Played ignored;
  return !target.play(input, &ignored).ok();
}

std::string ChangeBytesOnce(std::string bytes, Random& random,
                            const std::vector<std::string>& dictionary) {
  const size_t at = Below(random, bytes.size() + 1);
  const size_t count = std::min<size_t>(1 + Below(random, 8), bytes.size() - at);
  switch (Below(random, dictionary.empty() ? 6 : 8)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
      return bytes;
    case 1:
      if (at < bytes.size()) bytes[at] = static_cast<char>(Below(random, 256));
      return bytes;
    case 2:
      return bytes.erase(at, count);
    case 3:
      return bytes.insert(at, 1 + Below(random, 4), static_cast<char>(Below(random, 256)));
    case 4:
      return bytes.insert(at, bytes.substr(at, count));
    case 5: {  // what length and number fields are wrong at
      constexpr unsigned char kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
      if (at < bytes.size()) bytes[at] = static_cast<char>(kEdges[Below(random, 5)]);
      return bytes;
    }
    default:
      return bytes.insert(at, dictionary[Below(random, dictionary.size())]);
  }
}

}  // namespace

std::string MutateBytes(absl::string_view input, Random& random,
                        const std::vector<std::string>& dictionary) {
  std::string bytes(input);
  for (uint64_t i = 1 + Below(random, kChangesMax); i > 0; --i) {
    bytes = ChangeBytesOnce(std::move(bytes), random, dictionary);
  }
  return bytes;
}

std::string Shrink(const Target& target, const std::string& input) {
  std::vector<std::string> pieces = Pieces(target, input);
  for (size_t chunk = std::max<size_t>(pieces.size() / 2, 1);;
       chunk = std::max<size_t>(chunk / 2, 1)) {
    bool smaller = false;
    for (size_t first = 0; first < pieces.size();) {
      std::vector<std::string> rest = pieces;
      const size_t last = std::min(first + chunk, rest.size());
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(first),
                 rest.begin() + static_cast<std::ptrdiff_t>(last));
      if (Fails(target, absl::StrJoin(rest, ""))) {
        pieces = std::move(rest);
        smaller = true;
      } else {
        first += chunk;
      }
    }
    if (chunk == 1 && !smaller) return absl::StrJoin(pieces, "");
  }
}

bool Drive(const Target& target, const std::vector<std::string>& corpus, const Budget& budget,
           Played* played, Failure* failure) {
  const auto plays = [&](const std::string& input) {
    *failure = {input, target.play(input, played)};
    return failure->status.ok();
  };
  std::vector<std::string> pool = corpus;
  for (const std::string& input : corpus) {
    if (!plays(input)) return false;
  }
  if (pool.empty()) pool.emplace_back();
  Random random(budget.seed);
  const auto has_time = [&] {
    return budget.until == absl::InfiniteFuture() || absl::Now() < budget.until;
  };
  while (played->operations < budget.operations && has_time()) {
    const std::string& origin = pool[Below(random, pool.size())];
    std::string made =
        target.mutate != nullptr ? target.mutate(origin, random) : MutateBytes(origin, random);
    const Played before = *played;
    if (!plays(made)) return false;
    // What is mostly refused leads to more that is refused at the same place: seldom kept.
    const bool refused =
        2 * (played->errors - before.errors) > played->operations - before.operations;
    if (refused && Below(random, 16) != 0) continue;
    if (pool.size() < corpus.size() + kPoolMax) {
      pool.push_back(std::move(made));
    } else {
      pool[corpus.size() + Below(random, kPoolMax)] = std::move(made);
    }
  }
  return true;
}

}  // namespace kvtier::fuzz
