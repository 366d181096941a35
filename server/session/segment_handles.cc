#include "server/session/segment_handles.h"

#include <utility>

#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

absl::StatusOr<UniqueFd> Duplicate(const UniqueFd& fd) {
  UniqueFd copy = fd.Duplicate();
  if (copy.valid()) return copy;
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   "the daemon has no file descriptor left for a segment; raise its limit "
                   "(ulimit -n)",
                   {{"limit", "file descriptors"}});
}

}  // namespace

absl::Status SegmentHandles::AddFd(SegmentKind kind, const SharedRange& range, bool read_only) {
  Handle handle;
  KVTIER_ASSIGN_OR_RETURN(handle.fd, Duplicate(*range.fd));
  handle.info = {.kind = kind,
                 .transport = MemoryHandle::Transport::kPosixFd,
                 .size_bytes = range.size_bytes,
                 .offset_bytes = range.offset_bytes,
                 .read_only = read_only,
                 .sealed = range.sealed};
  handles_.push_back(std::move(handle));
  return absl::OkStatus();
}

absl::Status SegmentHandles::AddDevice(SegmentKind kind, const DeviceMemory& memory) {
  KVTIER_ASSIGN_OR_RETURN(MemoryHandle exported, memory.Export());
  Handle handle;
  handle.info = {.kind = kind,
                 .transport = exported.transport,
                 .size_bytes = memory.size_bytes(),
                 .offset_bytes = exported.offset_bytes};
  if (exported.transport == MemoryHandle::Transport::kCudaIpc) {
    handle.info.ipc_handle.assign(exported.ipc_handle.begin(), exported.ipc_handle.end());
  } else {
    handle.fd = std::move(exported.fd);
  }
  handles_.push_back(std::move(handle));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SegmentInfo>> SegmentHandles::Issue(absl::string_view session_id,
                                                               absl::string_view cache,
                                                               TokenTable* tokens) const {
  std::vector<SegmentInfo> segments;
  for (const Handle& handle : handles_) {
    SegmentInfo segment = handle.info;
    if (segment.transport != MemoryHandle::Transport::kCudaIpc) {
      KVTIER_ASSIGN_OR_RETURN(UniqueFd fd, Duplicate(handle.fd));
      KVTIER_ASSIGN_OR_RETURN(segment.fd_token, tokens->Issue(session_id, cache, std::move(fd)));
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace kvtier
