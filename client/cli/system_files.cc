#include "client/cli/system_files.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace kvtier::cli {
namespace {

constexpr size_t kFileBytesMax = 64 << 10;

}  // namespace

std::optional<std::string> SystemFiles::Read(absl::string_view path) const {
  std::ifstream file(PathOf(path));
  if (!file) return std::nullopt;
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StripAsciiWhitespace(&text);
  return text;
}

std::optional<int64_t> SystemFiles::ReadNumber(absl::string_view path) const {
  const std::optional<std::string> text = Read(path);
  int64_t number = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &number)) return std::nullopt;
  return number;
}

std::vector<std::string> SystemFiles::List(absl::string_view path) const {
  std::vector<std::string> names;
  DIR* folder = opendir(PathOf(path).c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

bool SystemFiles::Exists(absl::string_view path) const {
  return access(PathOf(path).c_str(), F_OK) == 0;
}

std::string LineValue(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::StartsWith(line, name)) {
      return std::string(absl::StripAsciiWhitespace(line.substr(name.size())));
    }
  }
  return "";
}

}  // namespace kvtier::cli
