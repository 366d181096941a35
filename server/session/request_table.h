// The requests of one session on one cache: their regions and block tables.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/hot_tier/block_table_image.h"
#include "server/hot_tier/region_allocator.h"
#include "server/session/patience.h"

namespace kvtier {

struct Request {
  std::string id;
  int64_t holder = 0;  // in the block ledger
  int32_t region = 0;
  int32_t reserve_blocks = 0;  // as asked for at admission
};

// Control verbs on one request exclude one another: each holds a Use while it works (and waits
// for devices), others wait for it until their deadline. Data-plane verbs only ask for regions.
//
// A region is free again only when ReturnRegion says so: when the device stream has passed all
// work of the request that had it. Thread-safe.
class RequestTable {
 public:
  // Exclusive use of one request by one control verb. Gives it back when destroyed. The table
  // must outlive it.
  class Use {
   public:
    Use(RequestTable* table, Request request) : table_(table), request_(std::move(request)) {}
    Use(Use&& other) noexcept : table_(other.table_), request_(std::move(other.request_)) {
      other.table_ = nullptr;
    }
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (table_ != nullptr) table_->EndUse(request_);
    }
    const Request& request() const { return request_; }

   private:
    RequestTable* table_;
    const Request request_;
  };

  struct Admission {
    Request request;
    bool existing = false;  // admitted before with the same arguments
  };

  RequestTable(std::string session_id, std::string cache, int32_t max_requests, int32_t max_blocks,
               const Clock* clock);

  // Takes a region for a new request, which the caller then commits or aborts. Waits for a
  // release of the same id, and up to a second for regions that are about to be free. Errors:
  // ID_CONFLICT, REGIONS_EXHAUSTED, DRAINING (new ones only), SESSION_CLOSED, DEADLINE.
  absl::StatusOr<Admission> BeginAdmit(absl::string_view id, int32_t reserve_blocks, int64_t holder,
                                       bool draining, const Patience& patience);
  // Data-plane verbs find the request from now on. Errors: SESSION_CLOSED.
  absl::Status CommitAdmit(absl::string_view id);
  // The id is free again; the region is not until ReturnRegion.
  void AbortAdmit(absl::string_view id);
  void ReturnRegion(int32_t region);

  // Errors: REQUEST_UNKNOWN, SESSION_CLOSED, DEADLINE.
  absl::StatusOr<Use> Acquire(absl::string_view id, const Patience& patience);
  // The commit point of a verb that changes a request. Errors: SESSION_CLOSED.
  absl::Status CheckOpen() const;
  // The id is unknown from now on; the region is not free until ReturnRegion.
  absl::Status Remove(const Use& use);

  // Regions of the requests of a batch's rows ("" = padding: kNone), in one look. Errors:
  // REQUEST_UNKNOWN with the row, SESSION_CLOSED.
  absl::StatusOr<std::vector<int32_t>> RegionsOf(const std::vector<absl::string_view>& ids) const;

  // Changes or reads the block table; `edit` must not call back.
  void EditTable(const std::function<void(BlockTableImage&)>& edit);

  // Every verb fails with SESSION_CLOSED from now on.
  void Close();
  bool closed() const;

  // Ledger holders of all requests, also of those being admitted.
  std::vector<int64_t> Holders() const;
  struct Row {
    Request request;
    int32_t blocks = 0;
  };
  std::vector<Row> Rows() const;  // by id
  int32_t request_count() const;
  // Regions at or past it have no request, nor work of a former one in front of them. A region that
  // is taken later is emptied before anybody may use it.
  int32_t regions_end() const { return regions_end_.load(); }

 private:
  struct Entry {
    Request request;
    bool admitted, in_use;
  };

  void EndUse(const Request& request);
  absl::Status Closed() const;
  absl::Status RegionsExhausted() const KVTIER_REQUIRES(mutex_);

  const std::string session_id_, cache_;
  const Clock* const clock_;

  mutable Mutex mutex_;  // rank: attachment
  CondVar changed_;
  bool closed_ KVTIER_GUARDED_BY(mutex_) = false;
  absl::btree_map<std::string, Entry> entries_ KVTIER_GUARDED_BY(mutex_);
  RegionAllocator regions_ KVTIER_GUARDED_BY(mutex_);
  std::atomic<int32_t> regions_end_{0};  // as regions_ says, for who takes no lock
  int32_t regions_returning_ KVTIER_GUARDED_BY(mutex_) = 0;
  BlockTableImage table_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
