// The data plane: checks what a caller can get wrong, then enqueues and returns a ticket.
//
// A value that a worker wrote into its step buffers is checked by the kernels, one that came in
// a message is checked here. Requests are looked up under the enqueue lock, so that the region
// of a request cannot pass to another one in between.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/core/status_macros.h"
#include "server/session/errors.h"
#include "server/session/inline_step.h"
#include "server/session/node_impl.h"

namespace kvtier {
namespace {

absl::Status CheckGroup(const CacheLayout& layout, int32_t group) {
  const int32_t groups = static_cast<int32_t>(layout.groups.size());
  if (group >= 0 && group < groups) return absl::OkStatus();
  return FieldInvalid("group_index", absl::StrCat(group), absl::StrCat("0..", groups - 1));
}

// `first_default`: where the layers start when the caller does not say.
absl::StatusOr<LayerSpan> ResolveLayers(const GroupLayout& group,
                                        const std::optional<LayerRange>& layers,
                                        int32_t first_default) {
  const int32_t layer_count = static_cast<int32_t>(group.layers.size());
  if (!layers.has_value()) return LayerSpan{first_default, layer_count - first_default};
  if (layers->first_layer >= 0 && layers->layer_count >= 0 &&
      int64_t{layers->first_layer} + layers->layer_count <= layer_count) {
    return LayerSpan{layers->first_layer, layers->layer_count};
  }
  return FieldInvalid("layers",
                      absl::StrCat(layers->layer_count, " layers from ", layers->first_layer),
                      absl::StrCat("inside the ", layer_count, " layers of the group"));
}

absl::Status CheckStepRows(const CacheLayout& layout, int32_t num_rows) {
  if (num_rows < 0) {
    return FieldInvalid("num_rows", absl::StrCat(num_rows), absl::StrCat("0..", layout.step_rows));
  }
  if (num_rows <= layout.step_rows) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "INPUT_MISMATCH",
                   absl::StrCat("the step buffers hold ", layout.step_rows, " rows, not ", num_rows,
                                " (step_rows of the layout)"),
                   {{"value", absl::StrCat(num_rows)}, {"limit", absl::StrCat(layout.step_rows)}});
}

absl::Status CheckInlineRows(size_t rows, int32_t rows_max) {
  if (rows <= static_cast<size_t>(rows_max)) return absl::OkStatus();
  return FieldInvalid("rows", absl::StrCat(rows, " rows"), absl::StrCat("0..", rows_max, " rows"),
                      "larger batches go through the step buffers");
}

absl::Status CheckOneInput(bool has_inline, bool has_step) {
  if (has_inline != has_step) return absl::OkStatus();
  return FieldInvalid("input", has_inline ? "both inline and step" : "missing",
                      "either inline rows or a number of rows of the step buffers");
}

// Counts how often each request occurs, up to `rows_per_request`.
class RowCounter {
 public:
  explicit RowCounter(int32_t rows_per_request) : rows_per_request_(rows_per_request) {}

  absl::Status Count(absl::string_view request_id) {
    if (++counts_[request_id] <= rows_per_request_) return absl::OkStatus();
    return MakeError(
        absl::StatusCode::kInvalidArgument, "REQUEST_REPEATED",
        absl::StrCat("request '", request_id, "' has more than ", rows_per_request_,
                     " rows in one call (rows_per_request of the layout)"),
        {{"request_id", std::string(request_id)}, {"limit", absl::StrCat(rows_per_request_)}});
  }

 private:
  const int32_t rows_per_request_;
  absl::flat_hash_map<absl::string_view, int32_t> counts_;
};

absl::Status CheckSwapInRows(const CacheLayout& layout, int32_t group,
                             const std::vector<InlineSwapInRow>& rows) {
  KVTIER_RETURN_IF_ERROR(CheckInlineRows(rows.size(), kInlineRowsMax));
  const size_t top_k = layout.groups[group].top_k;
  // Each row has room for top_k, whatever it asks for.
  if (static_cast<int64_t>(rows.size() * top_k) > kInlinePositionsMax) {
    return FieldInvalid("rows", absl::StrCat(rows.size(), " rows"),
                        absl::StrCat("0..", kInlinePositionsMax / static_cast<int64_t>(top_k),
                                     " rows of top_k ", top_k),
                        "larger batches go through the step buffers");
  }
  RowCounter counter(layout.rows_per_request);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].topk.size() > top_k) {
      return FieldInvalid(absl::StrCat("rows[", i, "].topk"),
                          absl::StrCat(rows[i].topk.size(), " entries long"),
                          absl::StrCat("0..", top_k, " entries long"), "top_k of the group");
    }
    if (!rows[i].request_id.empty()) KVTIER_RETURN_IF_ERROR(counter.Count(rows[i].request_id));
  }
  return absl::OkStatus();
}

absl::Status CheckSource(const CacheLayout& layout, size_t row, int32_t source_hot_row) {
  int32_t limit = INT32_MAX;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupShape shape = ShapeOf(layout, static_cast<int>(g));
    limit = std::min(limit, shape.region_count * shape.region_stride);
  }
  if (source_hot_row >= 0 && source_hot_row < limit) return absl::OkStatus();
  return FieldInvalid("source_hot_row", absl::StrCat(source_hot_row, " in row ", row),
                      absl::StrCat("0..", limit - 1));
}

absl::Status CheckBackupRows(const CacheLayout& layout, const std::vector<InlineBackupRow>& rows) {
  KVTIER_RETURN_IF_ERROR(CheckInlineRows(rows.size(), kInlineBackupRowsMax));
  RowCounter counter(layout.rows_per_request);
  for (size_t i = 0; i < rows.size(); ++i) {
    const InlineBackupRow& row = rows[i];
    if (row.request_id.empty()) {
      return FieldInvalid("request_id", absl::StrCat("empty in row ", i), "an admitted request");
    }
    if (row.slot < 0 || row.slot >= layout.slot_count()) {
      return MakeError(absl::StatusCode::kOutOfRange, "SLOT_OUT_OF_RANGE",
                       absl::StrCat("slot ", row.slot, " of row ", i, " is not one of the ",
                                    layout.slot_count(), " slots of the cache"),
                       {{"slot", absl::StrCat(row.slot)},
                        {"limit", absl::StrCat(layout.slot_count())},
                        {"row", absl::StrCat(i)}});
    }
    // A request has as many newest rows as it may have rows in one call.
    KVTIER_RETURN_IF_ERROR(row.source_hot_row.has_value()
                               ? CheckSource(layout, i, *row.source_hot_row)
                               : counter.Count(row.request_id));
  }
  return absl::OkStatus();
}

std::function<void(const absl::Status&, int64_t)> Outcome(OperationDone done) {
  return [done = std::move(done)](const absl::Status& status, int64_t ticket) {
    if (done) done({.status = status, .ticket = ticket});
  };
}

}  // namespace

absl::StatusOr<int32_t> Node::Impl::InlineRowPositions(const Attachment& attachment,
                                                       int32_t group) const {
  const CacheLayout& layout = attachment.cache()->layout();
  KVTIER_RETURN_IF_ERROR(CheckGroup(layout, group));
  return layout.groups[group].top_k;
}

absl::StatusOr<int64_t> Node::Impl::SwapIn(Attachment& attachment, const SwapInCall& call,
                                           OperationDone done) {
  const CacheLayout& layout = attachment.cache()->layout();
  KVTIER_RETURN_IF_ERROR(CheckGroup(layout, call.group));
  KVTIER_ASSIGN_OR_RETURN(const LayerSpan layers,
                          ResolveLayers(layout.groups[call.group], call.layers, 0));
  KVTIER_RETURN_IF_ERROR(CheckOneInput(call.inline_rows.has_value(), call.step_rows.has_value()));
  if (call.step_rows.has_value()) {
    KVTIER_RETURN_IF_ERROR(CheckStepRows(layout, *call.step_rows));
    return attachment.EnqueueOperation(
        OperationKind::kSwapIn, call.group, call.after_worker,
        [&](DeviceStream* stream, const HotTier& tier) {
          return stream->SwapIn(tier.MakeSwapIn(
              call.group, tier.StepBuffers(call.group, *call.step_rows), layers, call.use_slots));
        },
        nullptr, Outcome(std::move(done)));
  }
  KVTIER_RETURN_IF_ERROR(CheckSwapInRows(layout, call.group, *call.inline_rows));
  KVTIER_ASSIGN_OR_RETURN(const std::shared_ptr<InlineSwapIn> step,
                          InlineSwapIn::Create(attachment, call.group, *call.inline_rows));
  return attachment.EnqueueOperation(
      OperationKind::kSwapIn, call.group, call.after_worker,
      [&](DeviceStream* stream, const HotTier& tier) {
        return step->Enqueue(stream, tier, attachment.requests(), layers, call.use_slots);
      },
      step,
      [step, done = std::move(done)](const absl::Status& status, int64_t ticket) {
        if (!done) return;
        OperationOutcome outcome = {.status = status, .ticket = ticket};
        if (status.ok()) outcome.rows = step->Outputs();
        done(std::move(outcome));
      });
}

absl::StatusOr<int64_t> Node::Impl::ReplayPlan(Attachment& attachment, const ReplayPlanCall& call,
                                               OperationDone done) {
  const CacheLayout& layout = attachment.cache()->layout();
  KVTIER_RETURN_IF_ERROR(CheckGroup(layout, call.group));
  KVTIER_ASSIGN_OR_RETURN(const LayerSpan layers,
                          ResolveLayers(layout.groups[call.group], call.layers, 1));
  KVTIER_RETURN_IF_ERROR(CheckStepRows(layout, call.num_rows));
  return attachment.EnqueueOperation(
      OperationKind::kReplayPlan, call.group, call.after_worker,
      [&](DeviceStream* stream, const HotTier& tier) {
        return stream->ReplayPlan(tier.MakeReplayPlan(call.group, call.num_rows, layers));
      },
      nullptr, Outcome(std::move(done)));
}

absl::StatusOr<int64_t> Node::Impl::Backup(Attachment& attachment, const BackupCall& call,
                                           OperationDone done) {
  const CacheLayout& layout = attachment.cache()->layout();
  KVTIER_RETURN_IF_ERROR(CheckOneInput(call.inline_rows.has_value(), call.step_rows.has_value()));
  if (call.step_rows.has_value()) {
    KVTIER_RETURN_IF_ERROR(CheckStepRows(layout, *call.step_rows));
    return attachment.EnqueueOperation(
        OperationKind::kBackup, std::nullopt, call.after_worker,
        [&](DeviceStream* stream, const HotTier& tier) -> absl::Status {
          const BackupArrays arrays = tier.StepBufferBackup(*call.step_rows);
          for (int g = 0; g < tier.group_count(); ++g) {
            KVTIER_RETURN_IF_ERROR(stream->Backup(tier.MakeBackup(g, arrays)));
          }
          return absl::OkStatus();
        },
        nullptr, Outcome(std::move(done)));
  }
  KVTIER_RETURN_IF_ERROR(CheckBackupRows(layout, *call.inline_rows));
  KVTIER_ASSIGN_OR_RETURN(const std::shared_ptr<InlineBackup> step,
                          InlineBackup::Create(attachment, *call.inline_rows));
  return attachment.EnqueueOperation(
      OperationKind::kBackup, std::nullopt, call.after_worker,
      [&](DeviceStream* stream, const HotTier& tier) {
        return step->Enqueue(stream, tier, attachment.requests());
      },
      step, Outcome(std::move(done)));
}

}  // namespace kvtier
