// What goes beyond a session, as messages say it: retention, sharing, kept blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"
#include "server/session/retention.h"

namespace kvtier {

// Limits are the node's to check.
AttachOptions AttachOptionsFromProto(const v1::AttachCacheRequest& request);

v1::Retention ToProto(const Retention& retention);
v1::Sharing ToProto(const Sharing& sharing);

// Which kept blocks a page has: by id from `first` on.
struct KeptPage {
  int32_t first = 0;
  int32_t size = 0;
};
// Errors: FIELD_INVALID.
absl::StatusOr<KeptPage> KeptPageFromProto(const v1::ListKeptBlocksRequest& request);
// The first `page_size` of `blocks`; one more says that there is a next page.
v1::ListKeptBlocksResponse KeptBlocksToProto(const std::vector<KeptBlockInfo>& blocks,
                                             int32_t page_size);

}  // namespace kvtier
