// A mapped file in a pool folder: on tmpfs or hugetlbfs, of this user alone.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"

namespace kvtier {

// Where a folder's files are: its descriptor, and the size that their pages have.
struct FolderView {
  int fd = -1;
  int64_t page_bytes = 0;
};

// Owns a read-write mapping of the whole file. hugetlbfs knows no write(): everything goes through
// the mapping.
class PoolFile {
 public:
  // Under a passing name until Commit: a crash before leaves nothing that counts. All pages are
  // taken, so that no access can fault. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED.
  static absl::StatusOr<PoolFile> Create(const FolderView& folder, const std::string& name,
                                         int64_t bytes);
  // Errors: NOT_FOUND; DATA_LOSS for what is not ours alone, is empty, or shrank to part of a page;
  // else as CannotRead.
  static absl::StatusOr<PoolFile> Open(const FolderView& folder, const std::string& name);

  PoolFile() = default;  // no file
  PoolFile(PoolFile&& other) noexcept;
  PoolFile& operator=(PoolFile&& other) noexcept;
  ~PoolFile();

  bool valid() const { return data_ != nullptr; }
  const std::string& name() const { return name_; }
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Gives it its name: from here on a later daemon finds it.
  absl::Status Commit();
  // Takes the name away; memory that others have mapped stays theirs. Where the system does not let
  // it, the first bytes are wiped: no later daemon takes it for a manifest.
  void Remove() const;
  // For workers: cannot be mapped with write access.
  absl::StatusOr<UniqueFd> OpenReadOnly() const;

 private:
  absl::Status Map(int fd);
  std::string PresentName() const { return committed_ ? name_ : name_ + ".new"; }

  FolderView folder_;
  std::string name_;
  bool committed_ = false;
  uint8_t* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// OK if the open file is regular, has one name, and belongs to this user, who alone may open it.
// Else DATA_LOSS, and the text says why; or as CannotRead.
absl::Status CheckOwnFile(int fd);

// What `error` of a call that only looks at a file says of the file. DATA_LOSS: it is not there, or
// is no file of ours. RESOURCE_EXHAUSTED / LIMIT_REACHED: nothing, as the system is short of
// descriptors, memory or the like; who would drop it then would drop rows that are whole.
absl::Status CannotRead(absl::string_view what, int error);

}  // namespace kvtier
