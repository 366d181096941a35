// What benchmarks are told on the command line, and what they leave for tools/bench.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvtier::testing {

// The exit status of a benchmark that could not measure anything here.
inline constexpr int kSkipped = 77;

// Options of the form --name=value or --name. Ends the process on an argument of another form, and
// in RequireNoOthers() on one that nobody asked for.
class BenchmarkFlags {
 public:
  BenchmarkFlags(int argc, char** argv);

  bool Has(const std::string& name);
  std::string Text(const std::string& name, const std::string& otherwise);
  int32_t Number(const std::string& name, int32_t otherwise);
  // Numbers between commas.
  std::vector<int32_t> Numbers(const std::string& name, const std::vector<int32_t>& otherwise);
  void RequireNoOthers() const;

 private:
  std::map<std::string, std::string> given_;
  std::set<std::string> known_;
};

// {"name": value, ...} in the order of Add().
class JsonObject {
 public:
  JsonObject& Add(const std::string& name, double value);
  JsonObject& Add(const std::string& name, int64_t value);
  JsonObject& Add(const std::string& name, int32_t value) { return Add(name, int64_t{value}); }
  JsonObject& Add(const std::string& name, const std::string& value);
  // `json` as it is.
  JsonObject& AddJson(const std::string& name, const std::string& json);
  std::string ToString() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

// "[\n a,\n b\n]".
std::string JsonList(const std::vector<std::string>& elements);

// Nothing if `path` is empty. Ends the process if the file can't be written.
void WriteText(const std::string& path, const std::string& text);

// "out/a.json" -> "out/a_machine.json".
std::string MachinePath(const std::string& json_path);

// Who measures: CPU, kernel, memory.
JsonObject DescribeMachine();

// The first line of the file at `path` that begins with `prefix`, without it and what separates it
// from the rest; "" if there is none.
std::string LineOf(const std::string& path, const std::string& prefix);

// The value below which a share of the values lies (nearest rank). Not of no values.
double Percentile(std::vector<double> values, double share);

}  // namespace kvtier::testing
