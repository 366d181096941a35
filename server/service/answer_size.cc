#include "server/service/answer_size.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "proto/support/wire_limits.h"
#include "server/service/retention_proto.h"

namespace kvtier {
namespace {

// Of a few blocks the answer is no larger than others, which take no place either.
constexpr int64_t kBlocksWithoutPlaceMax = 512;

int64_t BytesOf(int64_t blocks, int64_t block_bytes) {
  return blocks > kBlocksWithoutPlaceMax ? blocks * block_bytes : 0;
}

}  // namespace

int64_t AnswerBytesMax(const v1::AssignBlocksRequest& request) {
  // Of each block its id and its generation.
  constexpr int64_t kBlockBytes = 2 * (int64_t{sizeof(int32_t)} + wire::kVarintBytesMax);
  // More are refused.
  const int64_t blocks =
      std::min(int64_t{request.count()} + request.shared_block_ids_size(), wire::kBlocksPerCallMax);
  return BytesOf(blocks, kBlockBytes);
}

int64_t AnswerBytesMax(const v1::ListKeptBlocksRequest& request) {
  // A message with three numbers and a tag, and its place in a list of them.
  constexpr int64_t kBlockBytes =
      int64_t{sizeof(v1::KeptBlock)} + 2 * int64_t{sizeof(void*)} + 5 * wire::kVarintBytesMax;
  const absl::StatusOr<KeptPage> page = KeptPageFromProto(request);
  return page.ok() ? BytesOf(page->size, kBlockBytes) : 0;  // else it is refused
}

}  // namespace kvtier
