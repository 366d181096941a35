// A worker, whole: what replaces an engine's private pool, hot buffer and coordinator.
//
//   bazel run //client:example -- /run/kvtierd/kvtierd.sock
//
// One request of 128 prompt tokens is prefilled and then decoded for 64 steps. The "attention" asks
// for the last 32 tokens and for every ninth one before. A real engine has its own rows, indexer
// and attention in the places marked here.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "client/cache.h"
#include "client/session.h"

namespace {

using kvtier::client::Cache;
using kvtier::client::Request;
using kvtier::client::Session;

constexpr int kPrompt = 128, kSteps = 64, kRowBytes = 656, kTopK = 48;

absl::Status Decode(const char* socket_path) {
  auto session = Session::Open({.socket_path = socket_path, .client_name = "example"});
  if (!session.ok()) return session.status();
  kvtier::v1::CacheLayout layout;  // one layer group of two layers
  layout.set_block_count(16);
  layout.set_max_requests(1);
  layout.add_groups()->set_top_k(kTopK);
  for (int l = 0; l < 2; ++l) {
    auto* layer = layout.mutable_groups(0)->add_layers();
    layer->set_row_format(kvtier::v1::ROW_FORMAT_CONTIGUOUS);
    layer->set_row_bytes(kRowBytes);
  }
  auto cache = Cache::Attach(
      *session, {.cache = "example", .layout = layout, .wait_for_pool = absl::Minutes(1)});
  if (!cache.ok()) return cache.status();
  const auto& view = cache->view();
  const auto& group = view.groups[0];

  auto request = cache->Admit("request-1", /*reserve_blocks=*/(kPrompt + kSteps + 63) / 64);
  if (!request.ok()) return request.status();
  if (auto blocks = request->AssignBlocks(kPrompt / 64); !blocks.ok()) return blocks.status();
  std::vector<uint8_t> prompt(kPrompt * kRowBytes, 1);  // the engine's rows of the prompt
  std::vector<int32_t> rows(kPrompt), slots(kPrompt);
  std::iota(rows.begin(), rows.end(), 0);
  for (int p = 0; p < kPrompt; ++p) slots[p] = request->SlotOf(p);
  const kvtier::client::TensorLayer tensor = {prompt.data(), group.layers[0].host.layout()};
  const std::vector<kvtier::client::TensorLayer> tensors = {tensor, tensor};
  auto status = cache->BackupTensor(0, tensors, kPrompt, rows, slots);
  if (!status.ok()) return status;

  for (int position = kPrompt; position < kPrompt + kSteps; ++position) {
    if (request->SlotOf(position) < 0) {
      if (auto blocks = request->AssignBlocks(1); !blocks.ok()) return blocks.status();
    }
    view.row_to_request[0] = request->region();
    view.newest_slot[0] = request->SlotOf(position);
    *view.num_real_rows = 1;
    for (const auto& layer : group.layers) {  // the engine's row of this token
      std::ranges::fill(layer.hot.value(group.newest_hot_row(request->region())), uint8_t{2});
    }
    for (int i = 0; i < kTopK; ++i) {  // the indexer's choice
      group.topk[i] = i < 32 ? position - i : position - 32 - 9 * (i - 32);
    }
    if (status = cache->SwapIn(0, /*num_rows=*/1); !status.ok()) return status;
    for (const int32_t hot_row : group.hot_indices.first(kTopK)) {  // attention reads these rows
      if (hot_row >= 0 && group.layers[1].hot.value(hot_row)[0] == 0) {
        return absl::DataLossError("a row is missing");
      }
    }
    if (status = cache->BackupNewest(/*num_rows=*/1); !status.ok()) return status;
  }
  const kvtier::Counts counts = cache->counts(0);
  std::fprintf(stdout, "hits %ld, misses %ld\n", counts[kvtier::Counter::kHits],
               counts[kvtier::Counter::kMisses]);
  return request->Release().status();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status =
      argc == 2 ? Decode(argv[1]) : absl::InvalidArgumentError("usage: example SOCKET");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
