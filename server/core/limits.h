// Every limit of the daemon, with its reason.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "kernels/layout.h"

namespace kvtier {

// sockaddr_un.sun_path holds 108 bytes with the terminator.
inline constexpr int kSocketPathBytesMax = 107;
// Names travel in every call and in statistics.
inline constexpr int kNameBytesMax = 128;
inline constexpr int kDtypeTagBytesMax = 64;
// A row is 16-byte vectors; 4096 is twice the widest row known (bf16 MLA: 1152).
inline constexpr int32_t kRowBytesMin = kRowAlignment;
inline constexpr int32_t kRowBytesMax = 4096;
inline constexpr int32_t kScaleBytesMax = 1024;
// Largest models have 61-94 layers.
inline constexpr int32_t kLayersMax = 256;
inline constexpr int32_t kGroupsMax = 64;
inline constexpr int32_t kBlockSizeMax = 4096;
inline constexpr int32_t kRequestsMax = 65536;
inline constexpr int32_t kRowsPerRequestMax = 64;
inline constexpr int32_t kStepRowsMax = 65536;
// Inline data is for operators and tests: 1,024 rows of top_k 2048 answer with about 30 MiB
// of JSON; step buffers carry the rest.
inline constexpr int32_t kInlineRowsMax = 1024;
// Rows times top_k: what an answer carries, and what a call of a few bytes could make us allocate.
inline constexpr int64_t kInlinePositionsMax = int64_t{kInlineRowsMax} * 2048;
inline constexpr int32_t kInlineBackupRowsMax = 4096;
// 1,024 rows x 2,048 positions of 5 varint bytes = 10 MiB.
inline constexpr int32_t kMessageBytesMax = 32 << 20;
// A node has at most 8-16 GPUs with a few processes each; 256 leaves room for tools.
inline constexpr int32_t kSessionsMax = 256;
inline constexpr int32_t kCachesMax = 64;
// Connections over TCP: operators, probes, dashboards. And of one address: an operator's tools, or
// all that come through one proxy.
inline constexpr int32_t kTcpConnectionsMax = 128;
inline constexpr int32_t kTcpConnectionsPerAddress = 32;
// Calls that may wait (attach, assign, release) at a time; more are refused at once.
inline constexpr int32_t kControlThreads = 8;
inline constexpr int32_t kControlQueueMax = 256;
// Operations a session may have enqueued and unfinished.
inline constexpr int32_t kOperationsInFlightMax = 1024;
// What these keep of rows and names that came in messages: as much as the steps of a RunSteps call
// may have between reading and answering, and forty of the largest backups.
inline constexpr int64_t kInlineBytesInFlightMax = int64_t{32} << 20;
// A call without a deadline is given this one, and a later one of the client's ends here as well: a
// control thread is not held for longer by a device that stands still.
inline constexpr absl::Duration kCallDurationMax = absl::Seconds(30);
// The same for an attach that says when it must be done: it may have hundreds of GiB to wipe, and
// the whole pool to register with a GPU's driver.
inline constexpr absl::Duration kAttachDurationMax = absl::Minutes(10);
// A device that ends nothing of what it was given for so long does nothing any more: the largest
// backup of a call takes a second, and another process's kernels give way after milliseconds.
inline constexpr absl::Duration kDevicePatience = absl::Seconds(10);
// Pieces in which host memory is pinned: one huge pin stalls every process on the node.
inline constexpr int64_t kPinChunkBytes = int64_t{1} << 30;
// Parts of the pool start at huge-page boundaries, so that a worker can map and pin its own.
inline constexpr int64_t kPoolAlignmentBytes = int64_t{2} << 20;
// Rows of one request lie together in pieces of so much a layer: beyond it a gather from a large
// pool gains little (docs/adr/0012-neighbourhoods.md).
inline constexpr int64_t kNeighbourhoodBytes = int64_t{2} << 20;
// A search inside one neighbourhood must stay short, however small the blocks are.
inline constexpr int32_t kNeighbourhoodBlocksMax = 4096;
// Arrays inside a segment start here: enough for any vector copy and for a cache line pair.
inline constexpr int64_t kArrayAlignmentBytes = 256;

static_assert(kRowBytesMax % kRowAlignment == 0);
static_assert(kArrayAlignmentBytes % kRowAlignment == 0);
static_assert(kPinChunkBytes % kPoolAlignmentBytes == 0);
static_assert(kControlQueueMax >= kControlThreads);
static_assert(kAttachDurationMax >= kCallDurationMax);
static_assert(kTcpConnectionsPerAddress <= kTcpConnectionsMax);

}  // namespace kvtier
