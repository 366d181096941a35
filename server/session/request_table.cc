#include "server/session/request_table.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/layout.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

// Regions of released requests come back within a step or so; nobody waits longer for one.
constexpr absl::Duration kRegionWaitMax = absl::Seconds(1);

}  // namespace

RequestTable::RequestTable(std::string session_id, std::string cache, int32_t max_requests,
                           int32_t max_blocks, const Clock* clock)
    : session_id_(std::move(session_id)),
      cache_(std::move(cache)),
      clock_(clock),
      regions_(max_requests),
      table_(max_requests, max_blocks) {}

absl::StatusOr<RequestTable::Admission> RequestTable::BeginAdmit(absl::string_view id,
                                                                 int32_t reserve_blocks,
                                                                 int64_t holder, bool draining,
                                                                 const Patience& patience) {
  const Patience for_region = patience.Until(clock_->Now() + kRegionWaitMax);
  MutexLock lock(&mutex_);
  while (true) {
    if (closed_) return Closed();
    const auto found = entries_.find(id);
    if (found != entries_.end()) {
      const Entry& entry = found->second;
      if (entry.request.reserve_blocks != reserve_blocks) {
        return MakeError(absl::StatusCode::kAlreadyExists, "ID_CONFLICT",
                         absl::StrCat("request '", id, "' is admitted with reserve_blocks ",
                                      entry.request.reserve_blocks, ", not ", reserve_blocks),
                         {{"request_id", std::string(id)}});
      }
      if (entry.admitted && !entry.in_use) return Admission{entry.request, true};
      // Being admitted, changed or released by another call: what that leaves decides.
      if (!WaitForChange(&changed_, &mutex_, *clock_, patience)) {
        return DeadlinePassed("another call on the same request was not done in time");
      }
      continue;
    }
    if (draining) return Draining();
    if (const std::optional<int32_t> region = regions_.Take()) {
      regions_end_ = regions_.end();
      const Request request = {std::string(id), holder, *region, reserve_blocks};
      entries_.emplace(request.id, Entry{request, /*admitted=*/false, /*in_use=*/true});
      return Admission{request, false};
    }
    if (regions_returning_ == 0 || !WaitForChange(&changed_, &mutex_, *clock_, for_region)) {
      return RegionsExhausted();
    }
  }
}

absl::Status RequestTable::CommitAdmit(absl::string_view id) {
  MutexLock lock(&mutex_);
  if (closed_) return Closed();
  Entry& entry = entries_.find(id)->second;
  entry.admitted = true;
  entry.in_use = false;
  changed_.NotifyAll();
  return absl::OkStatus();
}

void RequestTable::AbortAdmit(absl::string_view id) {
  MutexLock lock(&mutex_);
  entries_.erase(entries_.find(id));
  ++regions_returning_;
  changed_.NotifyAll();
}

void RequestTable::ReturnRegion(int32_t region) {
  MutexLock lock(&mutex_);
  regions_.Return(region);
  regions_end_ = regions_.end();
  --regions_returning_;
  changed_.NotifyAll();
}

absl::StatusOr<RequestTable::Use> RequestTable::Acquire(absl::string_view id,
                                                        const Patience& patience) {
  MutexLock lock(&mutex_);
  while (true) {
    if (closed_) return Closed();
    const auto found = entries_.find(id);
    if (found == entries_.end()) return RequestUnknown(id);
    Entry& entry = found->second;
    if (!entry.in_use) {
      entry.in_use = true;
      return Use(this, entry.request);
    }
    if (!WaitForChange(&changed_, &mutex_, *clock_, patience)) {
      return DeadlinePassed("another call on the same request was not done in time");
    }
  }
}

absl::Status RequestTable::CheckOpen() const {
  MutexLock lock(&mutex_);
  return closed_ ? Closed() : absl::OkStatus();
}

absl::Status RequestTable::Remove(const Use& use) {
  MutexLock lock(&mutex_);
  if (closed_) return Closed();
  entries_.erase(use.request().id);
  ++regions_returning_;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> RequestTable::RegionsOf(
    const std::vector<absl::string_view>& ids) const {
  std::vector<int32_t> regions;
  regions.reserve(ids.size());
  MutexLock lock(&mutex_);
  if (closed_) return Closed();
  for (const absl::string_view id : ids) {
    if (id.empty()) {
      regions.push_back(kNone);
      continue;
    }
    const auto found = entries_.find(id);
    if (found == entries_.end() || !found->second.admitted) {
      return RequestUnknown(id, static_cast<int>(regions.size()));
    }
    regions.push_back(found->second.request.region);
  }
  return regions;
}

void RequestTable::EditTable(const std::function<void(BlockTableImage&)>& edit) {
  MutexLock lock(&mutex_);
  edit(table_);
}

void RequestTable::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

bool RequestTable::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

std::vector<int64_t> RequestTable::Holders() const {
  std::vector<int64_t> holders;
  MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) holders.push_back(entry.request.holder);
  return holders;
}

std::vector<RequestTable::Row> RequestTable::Rows() const {
  std::vector<Row> rows;
  MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) {
    if (!entry.admitted) continue;
    const std::vector<int32_t>& blocks = table_.row(entry.request.region);
    const auto empty = std::count(blocks.begin(), blocks.end(), kNone);
    rows.push_back({entry.request, static_cast<int32_t>(blocks.size() - empty)});
  }
  return rows;
}

int32_t RequestTable::request_count() const {
  MutexLock lock(&mutex_);
  return static_cast<int32_t>(std::count_if(entries_.begin(), entries_.end(),
                                            [](const auto& item) { return item.second.admitted; }));
}

// The request may have been removed, and its id admitted anew, while it was in use.
void RequestTable::EndUse(const Request& request) {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(request.id);
  if (found != entries_.end() && found->second.request.holder == request.holder) {
    found->second.in_use = false;
  }
  changed_.NotifyAll();
}

absl::Status RequestTable::Closed() const { return SessionClosed(session_id_); }

absl::Status RequestTable::RegionsExhausted() const {
  const int32_t limit = regions_.region_count();
  return MakeRetryableError(
      absl::StatusCode::kResourceExhausted, "REGIONS_EXHAUSTED",
      absl::StrCat("all ", limit, " regions of cache ", cache_,
                   " are taken in this session; release a request (max_requests of the layout)"),
      kBusyRetryDelay,
      {{"cache", cache_},
       {"used", absl::StrCat(limit - regions_.free_count())},
       {"limit", absl::StrCat(limit)}});
}

}  // namespace kvtier
