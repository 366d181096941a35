#include "tests/e2e/restart_worker.h"

#include <cstring>
#include <vector>

namespace kvtier::e2e {

double MillisecondsSince(BenchClock::time_point begin) {
  return std::chrono::duration<double, std::milli>(BenchClock::now() - begin).count();
}

void Must(const absl::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

v1::CacheLayout LayoutOf(int32_t row_bytes, int32_t block_size, int32_t block_count) {
  v1::CacheLayout layout;
  layout.set_block_size(block_size);
  layout.set_block_count(block_count);
  layout.set_max_requests(2);
  v1::LayerGroupLayout* group = layout.add_groups();
  group->set_top_k(64);
  v1::LayerLayout* layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
  layer->set_row_bytes(row_bytes);
  return layout;
}

Worker Attach(const Daemon& daemon, const std::string& name, const v1::CacheLayout& layout) {
  client::Session session = Must(daemon.Open("bench"), "session");
  client::Cache cache = Must(
      client::Cache::Attach(session, {.cache = name, .layout = layout, .wait_for_pool = kPatience}),
      "attach");
  return {std::move(session), std::move(cache)};
}

client::Request FillAll(Worker& worker) {
  client::Request request = Must(worker.cache.Admit("all"), "admit");
  const client::AssignedBlocks blocks =
      Must(request.AssignBlocks(worker.cache.layout().block_count()), "assign");
  const int32_t block_size = worker.cache.layout().block_size();
  const client::Rows& rows = worker.cache.view().groups[0].layers[0].host;
  std::vector<int32_t> slots;
  for (const int32_t block : blocks.block_ids) {
    for (int32_t i = 0; i < block_size; ++i) {
      slots.push_back(block * block_size + i);
      std::memcpy(rows.value(slots.back()).data(), &slots.back(), sizeof(int32_t));
    }
  }
  Must(worker.cache.MarkBacked(0, slots), "mark");
  return request;
}

Kept TakeUpAll(Worker& worker) {
  Kept kept;
  BenchClock::time_point begin = BenchClock::now();
  const std::vector<v1::KeptBlock> blocks = Must(worker.cache.ListKeptBlocks(), "list");
  kept.list_ms = MillisecondsSince(begin);
  const int32_t block_size = worker.cache.layout().block_size();
  const client::Rows& rows = worker.cache.view().groups[0].layers[0].host;
  client::SharedBlocks shared;
  for (const v1::KeptBlock& block : blocks) {
    shared.block_ids.push_back(block.block_id());
    shared.generations.push_back(block.generation());
    kept.wrong += block.rows_backed() == block_size ? 0 : block_size;
    for (int32_t i = 0; i < block_size; ++i) {
      const int32_t slot = block.block_id() * block_size + i;
      kept.wrong += std::memcmp(rows.value(slot).data(), &slot, sizeof(slot)) == 0 ? 0 : 1;
    }
  }
  kept.wrong +=
      (worker.cache.layout().block_count() - static_cast<int64_t>(blocks.size())) * block_size;
  kept.request = Must(worker.cache.Admit("again"), "admit");
  begin = BenchClock::now();
  Must(kept.request->AssignBlocks(0, shared).status(), "take up");
  kept.take_up_ms = MillisecondsSince(begin);
  return kept;
}

}  // namespace kvtier::e2e
