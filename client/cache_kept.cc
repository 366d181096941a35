// Blocks that outlived the sessions that held them.
#include "client/cache.h"
#include "client/cache_state.h"
#include "client/error.h"

namespace kvtier::client {

absl::StatusOr<std::vector<v1::KeptBlock>> Cache::ListKeptBlocks() const {
  std::vector<v1::KeptBlock> blocks;
  v1::ListKeptBlocksRequest message;
  message.set_page_size(1000);
  do {
    absl::StatusOr<v1::ListKeptBlocksResponse> page =
        state_->Call("ListKeptBlocks", &v1::KvTier::Stub::ListKeptBlocks, message);
    if (!page.ok()) return page.status();
    blocks.insert(blocks.end(), page->blocks().begin(), page->blocks().end());
    // A page that leads nowhere must not be asked for without end.
    if (page->next_page_token() == message.page_token()) break;
    message.set_page_token(page->next_page_token());
  } while (!message.page_token().empty());
  return blocks;
}

}  // namespace kvtier::client
