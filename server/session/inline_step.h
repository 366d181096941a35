// Operations whose rows came in a message: they run in scratch memory of the daemon, so that
// the step buffers of a live worker stay as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/backend.h"
#include "server/hot_tier/hot_tier.h"
#include "server/session/attachment.h"
#include "server/session/inline_bytes.h"
#include "server/session/request_table.h"
#include "server/session/types.h"

namespace kvtier {

// One swap-in. Lives until the device is done with it.
class InlineSwapIn {
 public:
  // Rows that were checked. Takes scratch memory. Errors: REQUEST_UNKNOWN, those of Scratch and of
  // InlineBytes.
  static absl::StatusOr<std::shared_ptr<InlineSwapIn>> Create(
      Attachment& attachment, int32_t group, const std::vector<InlineSwapInRow>& rows);

  // Inputs in, the step, outputs out; under the enqueue lock. Errors: REQUEST_UNKNOWN, those
  // of the device.
  absl::Status Enqueue(DeviceStream* stream, const HotTier& tier, const RequestTable& requests,
                       LayerSpan layers, bool use_slots);

  // Once the device is done.
  std::vector<SwapInRowOutput> Outputs() const;

 private:
  InlineBytes::Place place_;  // of the names: who waits for the answer has one for the rest
  std::vector<std::string> request_ids_;
  int32_t group_ = 0;
  int32_t num_rows_ = 0;
  int32_t top_k_ = 0;
  InlineStepGeometry geometry_;
  std::vector<uint8_t> input_, output_;
  std::shared_ptr<DeviceMemory> scratch_;
};

// One backup, all layer groups. Lives until the device is done with it.
class InlineBackup {
 public:
  // As InlineSwapIn.
  static absl::StatusOr<std::shared_ptr<InlineBackup>> Create(
      Attachment& attachment, const std::vector<InlineBackupRow>& rows);
  absl::Status Enqueue(DeviceStream* stream, const HotTier& tier, const RequestTable& requests);

 private:
  std::vector<absl::string_view> Ids() const;
  // Rows that a group copies from: as given, or the newest row of the row's rank.
  std::vector<int32_t> SourceRows(const GroupShape& shape,
                                  const std::vector<int32_t>& regions) const;

  InlineBytes::Place place_;
  std::vector<InlineBackupRow> rows_;
  bool has_source_rows_ = false;
  std::shared_ptr<DeviceMemory> scratch_;
};

}  // namespace kvtier
