// The verbs of the data plane, and the bytes that must come of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/simulation.h"

namespace kvtier::simulation {

// The block that `row` was in when it was enqueued, or null if the cache is gone.
ModelBlock* Simulation::Find(const Reference& row) {
  const auto found = model_.caches.find(row.cache);
  if (found == model_.caches.end() || found->second.key != row.cache_key) return nullptr;
  ModelBlock& block = found->second.blocks[row.block];
  if (block.generation != row.generation) {
    Fail(absl::StrCat("block ", row.block, " was assigned again while it was in use"));
    return nullptr;
  }
  return &block;
}

void Simulation::CheckTicket(const absl::StatusOr<int64_t>& ticket, Place& place) {
  if (ticket.ok() && *ticket != ++place.tickets) {
    Fail(absl::StrCat("ticket ", *ticket, " comes as number ", place.tickets));
  }
}

void Simulation::Backup(const Step& step) {
  int session = 0;
  std::string cache, id;
  ModelRequest* const request = PickRequest(step, true, &session, &cache, &id);
  if (request == nullptr || request->writing || request->table.empty()) return;
  ModelCache& attached = *model_.Attached(session, cache);
  Reference row = {.run = run_, .cache_key = attached.key, .cache = cache};
  row.block = request->table[step.c % request->table.size()];
  if (row.block < 0) return;
  row.row = step.c / 4 % kBlockSize;
  row.generation = attached.blocks[row.block].generation;
  row.salt = static_cast<uint8_t>(played_->operations | 1);
  ModelRow& model = attached.blocks[row.block].rows[row.row];
  if (model.state != ModelRow::kFresh) return;
  // Before or after another session's step: either would be right.
  if (std::any_of(model.zero_readers.begin(), model.zero_readers.end(),
                  [&](int reader) { return reader != session; })) {
    return;
  }
  Place& place = sessions_[session].places.at(cache);
  const int32_t newest =
      request->region * ShapeOf(place.attached.layout, 0).region_stride + kHotSize;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    uint8_t* const bytes = place.memory->HotRow(0, layer, newest);
    for (int32_t j = 0; j < kRowBytes; ++j) {
      bytes[j] = static_cast<uint8_t>(PatternByte(row.slot(), layer, j) + row.salt);
    }
  }
  BackupCall call;
  call.cache = cache;
  call.inline_rows = {{.request_id = id, .slot = row.slot()}};
  BeginCall({.verb = step.verb}, session);
  const auto ticket =
      node_->Backup(sessions_[session].id, call,
                    [this, row, session, id, key = request->key](const OperationOutcome& outcome) {
                      OnBackup(row, session, id, key, outcome);
                    });
  request->writing = true;
  if (!EndCall(ticket.status(), Forecast::kOk, "backup")) {
    // It may have been enqueued all the same.
    model = {.state = ModelRow::kMaybe, .salt = row.salt};
    return;
  }
  CheckTicket(ticket, place);
  ++in_flight_;
  model.state = ModelRow::kPending;
  model.salt = row.salt;
  model.writer = session;
}

void Simulation::OnBackup(const Reference& row, int session, const std::string& id,
                          int64_t request_key, const OperationOutcome& outcome) {
  --in_flight_;
  if (row.run != run_) return;
  ModelBlock* const block = Find(row);
  if (block == nullptr) return;
  ModelRow& model = block->rows[row.row];
  model.state = outcome.status.ok() ? ModelRow::kBacked : ModelRow::kMaybe;
  ModelRequest* const request = model_.caches[row.cache].Find(session, id);
  if (request != nullptr && request->key == request_key) request->writing = false;
}

void Simulation::SwapIn(const Step& step) {
  int session = 0;
  std::string cache, id;
  const ModelRequest* const request = PickRequest(step, true, &session, &cache, &id);
  if (request == nullptr || request->table.empty()) return;
  ModelCache& attached = *model_.Attached(session, cache);
  InlineSwapInRow input = {.request_id = id};
  std::vector<Reference> rows;
  std::vector<ModelRow*> models;
  for (int32_t i = 0; i < 1 + step.c % kTopK; ++i) {
    const auto position = static_cast<int32_t>((step.c / 4 + step.b * 3 + i * 5) %
                                               (request->table.size() * kBlockSize));
    const int32_t block = request->table[position / kBlockSize];
    if (block < 0) continue;
    ModelRow& model = attached.blocks[block].rows[position % kBlockSize];
    // Before or after another session's backup: either would be right.
    if (model.state == ModelRow::kPending && model.writer != session) continue;
    input.topk.push_back(position);
    models.push_back(&model);
    rows.push_back(
        {.run = run_,
         .cache_key = attached.key,
         .cache = cache,
         .block = block,
         .row = position % kBlockSize,
         .generation = attached.blocks[block].generation,
         .may_be_zero = model.state == ModelRow::kFresh || model.state == ModelRow::kMaybe,
         .may_be_salt = model.state != ModelRow::kFresh,
         .salt = model.salt});
  }
  Place& place = sessions_[session].places.at(cache);
  SwapInCall call;
  call.cache = cache;
  call.inline_rows = {input};
  BeginCall({.verb = step.verb}, session);
  const auto ticket =
      node_->SwapIn(sessions_[session].id, call,
                    [this, rows, session, memory = place.memory](const OperationOutcome& outcome) {
                      OnSwapIn(rows, session, *memory, outcome);
                    });
  if (!EndCall(ticket.status(), Forecast::kOk, "swap-in")) return;
  CheckTicket(ticket, place);
  ++in_flight_;
  for (ModelRow* const model : models) {
    if (model->state == ModelRow::kFresh) model->zero_readers.push_back(session);
  }
}

void Simulation::OnSwapIn(const std::vector<Reference>& rows, int session,
                          const WorkerMemory& memory, const OperationOutcome& outcome) {
  --in_flight_;
  if (!rows.empty() && rows.front().run != run_) return;
  if (!outcome.status.ok()) return Fail(absl::StrCat("a swap-in: ", outcome.status.ToString()));
  const SwapInRowOutput& output = outcome.rows.at(0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Reference& row = rows[i];
    // It may be nobody's by now, but nobody else's either.
    if (ModelBlock* const block = Find(row)) {
      std::vector<int>& readers = block->rows[row.row].zero_readers;
      const auto reader = std::find(readers.begin(), readers.end(), session);
      if (!row.may_be_salt && reader != readers.end()) readers.erase(reader);
    }
    const int32_t hot = output.hot_indices[i];
    if (hot < 0) {
      Fail(absl::StrCat("slot ", row.slot(), " was not swapped in"));
    } else if (!(row.may_be_zero && memory.HotRowIsZero(0, hot)) &&
               !(row.may_be_salt && memory.HotRowIs(0, hot, row.slot(), row.salt))) {
      Fail(absl::StrCat("wrong bytes of slot ", row.slot(),
                        row.may_be_salt ? "" : ", which must be zeros"));
    }
  }
}

}  // namespace kvtier::simulation
