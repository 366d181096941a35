// The sizes of a cache, as the kernels want them, out of a layout that the daemon sent.
//
// The kernels trust sizes. They come from another process here, so everything is checked
// before it is believed: a daemon that is wrong gives an error, and never an access out of
// bounds. Internal to client/.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// One layer group, leader first.
struct GroupShapes {
  GroupShape shape;
  std::vector<RowLayout> layers;
};

struct CacheShape {
  std::vector<GroupShapes> groups;  // at least one, all with the same slots and regions
  int32_t block_size = 0;
  int32_t block_count = 0;
  int32_t max_requests = 0;
  int32_t max_blocks = 0;  // entries of one request's block table
  int32_t step_rows = 0;   // rows of the step buffers
  bool share_rows = false;
};

// The shape of `layout`, which has every default filled in. Errors: INTERNAL / INTERNAL naming
// the field, because the daemon must not send such a layout.
absl::StatusOr<CacheShape> CacheShapeOf(const v1::CacheLayout& layout);

// OK if everything that `asked` says is as it says in `given`. Errors: INTERNAL / INTERNAL
// naming the first field that differs.
absl::Status CheckLayoutGiven(const v1::CacheLayout& asked, const v1::CacheLayout& given);

}  // namespace kvtier::client
