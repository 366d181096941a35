// Results of the node as answers of the API to workers. See stats_to_proto.h for operators.
#pragma once

#include <string>

#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"
#include "server/core/cache_layout.h"
#include "server/device/backend.h"
#include "server/session/types.h"

namespace kvtier {

// "cpu" or "cuda".
std::string BackendName(BackendKind kind);

v1::Device ToProto(const DeviceInfo& device);
// Every field present, so that no default has to be known to read it.
v1::CacheLayout ToProto(const CacheLayout& layout);
// Segments, and the arrays in them by the geometries of the layout.
v1::AttachCacheResponse ToProto(const AttachResult& result);
v1::AssignBlocksResponse ToProto(const AssignResult& result);
v1::SwapInResponse SwapInToProto(const OperationOutcome& outcome);

}  // namespace kvtier
