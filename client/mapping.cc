#include "client/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace kvtier::client {
namespace {

// Are the bytes [offset, offset + size) of `fd` there, and will they stay?
absl::Status CheckDescriptor(const v1::Segment& segment, int fd) {
  const std::string name = absl::StrCat("segment ", segment.segment_index());
  struct stat file;
  if (fstat(fd, &file) != 0) {
    return MalformedAnswer(absl::StrCat(name, ": fstat failed: ", strerror(errno)));
  }
  if (segment.size_bytes() > file.st_size - segment.offset_bytes()) {
    return MalformedAnswer(absl::StrCat(name, ": ", segment.size_bytes(), " bytes from ",
                                        segment.offset_bytes(), ", but its descriptor has ",
                                        file.st_size));
  }
  // A file that shrinks later would make our accesses fault.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return MalformedAnswer(absl::StrCat(name, ": its descriptor is not sealed against shrinking"));
  }
  return absl::OkStatus();
}

class FileMapping final : public Mapping {
 public:
  FileMapping(uint8_t* data, int64_t size_bytes) : Mapping(data, size_bytes) {}
  ~FileMapping() override { munmap(data(), static_cast<size_t>(size_bytes())); }
};

}  // namespace

absl::Status TransportError(const v1::Segment& segment) {
  const std::string name = v1::SegmentTransport_IsValid(segment.transport())
                               ? v1::SegmentTransport_Name(segment.transport())
                               : absl::StrCat("transport ", static_cast<int>(segment.transport()));
  return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                   absl::StrCat("segment ", segment.segment_index(), " is passed by ", name,
                                ", which this client library cannot map on this device"),
                   {{"feature", name}});
}

absl::StatusOr<std::unique_ptr<Mapping>> MapFile(const v1::Segment& segment,
                                                 const RedeemToken& redeem) {
  const std::string name = absl::StrCat("segment ", segment.segment_index());
  if (segment.size_bytes() <= 0 || segment.offset_bytes() < 0 ||
      segment.offset_bytes() % sysconf(_SC_PAGESIZE) != 0) {
    return MalformedAnswer(absl::StrCat(name, " has ", segment.size_bytes(), " bytes from offset ",
                                        segment.offset_bytes()));
  }
  absl::StatusOr<int> fd = redeem(segment.fd_token());
  if (!fd.ok()) return fd.status();
  // A mapping outlives its descriptor.
  const absl::Cleanup close_fd = [fd = *fd] { close(fd); };
  if (absl::Status status = CheckDescriptor(segment, *fd); !status.ok()) return status;

  const int protection = PROT_READ | (segment.read_only() ? 0 : PROT_WRITE);
  void* data = mmap(nullptr, static_cast<size_t>(segment.size_bytes()), protection, MAP_SHARED, *fd,
                    segment.offset_bytes());
  if (data == MAP_FAILED) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
        absl::StrCat(name, ": mapping ", segment.size_bytes(), " bytes failed: ", strerror(errno)),
        {{"requested_bytes", absl::StrCat(segment.size_bytes())}});
  }
  return std::unique_ptr<Mapping>(
      std::make_unique<FileMapping>(static_cast<uint8_t*>(data), segment.size_bytes()));
}

}  // namespace kvtier::client
