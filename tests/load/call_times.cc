#include "tests/load/call_times.h"

#include <cstddef>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvtier::load {

void CallTimes::Add(const std::string& name, float us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  us_[name].push_back(us);
}

void CallTimes::Merge(const CallTimes& other) {
  const auto theirs = other.all();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, us] : theirs) {
    std::vector<float>& ours = us_[name];
    ours.insert(ours.end(), us.begin(), us.end());
  }
}

std::map<std::string, std::vector<float>> CallTimes::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return us_;
}

absl::Status CallTimes::WriteTo(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  for (const auto& [name, us] : all()) {
    file << name << '\n' << us.size() << '\n';
    file.write(reinterpret_cast<const char*>(us.data()),
               static_cast<std::streamsize>(us.size() * sizeof(float)));
  }
  file.close();
  return file.good() ? absl::OkStatus() : absl::DataLossError(absl::StrCat("cannot write ", path));
}

absl::Status CallTimes::MergeFrom(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string name;
  size_t count = 0;
  CallTimes read;
  while (std::getline(file, name)) {
    file >> count;
    file.get();
    std::vector<float>& us = read.us_[name];
    us.resize(count);
    file.read(reinterpret_cast<char*>(us.data()),
              static_cast<std::streamsize>(count * sizeof(float)));
    if (!file.good()) return absl::DataLossError(absl::StrCat(path, " ends early"));
  }
  if (!file.eof()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  Merge(read);
  return absl::OkStatus();
}

}  // namespace kvtier::load
