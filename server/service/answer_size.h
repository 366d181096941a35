// How large the answers of control verbs may be, before anything of them is done. 0: so small that
// they take no place (UnreadAnswers).
#pragma once

#include <cstdint>

#include "proto/kvtier/v1/kvtier.pb.h"

namespace kvtier {

// In memory and as they are sent.
int64_t AnswerBytesMax(const v1::AssignBlocksRequest& request);
int64_t AnswerBytesMax(const v1::ListKeptBlocksRequest& request);

}  // namespace kvtier
