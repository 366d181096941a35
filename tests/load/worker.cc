#include "tests/load/worker.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/load/pace.h"
#include "tests/load/row_content.h"

namespace kvtier::load {
namespace {

v1::CacheLayout Layout() {
  v1::CacheLayout layout;
  layout.set_block_size(kBlockSize);
  layout.set_block_count(kBlockCount);
  layout.set_max_requests(kRequestsMax);
  v1::LayerGroupLayout* const group = layout.add_groups();
  group->set_top_k(kTopK);
  for (int32_t l = 0; l < kLayers; ++l) {
    v1::LayerLayout* const layer = group->add_layers();
    layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
    layer->set_row_bytes(kRowBytes);
  }
  return layout;
}

// The status of an answer that came on a call of steps.
absl::Status NextOf(client::Steps* steps) {
  const absl::StatusOr<client::StepResult> result = steps->Next();
  return result.ok() ? result->status : result.status();
}

}  // namespace

void WorkerResult::Add(const WorkerResult& other) {
  requests += other.requests;
  rows_checked += other.rows_checked;
  wrong_rows += other.wrong_rows;
  sessions += other.sessions;
  errors += other.errors;
  if (first_error.empty()) first_error = other.first_error;
  late_ms_max = std::max(late_ms_max, other.late_ms_max);
}

Worker::Worker(WorkerOptions options, CallTimes* times)
    : options_(std::move(options)),
      times_(times),
      random_(static_cast<uint64_t>(options_.number) << 32),
      request_number_(static_cast<uint64_t>(options_.number) << 32) {}

uint64_t Worker::Mixed(uint64_t value) { return Mix(value); }

WorkerResult Worker::Run() {
  // They do not all begin at once.
  absl::Time next = options_.begin;
  for (; next < options_.end; next += options_.period) {
    PaceUntil(next);
    result_.late_ms_max =
        std::max(result_.late_ms_max, absl::ToDoubleMilliseconds(absl::Now() - next));
    Note(RunRequest());
  }
  Close();
  return result_;
}

WorkerResult Worker::RunRequests(int32_t count) {
  for (int32_t i = 0; i < count; ++i) Note(RunRequest());
  Close();
  return result_;
}

void Worker::Note(const absl::Status& status) {
  if (status.ok()) {
    ++result_.requests;
    return;
  }
  if (result_.errors++ == 0) {
    result_.first_error = absl::StrCat("worker ", options_.number, ": ", status.ToString());
  }
  Close();
}

absl::Status Worker::Open() {
  auto session = times_->Of("OpenSession", [&] {
    return client::Session::Open({.socket_path = options_.socket_path,
                                  .client_name = absl::StrCat("load-", options_.number),
                                  .wait_for_daemon = true});
  });
  if (!session.ok()) return session.status();
  session_ = std::make_unique<client::Session>(*std::move(session));
  auto cache = times_->Of("AttachCache", [&] {
    return client::Cache::Attach(
        *session_, {.cache = absl::StrCat("load-", options_.number % options_.cache_count),
                    .layout = Layout(),
                    .wait_for_pool = absl::Minutes(1)});
  });
  if (!cache.ok()) return cache.status();
  cache_ = std::make_unique<client::Cache>(*std::move(cache));
  auto steps = client::Steps::Open(*cache_);
  if (!steps.ok()) return steps.status();
  steps_ = std::make_unique<client::Steps>(*std::move(steps));
  session_requests_ = 0;
  ++result_.sessions;
  return absl::OkStatus();
}

void Worker::Close() {
  steps_.reset();
  cache_.reset();
  session_.reset();
}

absl::Status Worker::RunRequest() {
  if (session_requests_ == options_.requests_per_session) Close();
  if (session_ == nullptr) {
    if (absl::Status status = Open(); !status.ok()) return status;
  }
  ++session_requests_;
  ++request_number_;
  rewritten_ = 0;
  const auto prompt_blocks = static_cast<int32_t>(1 + Random() % kPromptBlocksMax);
  // The last block of the prompt is full, half full, or has one row.
  const int32_t length = prompt_blocks * kBlockSize - static_cast<int32_t>(Random() % kBlockSize);
  auto request = times_->Of("AdmitRequest", [&] {
    return cache_->Admit(absl::StrCat("r", request_number_), prompt_blocks + kOutputBlocks);
  });
  if (!request.ok()) return request.status();
  if (auto blocks =
          times_->Of("AssignBlocks", [&] { return request->AssignBlocks(prompt_blocks); });
      !blocks.ok()) {
    return blocks.status();
  }
  const Plane plane = static_cast<Plane>(request_number_ % 3);
  absl::Status status = Prefill(&*request, length);
  if (status.ok()) status = Decode(&*request, length, plane);
  if (status.ok()) status = WriteAnew(&*request, length);
  if (status.ok()) status = Step(*request, length + kDecodeSteps - 1, plane);
  if (!status.ok()) return status;
  const std::vector<int32_t> first_block = {request->block_table()[0]};
  if (auto freed = times_->Of("FreeBlocks", [&] { return request->FreeBlocks(first_block); });
      !freed.ok()) {
    return freed.status();
  }
  return times_->Of("ReleaseRequest", [&] { return request->Release(); }).status();
}

absl::Status Worker::Prefill(client::Request* request, int32_t length) {
  std::vector<std::vector<uint8_t>> rows(kLayers, std::vector<uint8_t>(length * kRowBytes));
  std::vector<int32_t> source(length), slots(length);
  std::vector<client::TensorLayer> tensors;
  std::iota(source.begin(), source.end(), 0);
  for (int32_t p = 0; p < length; ++p) slots[p] = request->SlotOf(p);
  for (int32_t l = 0; l < kLayers; ++l) {
    for (int32_t p = 0; p < length; ++p) {
      FillRow({.request = request_number_, .position = p, .layer = l},
              std::span(rows[l]).subspan(p * kRowBytes, kRowBytes));
    }
    tensors.push_back({rows[l].data(), {.value_bytes = kRowBytes, .row_stride = kRowBytes}});
  }
  return cache_->BackupTensor(0, tensors, length, source, slots);
}

absl::Status Worker::Decode(client::Request* request, int32_t length, Plane plane) {
  for (int32_t position = length; position < length + kDecodeSteps; ++position) {
    if (request->SlotOf(position) < 0) {
      auto blocks = times_->Of("AssignBlocks", [&] { return request->AssignBlocks(1); });
      if (!blocks.ok()) return blocks.status();
    }
    if (absl::Status status = Step(*request, position, plane); !status.ok()) return status;
    if (absl::Status status = Backup(plane); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Worker::WriteAnew(client::Request* request, int32_t length) {
  const client::GroupView& group = cache_->view().groups[0];
  const int32_t count = std::min(length, kBlockSize);
  std::vector<int32_t> slots(count);
  for (int32_t p = 0; p < count; ++p) {
    slots[p] = request->SlotOf(p);
    for (int32_t l = 0; l < kLayers; ++l) {
      FillRow({.request = request_number_, .position = p, .layer = l, .version = 1},
              group.layers[l].host.value(slots[p]));
    }
  }
  if (absl::Status status = cache_->MarkBacked(0, slots); !status.ok()) return status;
  const std::vector<int32_t> block = {request->block_table()[0]};
  auto dropped = times_->Of("InvalidateBlocks", [&] { return cache_->InvalidateBlocks(block); });
  rewritten_ = count;
  return dropped.status();
}

absl::Status Worker::Step(const client::Request& request, int32_t position, Plane plane) {
  const client::CacheView& view = cache_->view();
  const client::GroupView& group = view.groups[0];
  view.row_to_request[0] = request.region();
  view.newest_slot[0] = request.SlotOf(position);
  *view.num_real_rows = 1;
  for (int32_t l = 0; l < kLayers; ++l) {
    FillRow({.request = request_number_, .position = position, .layer = l},
            group.layers[l].hot.value(group.newest_hot_row(request.region())));
  }
  for (int32_t i = 0; i < kTopK; ++i) {
    group.topk[i] = i == 0 ? position : static_cast<int32_t>(Random() % (position + 1));
  }
  const std::vector<int32_t> positions(group.topk.begin(), group.topk.begin() + kTopK);
  if (absl::Status status = SwapIn(plane); !status.ok()) return status;
  for (int32_t i = 0; i < kTopK; ++i) {
    for (int32_t l = 0; l < kLayers; ++l) {
      ++result_.rows_checked;
      if (!IsRow({.request = request_number_,
                  .position = positions[i],
                  .layer = l,
                  .version = VersionOf(positions[i])},
                 group.layers[l].hot.value(group.hot_indices[i]))) {
        ++result_.wrong_rows;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Worker::SwapIn(Plane plane) {
  switch (plane) {
    case Plane::kInProcess:
      return cache_->SwapIn(0, 1);
    case Plane::kUnary:
      return times_->Of("SwapIn", [&] { return cache_->SwapInRpc(0, 1, {}, /*wait=*/true); })
          .status();
    case Plane::kStreamed:
      break;
  }
  return times_->Of("RunSteps: swap-in", [&]() -> absl::Status {
    auto sent = steps_->SwapIn(0, 1, {}, /*wait=*/true);
    return sent.ok() ? NextOf(steps_.get()) : sent.status();
  });
}

absl::Status Worker::Backup(Plane plane) {
  switch (plane) {
    case Plane::kInProcess:
      return cache_->BackupNewest(1);
    case Plane::kUnary:
      return times_->Of("Backup", [&] { return cache_->BackupRpc(1, /*wait=*/true); }).status();
    case Plane::kStreamed:
      break;
  }
  return times_->Of("RunSteps: backup", [&]() -> absl::Status {
    auto sent = steps_->Backup(1, /*wait=*/true);
    return sent.ok() ? NextOf(steps_.get()) : sent.status();
  });
}

}  // namespace kvtier::load
