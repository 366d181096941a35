#include "client/request.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cache_state.h"
#include "client/error.h"
#include "kernels/layout.h"

namespace kvtier::client {

Request::Request(std::shared_ptr<CacheState> state, std::string id, int32_t region)
    : state_(std::move(state)), id_(std::move(id)), region_(region) {
  if (!state_->device().host_readable()) table_.assign(state_->shape().max_blocks, kNone);
}

Request::Request(Request&& other) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  if (this == &other) return *this;
  ReleaseQuietly();
  state_ = std::move(other.state_);
  id_ = std::move(other.id_);
  region_ = other.region_;
  released_ = other.released_;
  table_ = std::move(other.table_);
  return *this;
}

Request::~Request() { ReleaseQuietly(); }

void Request::ReleaseQuietly() {
  if (state_ != nullptr && !released_ && state_->CheckCall().ok()) (void)Release();
}

absl::StatusOr<AssignedBlocks> Request::AssignBlocks(int32_t count, const SharedBlocks& shared,
                                                     std::span<const int64_t> tags) {
  v1::AssignBlocksRequest message;
  message.set_request_id(id_);
  message.set_count(count);
  message.mutable_shared_block_ids()->Add(shared.block_ids.begin(), shared.block_ids.end());
  message.mutable_shared_generations()->Add(shared.generations.begin(), shared.generations.end());
  message.mutable_block_tags()->Add(tags.begin(), tags.end());
  absl::StatusOr<v1::AssignBlocksResponse> answer =
      state_->Call("AssignBlocks", &v1::KvTier::Stub::AssignBlocks, std::move(message));
  if (!answer.ok()) {
    if (ErrorReasonOf(answer.status()).empty()) RefreshTable();  // perhaps only the answer is lost
    return answer.status();
  }
  for (const int32_t block : answer->block_ids()) {
    if (block >= 0 && block < state_->shape().block_count) continue;
    return MalformedAnswer(
        absl::StrCat("AssignBlocks gave block ", block, " of ", state_->shape().block_count));
  }
  for (int i = 0; i < answer->block_ids_size(); ++i) {
    const int64_t entry = int64_t{answer->table_index()} + i;
    if (entry >= 0 && entry < static_cast<int64_t>(table_.size())) {
      table_[entry] = answer->block_ids(i);
    }
  }
  return AssignedBlocks{.block_ids = {answer->block_ids().begin(), answer->block_ids().end()},
                        .generations = {answer->generations().begin(), answer->generations().end()},
                        .table_index = answer->table_index(),
                        .invalidated_copies = answer->invalidated_copies()};
}

absl::StatusOr<int32_t> Request::FreeBlocks(std::span<const int32_t> blocks) {
  v1::FreeBlocksRequest message;
  message.set_request_id(id_);
  message.mutable_block_ids()->Add(blocks.begin(), blocks.end());
  absl::StatusOr<v1::FreeBlocksResponse> answer =
      state_->Call("FreeBlocks", &v1::KvTier::Stub::FreeBlocks, std::move(message));
  if (!answer.ok()) {
    if (ErrorReasonOf(answer.status()).empty()) RefreshTable();
    return answer.status();
  }
  // The daemon's own write may still be behind other work.
  for (int32_t& block : table_) {
    if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) block = kNone;
  }
  return answer->blocks_freed();
}

absl::StatusOr<int32_t> Request::Release() {
  v1::ReleaseRequestRequest message;
  message.set_request_id(id_);
  absl::StatusOr<v1::ReleaseRequestResponse> answer =
      state_->Call("ReleaseRequest", &v1::KvTier::Stub::ReleaseRequest, std::move(message));
  released_ = released_ || answer.ok() || absl::IsNotFound(answer.status());
  if (!answer.ok()) return answer.status();
  return answer->blocks_freed();
}

void Request::RefreshTable() {
  if (table_.empty()) return;
  const int32_t* row = state_->memory().view().block_table.data() +
                       int64_t{region_} * static_cast<int64_t>(table_.size());
  // A device that cannot be read any more has no blocks for anybody.
  const auto bytes = static_cast<int64_t>(table_.size() * sizeof(int32_t));
  if (!state_->device().Read(table_.data(), row, bytes).ok()) {
    std::fill(table_.begin(), table_.end(), kNone);
  }
}

std::span<const int32_t> Request::block_table() const {
  if (!table_.empty()) return table_;
  const int32_t max_blocks = state_->shape().max_blocks;
  return state_->memory().view().block_table.subspan(int64_t{region_} * max_blocks, max_blocks);
}

int32_t Request::SlotOf(int32_t position) const {
  const std::span<const int32_t> table = block_table();
  return ResolveSlot(table.data(), static_cast<int32_t>(table.size()), state_->shape().block_size,
                     /*sequence_length=*/kNone, position);
}

void Request::SetSequenceLength(int32_t length) {
  int32_t& place = state_->memory().view().sequence_lengths[region_];
  if (state_->device().host_readable()) {
    std::atomic_ref<int32_t>(place).store(length, std::memory_order_release);
  } else {
    (void)state_->device().Write(&place, &length, sizeof(length));
  }
}

}  // namespace kvtier::client
