// Sizes on the wire that server and client agree on, with their reasons.
#pragma once

#include <cstdint>

namespace kvtier::wire {

// A positive int32 and a zigzag-coded one take at most this many bytes.
inline constexpr int64_t kVarintBytesMax = 5;
// Names (request ids, caches) are at most 128 bytes; tags, lengths and small fields of a row.
inline constexpr int64_t kRowOverheadBytesMax = 256;

// Rows of one inline SwapIn.
inline constexpr int64_t kInlineRowsMax = 1024;
// Positions of one inline SwapIn, rows x top_k: its answer has four numbers for each.
inline constexpr int64_t kInlinePositionsMax = kInlineRowsMax * 2048;
// Rows of one inline Backup.
inline constexpr int64_t kInlineBackupRowsMax = 4096;
// Blocks named in one call (assign, free, invalidate).
inline constexpr int64_t kBlocksPerCallMax = int64_t{1} << 21;

// Largest request that the daemon takes. gRPC's default of 4 MiB is too little for 256 rows of
// 2,048 positions from a client that encodes -1 badly.
inline constexpr int kMessageBytesMax = 32 << 20;
// Of that, what requests of one kind may be: who sends more has made a mistake, or has the daemon
// hold it for nothing. Names, ids and numbers; a layout; positions or rows; lists of blocks.
inline constexpr int64_t kSmallRequestBytesMax = 64 << 10;
inline constexpr int64_t kAttachRequestBytesMax = 512 << 10;
inline constexpr int64_t kSwapInRequestBytesMax =
    kInlinePositionsMax * kVarintBytesMax + kInlineRowsMax * kRowOverheadBytesMax;
inline constexpr int64_t kBackupRequestBytesMax =
    kInlineBackupRowsMax * kRowOverheadBytesMax + kRowOverheadBytesMax;
inline constexpr int64_t kBlockListRequestBytesMax =
    kBlocksPerCallMax * kVarintBytesMax + kSmallRequestBytesMax;

// Largest answer; what clients of inline SwapIn set as their receive limit.
inline constexpr int kAnswerBytesMax = 40 << 20;
// Request headers. Session ids and names travel in messages; errors travel in trailers.
inline constexpr int kHeaderBytesMax = 16 << 10;

// Requests: positions, or block ids with their generations, and names.
static_assert(kSwapInRequestBytesMax <= kMessageBytesMax);
static_assert(kBackupRequestBytesMax <= kMessageBytesMax);
static_assert(kBlockListRequestBytesMax <= kMessageBytesMax);
static_assert(kBlocksPerCallMax * 2 * kVarintBytesMax + kRowOverheadBytesMax <= kMessageBytesMax);
// Answers of a SwapIn that misses everywhere: hot index, mask, plan slot, plan row.
static_assert(kInlinePositionsMax * (3 * kVarintBytesMax + 1) +
                  kInlineRowsMax * kRowOverheadBytesMax <=
              kAnswerBytesMax);
static_assert(kBlocksPerCallMax * 2 * kVarintBytesMax + kRowOverheadBytesMax <= kAnswerBytesMax);

// ---- Errors. gRPC's clients refuse trailers of more than 8 KiB, and then show an error of
// their own. The text is sent twice: percent-encoded, at most three times its size, and in the
// details, which are base64 where a client cannot take them as they are.
inline constexpr int kTrailerBytesMax = 8 << 10;
inline constexpr int kErrorMessageBytesMax = 1024;
inline constexpr int kErrorValueBytesMax = 256;
inline constexpr int kErrorMetadataBytesMax = 1536;
inline constexpr int kErrorEnvelopeBytesMax = 512;  // type URLs, tags, lengths, names of trailers
static_assert(3 * kErrorMessageBytesMax + (kErrorMessageBytesMax + kErrorMetadataBytesMax) * 4 / 3 +
                  kErrorEnvelopeBytesMax <=
              kTrailerBytesMax);

// ---- The descriptor socket (proto/support/fd_channel.h).

// A token is 32 hexadecimal digits today.
inline constexpr int kFdTokenBytesMax = 256;
// Text of a refusal.
inline constexpr int kFdMessageBytesMax = 512;
// Its path is the gRPC socket's with this appended; sun_path bounds both.
inline constexpr char kFdSocketSuffix[] = ".fd";

}  // namespace kvtier::wire
