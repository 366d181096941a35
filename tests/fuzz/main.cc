// What runs a fuzz target: the seeded driver, or libFuzzer in a build with --config=fuzz.
//
//   NAME [--operations=N] [--seconds=N] [--seed=S] [--input=HEX] [--write=FOLDER] [FILE...]
//
// Of libFuzzer's build, too: without an argument that begins with "--" it is libFuzzer's.
//
// FILEs are the corpus; one that ends in .hex holds hexadecimal digits, and lines that begin with
// #. One that ends in .list holds an input a line, like that.
// --input plays that input alone. A failing input is reduced, printed and can be given there.
// --seconds: what is made of the corpus ends after so long, however many operations are left.
// --write only writes the corpus as libFuzzer reads it: bytes.
#include <stdio.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

void Report(const Target& target, const std::string& input, const absl::Status& status) {
  fprintf(stderr, "FAILED: %s\n", std::string(status.message()).c_str());
  if (target.describe != nullptr) fprintf(stderr, "%s\n", target.describe(input).c_str());
  fprintf(stderr, "--input=%s\n", absl::BytesToHexString(input).c_str());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fprintf(stderr, "cannot read %s\n", path.c_str());
    exit(2);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string FromHex(absl::string_view text) {
  std::string digits;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "#")) continue;
    for (const char c : line) {
      if (absl::ascii_isxdigit(static_cast<unsigned char>(c))) digits += c;
    }
  }
  return absl::HexStringToBytes(digits);
}

std::vector<std::string> ReadInputs(const Target& target, const std::string& path) {
  const std::string content = ReadFile(path);
  if (absl::EndsWith(path, ".hex")) return {FromHex(content)};
  if (absl::EndsWith(path, ".list")) {
    std::vector<std::string> inputs;
    for (const absl::string_view line : absl::StrSplit(content, '\n', absl::SkipEmpty())) {
      if (!absl::StartsWith(line, "#")) inputs.push_back(FromHex(line));
    }
    return inputs;
  }
  if (target.read == nullptr) return {content};
  const absl::StatusOr<std::string> input = target.read(content);
  if (!input.ok()) {
    fprintf(stderr, "%s: %s\n", path.c_str(), std::string(input.status().message()).c_str());
    exit(2);
  }
  return {*input};
}

int WriteCorpus(const std::vector<std::string>& corpus, const std::string& folder) {
  for (size_t i = 0; i < corpus.size(); ++i) {
    std::ofstream file(absl::StrCat(folder, "/corpus-", i), std::ios::binary);
    file << corpus[i];
    if (!file) return 2;
  }
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  const Target target = GetTarget();
  Budget budget;
  std::vector<std::string> corpus;
  std::string folder;
  for (const std::string& argument : arguments) {
    absl::string_view value = argument;
    if (absl::ConsumePrefix(&value, "--operations=")) {
      if (!absl::SimpleAtoi(value, &budget.operations)) return 2;
    } else if (absl::ConsumePrefix(&value, "--seconds=")) {
      int64_t seconds = 0;
      if (!absl::SimpleAtoi(value, &seconds)) return 2;
      budget.until = absl::Now() + absl::Seconds(seconds);
    } else if (absl::ConsumePrefix(&value, "--seed=")) {
      if (!absl::SimpleAtoi(value, &budget.seed)) return 2;
    } else if (absl::ConsumePrefix(&value, "--input=")) {
      corpus = {FromHex(value)};
      budget.operations = 0;
      break;
    } else if (absl::ConsumePrefix(&value, "--write=")) {
      folder = std::string(value);
    } else {
      const std::vector<std::string> inputs = ReadInputs(target, argument);
      corpus.insert(corpus.end(), inputs.begin(), inputs.end());
    }
  }
  if (!folder.empty()) return WriteCorpus(corpus, folder);
  Played played;
  Failure failure;
  const bool fine = Drive(target, corpus, budget, &played, &failure);
  printf("seed=%llu operations=%lld errors=%lld\n", static_cast<unsigned long long>(budget.seed),
         static_cast<long long>(played.operations), static_cast<long long>(played.errors));
  if (fine) return 0;
  Report(target, failure.input, failure.status);
  const std::string reduced = Shrink(target, failure.input);
  fprintf(stderr, "reduced from %zu to %zu bytes:\n", failure.input.size(), reduced.size());
  Played ignored;
  Report(target, reduced, target.play(reduced, &ignored));
  return 1;
}

}  // namespace
}  // namespace kvtier::fuzz

#ifdef KVTIER_LIBFUZZER

// Arguments that are the driver's, of which libFuzzer has none: then it does not come to that.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::vector<std::string> arguments(*argv + 1, *argv + *argc);
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "--")) exit(kvtier::fuzz::Main(arguments));
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const kvtier::fuzz::Target target = kvtier::fuzz::GetTarget();
  static kvtier::fuzz::Played played;
  static const int at_end = atexit([] {
    fprintf(stderr, "operations=%lld errors=%lld\n", static_cast<long long>(played.operations),
            static_cast<long long>(played.errors));
  });
  (void)at_end;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const absl::Status status = target.play(input, &played);
  if (status.ok()) return 0;
  kvtier::fuzz::Report(target, kvtier::fuzz::Shrink(target, input), status);
  abort();
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max,
                                          unsigned int seed) {
  static const kvtier::fuzz::Target target = kvtier::fuzz::GetTarget();
  // Bytes as they come reach what a mutator that knows the form never makes.
  if (target.mutate == nullptr || seed % 8 == 0) return LLVMFuzzerMutate(data, size, size_max);
  kvtier::fuzz::Random random(seed);
  const std::string made =
      target.mutate(absl::string_view(reinterpret_cast<const char*>(data), size), random);
  if (made.size() > size_max) return size;
  std::copy(made.begin(), made.end(), data);
  return made.size();
}

#else

int main(int argc, char** argv) {
  return kvtier::fuzz::Main(std::vector<std::string>(argv + 1, argv + argc));
}

#endif
