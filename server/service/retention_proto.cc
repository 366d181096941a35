#include "server/service/retention_proto.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

constexpr int32_t kPageSizeDefault = 100;
constexpr int32_t kPageSizeMax = 1000;

}  // namespace

AttachOptions AttachOptionsFromProto(const v1::AttachCacheRequest& request) {
  AttachOptions options;
  options.replace_kept = request.replace_kept();
  if (request.has_share()) {
    const v1::Sharing& share = request.share();
    options.share = {.everybody = share.everybody(),
                     .uids = SortedOnce({share.uids().begin(), share.uids().end()}),
                     .gids = SortedOnce({share.gids().begin(), share.gids().end()})};
  }
  if (!request.has_retain()) return options;
  const v1::Retention& retain = request.retain();
  options.retain = {.blocks_max = retain.has_blocks_max() ? retain.blocks_max()
                                                          : std::numeric_limits<int32_t>::max(),
                    .duration = absl::Seconds(retain.duration().seconds()) +
                                absl::Nanoseconds(retain.duration().nanos())};
  return options;
}

v1::Retention ToProto(const Retention& retention) {
  v1::Retention to;
  to.set_blocks_max(retention.blocks_max);
  absl::Duration rest = retention.duration;
  to.mutable_duration()->set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
  to.mutable_duration()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return to;
}

v1::Sharing ToProto(const Sharing& sharing) {
  v1::Sharing to;
  to.set_everybody(sharing.everybody);
  to.mutable_uids()->Add(sharing.uids.begin(), sharing.uids.end());
  to.mutable_gids()->Add(sharing.gids.begin(), sharing.gids.end());
  return to;
}

absl::StatusOr<KeptPage> KeptPageFromProto(const v1::ListKeptBlocksRequest& request) {
  KeptPage page = {.size = request.has_page_size() ? request.page_size() : kPageSizeDefault};
  if (page.size < 1 || page.size > kPageSizeMax) {
    return FieldInvalid("page_size", absl::StrCat(page.size), absl::StrCat("1..", kPageSizeMax));
  }
  if (request.page_token().empty()) return page;
  if (absl::SimpleAtoi(request.page_token(), &page.first) && page.first >= 0) return page;
  return FieldInvalid("page_token", "unknown", "empty or the next_page_token of the page before");
}

v1::ListKeptBlocksResponse KeptBlocksToProto(const std::vector<KeptBlockInfo>& blocks,
                                             int32_t page_size) {
  v1::ListKeptBlocksResponse to;
  for (const KeptBlockInfo& block : blocks) {
    if (to.blocks_size() == page_size) {
      to.set_next_page_token(absl::StrCat(block.block_id));
      break;
    }
    v1::KeptBlock* const one = to.add_blocks();
    one->set_block_id(block.block_id);
    one->set_generation(block.generation);
    one->set_tag(block.tag);
    one->set_rows_backed(block.rows_backed);
  }
  return to;
}

}  // namespace kvtier
