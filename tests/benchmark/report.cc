#include "tests/benchmark/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace kvtier::testing {
namespace {

[[noreturn]] void Fail(const std::string& complaint) {
  std::fprintf(stderr, "%s\n", complaint.c_str());
  std::exit(2);
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= ' ') quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

BenchmarkFlags::BenchmarkFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--")) Fail("not an option: " + argument);
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    given_[argument.substr(2, has_value ? equals - 2 : equals)] =
        has_value ? argument.substr(equals + 1) : "";
  }
}

bool BenchmarkFlags::Has(const std::string& name) {
  known_.insert(name);
  return given_.contains(name);
}

std::string BenchmarkFlags::Text(const std::string& name, const std::string& otherwise) {
  return Has(name) ? given_[name] : otherwise;
}

int32_t BenchmarkFlags::Number(const std::string& name, int32_t otherwise) {
  return Numbers(name, {otherwise}).at(0);
}

std::vector<int32_t> BenchmarkFlags::Numbers(const std::string& name,
                                             const std::vector<int32_t>& otherwise) {
  if (!Has(name)) return otherwise;
  std::vector<int32_t> numbers;
  std::istringstream list(given_[name]);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    const int64_t number = std::strtoll(item.c_str(), &end, 10);
    if (item.empty() || *end != 0) Fail("--" + name + ": not a number: " + item);
    numbers.push_back(static_cast<int32_t>(number));
  }
  if (numbers.empty()) Fail("--" + name + " needs a number");
  return numbers;
}

void BenchmarkFlags::RequireNoOthers() const {
  for (const auto& [name, value] : given_) {
    if (!known_.contains(name)) Fail("no such option: --" + name);
  }
}

JsonObject& JsonObject::Add(const std::string& name, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return AddJson(name, std::isfinite(value) ? text : "null");
}

JsonObject& JsonObject::Add(const std::string& name, int64_t value) {
  return AddJson(name, std::to_string(value));
}

JsonObject& JsonObject::Add(const std::string& name, const std::string& value) {
  return AddJson(name, Quoted(value));
}

JsonObject& JsonObject::AddJson(const std::string& name, const std::string& json) {
  if (!body_.empty()) body_ += ", ";
  body_ += Quoted(name) + ": " + json;
  return *this;
}

std::string JsonList(const std::vector<std::string>& elements) {
  std::string list = "[";
  for (const std::string& element : elements) list += (list == "[" ? "\n  " : ",\n  ") + element;
  return list + "\n]";
}

void WriteText(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text << "\n";
  file.close();
  if (!file) Fail("cannot write " + path);
}

std::string MachinePath(const std::string& json_path) {
  if (json_path.empty()) return "";
  const size_t dot = json_path.rfind(".json");
  return json_path.substr(0, dot) + "_machine.json";
}

std::string LineOf(const std::string& path, const std::string& prefix) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(prefix)) continue;
    const size_t begin = line.find_first_not_of(": \t", prefix.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

JsonObject DescribeMachine() {
  JsonObject machine;
  utsname system;
  (void)uname(&system);
  machine.Add("cpu", LineOf("/proc/cpuinfo", "model name"))
      .Add("cpu_threads", static_cast<int64_t>(std::thread::hardware_concurrency()))
      .Add("kernel", std::string(system.sysname) + " " + system.release)
      .Add("memory", LineOf("/proc/meminfo", "MemTotal"))
      .Add("huge_pages", LineOf("/sys/kernel/mm/transparent_hugepage/enabled", ""))
      .Add("huge_pages_shared", LineOf("/sys/kernel/mm/transparent_hugepage/shmem_enabled", ""));
  return machine;
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[static_cast<size_t>(std::clamp<int64_t>(rank - 1, 0, std::ssize(values) - 1))];
}

}  // namespace kvtier::testing
