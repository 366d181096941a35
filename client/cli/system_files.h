// What the kernel says in files, under a root that tests choose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvtier::cli {

class SystemFiles {
 public:
  explicit SystemFiles(std::string root) : root_(std::move(root)) {}

  // At most 64 KiB, without white space at the ends; nothing where it cannot be read.
  std::optional<std::string> Read(absl::string_view path) const;
  std::optional<int64_t> ReadNumber(absl::string_view path) const;
  // Names in a folder, sorted; none where there is none.
  std::vector<std::string> List(absl::string_view path) const;
  bool Exists(absl::string_view path) const;
  std::string PathOf(absl::string_view path) const { return root_ + std::string(path); }

 private:
  const std::string root_;
};

// The rest of the first line of `text` that begins with `name`, without blanks; "" without one.
std::string LineValue(absl::string_view text, absl::string_view name);

}  // namespace kvtier::cli
