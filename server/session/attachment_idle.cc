// What takes no waiting, and perhaps no device, while the device stream has nothing to do.
//
// That all work is done is known by the notifications that speak for it. On a GPU no more follows
// than that what waits for it need not ask; where the device is the host, the calling thread may do
// the stream's next work itself, under the enqueue lock, so that nothing can come in between.

#include "kernels/counters.h"
#include "server/core/status_macros.h"
#include "server/session/attachment.h"
#include "server/session/cache.h"

namespace kvtier {

std::optional<int64_t> Attachment::InvalidateHere(const std::vector<int32_t>& blocks) {
  int64_t dropped = 0;
  MutexLock lock(&enqueue_mutex_);
  if (!BeginHereLocked()) return std::nullopt;
  const absl::Status done = RunLocked(
      [&](DeviceStream* stream, const HotTier& tier) -> absl::Status {
        const int32_t regions = requests_.regions_end();
        for (int g = 0; g < tier.group_count() && !blocks.empty(); ++g) {
          int64_t before = 0, after = 0;
          KVTIER_RETURN_IF_ERROR(
              tier.EnqueueInvalidate(stream, g, regions, blocks, &before, &after));
          dropped = WrappingSum(dropped, WrappingDifference(after, before));
        }
        return absl::OkStatus();
      },
      nullptr);
  EndHereLocked();
  return done.ok() ? std::optional<int64_t>(dropped) : std::nullopt;
}

bool Attachment::IdleLocked() const {
  return !unnotified_ && use_->waiting() == 0 && waiting_.empty() && contexts_.empty() &&
         changes_.empty();
}

bool Attachment::BeginHereLocked() {
  return HostReadable() && stream_ != nullptr && !draining_ && IdleLocked() && stream_->BeginHere();
}

void Attachment::EndHereLocked() {
  stream_->EndHere();
  unnotified_ = false;
  contexts_.clear();
  changes_.clear();
}

bool Attachment::HasPassedLocked() {
  if (!IdleLocked()) return false;
  bool is_pending = false;
  requests_.EditTable([&](BlockTableImage& table) { is_pending = table.has_changes(); });
  if (!is_pending) return true;
  if (!BeginHereLocked()) return false;
  const bool flushed = FlushTableLocked().ok();
  EndHereLocked();
  return flushed;
}

}  // namespace kvtier
