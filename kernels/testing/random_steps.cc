#include "kernels/testing/random_steps.h"

#include <algorithm>
#include <numeric>

namespace kvtier::testing {
namespace {

// Rows of the tensor that stands for a worker's prefill output.
constexpr int32_t kTensorRows = 8;

// Which region a batch row's newest token goes to, for rows that a step will accept.
struct NewestRow {
  int32_t row, slot, hot_row;
};

std::vector<NewestRow> NewestRows(const Round& round, const GroupShape& shape) {
  std::vector<int32_t> rows_of(shape.region_count, 0);
  std::vector<NewestRow> newest;
  const auto rows = static_cast<int32_t>(round.row_to_request.size());
  for (int32_t row = 0; row < std::clamp(round.num_real_rows, 0, rows); ++row) {
    const int32_t region = round.row_to_request[row];
    if (region < 0 || region >= shape.region_count) continue;
    const int32_t rank = rows_of[region]++;
    const int32_t slot = round.newest_slot[row];
    if (rank >= shape.rows_per_request || slot < 0 || slot >= shape.slot_count) continue;
    newest.push_back({row, slot, region * shape.region_stride + shape.hot_size + rank});
  }
  return newest;
}

// One tensor a layer whose row r has the bytes of slot r, salted.
std::vector<ByteBuffer> PrefillTensors(const GroupFixture& group, uint8_t salt) {
  std::vector<ByteBuffer> tensors;
  for (int32_t l = 0; l < group.layer_count(); ++l) {
    const RowLayout& layout = group.layouts()[l];
    tensors.emplace_back(StorageBytes(layout, kTensorRows), /*sparse=*/false);
    for (int32_t r = 0; r < kTensorRows; ++r) {
      const std::string bytes = group.PatternRow(l, r, salt);
      std::copy_n(bytes.begin(), layout.value_bytes, tensors[l].data() + ValueOffset(layout, r));
      if (layout.format != RowFormat::kSplitPage) continue;
      std::copy_n(bytes.begin() + layout.value_bytes, layout.scale_bytes,
                  tensors[l].data() + ScaleOffset(layout, r));
    }
  }
  return tensors;
}

void Prefill(const Round& round, const Implementation& implementation, GroupFixture* group) {
  const std::vector<ByteBuffer> tensors = PrefillTensors(*group, round.salt);
  std::vector<const uint8_t*> sources;
  for (const ByteBuffer& tensor : tensors) sources.push_back(tensor.data());
  BackupParams p = group->Backup();
  p.num_rows = static_cast<int32_t>(round.prefill_slots.size());
  p.row_to_request = round.prefill_requests.data();
  p.slots = round.prefill_slots.data();
  p.source_rows = round.prefill_source_rows.data();
  p.sources = sources.data();
  p.source_layouts = group->layouts().data();
  p.source_row_count = kTensorRows;
  implementation.backup(p);
}

}  // namespace

uint64_t Random::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

RandomSteps::RandomSteps(uint64_t seed, GroupFixture* group)
    : options_(group->options()),
      blocks_per_region_(options_.shape.slot_count / options_.shape.block_size /
                         options_.shape.region_count),
      random_(seed),
      recent_(options_.shape.region_count) {
  if (!options_.positions) return;
  // Region r owns its blocks shuffled; the rest of its table is empty, but for the last entry,
  // which names a block past the pool.
  for (int32_t region = 0; region < options_.shape.region_count; ++region) {
    int32_t* table = group->block_table.data() + int64_t{region} * options_.shape.max_blocks;
    const int32_t used = std::min(blocks_per_region_, options_.shape.max_blocks);
    for (int32_t i = 0; i < used; ++i) table[i] = BlockOf(region, i);
    for (int32_t i = used - 1; i > 0; --i) std::swap(table[i], table[random_.Below(i + 1)]);
    if (used < options_.shape.max_blocks) {
      table[options_.shape.max_blocks - 1] =
          options_.shape.slot_count / options_.shape.block_size + region;
    }
  }
}

// Every region_count-th block from `region` on; of those that all have, region 0's.
int32_t RandomSteps::BlockOf(int32_t region, int32_t i) const {
  return (i < options_.shared_blocks ? 0 : region) + i * options_.shape.region_count;
}

int32_t RandomSteps::RandomSlot(int32_t region) {
  const int32_t block = BlockOf(region, random_.Below(blocks_per_region_));
  return block * options_.shape.block_size + random_.Below(options_.shape.block_size);
}

// An entry of top-k: a position or a slot, now and then one that names no row.
int32_t RandomSteps::RandomEntry(int32_t region) {
  if (random_.OneIn(30)) return -1 - random_.Below(3) * 1000000;
  if (options_.positions) {
    return random_.Below(options_.shape.max_blocks * options_.shape.block_size + 3);
  }
  if (random_.OneIn(40)) return options_.shape.slot_count + random_.Below(4);
  return RandomSlot(region);
}

void RandomSteps::DrawRows(Round* round) {
  const int32_t rows = options_.num_rows, regions = options_.shape.region_count;
  round->num_real_rows = random_.OneIn(4) ? random_.Below(rows + 3) - 1 : rows;
  // Requests in random order, each with up to rows_per_request rows that need not be neighbours.
  std::vector<int32_t> requests;
  for (int32_t region = 0; region < regions; ++region) {
    requests.insert(requests.end(), options_.shape.rows_per_request, region);
  }
  for (size_t i = requests.size() - 1; i > 0; --i) {
    std::swap(requests[i], requests[random_.Below(static_cast<int32_t>(i) + 1)]);
  }
  requests.resize(rows, kNone);
  for (int32_t& request : requests) {
    if (random_.OneIn(12)) request = kNone;
    if (random_.OneIn(60)) request = random_.OneIn(2) ? regions + random_.Below(2) : -2;
    if (random_.OneIn(60)) request = random_.Below(regions);  // perhaps one row too many
  }
  round->row_to_request = requests;
  round->newest_slot.assign(rows, kNone);
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t region = requests[row];
    if (region < 0 || region >= regions || random_.OneIn(8)) continue;
    round->newest_slot[row] =
        random_.OneIn(50) ? options_.shape.slot_count + 5 : RandomSlot(region);
  }
  for (int32_t row = 1; row < rows; ++row) {  // two rows of a request may write one slot
    const int32_t other = random_.Below(row);
    if (requests[row] == requests[other] && random_.OneIn(10)) {
      round->newest_slot[row] = round->newest_slot[other];
    }
  }
  if (!options_.positions) return;
  round->sequence_lengths.assign(regions, kNone);
  for (int32_t& length : round->sequence_lengths) {
    if (random_.OneIn(3)) {
      length = random_.Below(options_.shape.max_blocks * options_.shape.block_size + 1);
    }
  }
}

void RandomSteps::DrawTopK(Round* round) {
  const int32_t top_k = options_.shape.top_k;
  round->topk.assign(int64_t{options_.num_rows} * top_k, kNone);
  for (int32_t row = 0; row < options_.num_rows; ++row) {
    const int32_t region =
        std::clamp(round->row_to_request[row], 0, options_.shape.region_count - 1);
    int32_t* entries = round->topk.data() + int64_t{row} * top_k;
    // Kinds of rows: as a real indexer's (most of the last row again), cold, short.
    const int32_t fresh_in = random_.OneIn(6) ? 1 : 2 + random_.Below(20);
    const int32_t length = random_.OneIn(8) ? random_.Below(top_k + 1) : top_k;
    std::vector<int32_t>& recent = recent_[region];
    for (int32_t c = 0; c < length; ++c) {
      if (c > 0 && random_.OneIn(15)) {
        entries[c] = entries[random_.Below(c)];
      } else if (recent.empty() || random_.OneIn(fresh_in)) {
        entries[c] = RandomEntry(region);
      } else {
        entries[c] = recent[random_.Below(static_cast<int32_t>(recent.size()))];
      }
      if (random_.OneIn(25) && round->newest_slot[row] >= 0 && !options_.positions) {
        entries[c] = round->newest_slot[row];
      }
    }
    recent.assign(entries, entries + length);
    // Models ask for the token before.
    if (round->newest_slot[row] >= 0 && !options_.positions) {
      recent.insert(recent.end(), 1 + length / 8, round->newest_slot[row]);
    }
  }
}

void RandomSteps::DrawBackups(Round* round) {
  round->salt = static_cast<uint8_t>(random_.Below(256));
  round->backup = !random_.OneIn(4);
  round->replay = random_.OneIn(3);
  if (random_.OneIn(50)) round->reset_region = random_.Below(options_.shape.region_count);
  const int32_t blocks = options_.shape.slot_count / options_.shape.block_size;
  if (random_.OneIn(20)) {
    round->assigned_blocks.resize(1 + random_.Below(3));
    for (int32_t& block : round->assigned_blocks) block = random_.Below(blocks);
  }
  if (!random_.OneIn(3)) return;
  for (int32_t i = random_.Below(12); i > 0; --i) {
    const int32_t region = random_.Below(options_.shape.region_count);
    int32_t slot = RandomSlot(region);
    if (random_.OneIn(10)) slot = random_.OneIn(2) ? kNone : options_.shape.slot_count + 1;
    if (!round->prefill_slots.empty() && random_.OneIn(6)) {
      round->prefill_slots.push_back(round->prefill_slots.back());  // the later row wins
      round->prefill_requests.push_back(round->prefill_requests.back());
    } else {
      round->prefill_slots.push_back(slot);
      round->prefill_requests.push_back(region);
    }
    if (random_.OneIn(40)) round->prefill_requests.back() = options_.shape.region_count;
    round->prefill_source_rows.push_back(random_.Below(kTensorRows + 2) - 1);
  }
}

Round RandomSteps::Next() {
  Round round;
  DrawBackups(&round);
  DrawRows(&round);
  DrawTopK(&round);
  return round;
}

void CopyInputs(const GroupFixture& from, GroupFixture* to) { to->block_table = from.block_table; }

void Prepare(const Round& round, const Implementation& implementation, GroupFixture* group) {
  if (round.reset_region >= 0) {
    implementation.reset_region(group->ResetRegion(round.reset_region));
  }
  if (!round.assigned_blocks.empty()) {
    for (const int32_t block : round.assigned_blocks) {
      if (group->options().tracking) ++group->block_generation[block];
    }
    implementation.invalidate(group->Invalidate(round.assigned_blocks));
  }
  if (!round.prefill_slots.empty()) Prefill(round, implementation, group);
  for (const NewestRow& newest : NewestRows(round, group->shape())) {
    group->FillHotRow(newest.hot_row, newest.slot, round.salt);
  }
  group->num_real_rows = round.num_real_rows;
  group->row_to_request = round.row_to_request;
  group->newest_slot = round.newest_slot;
  group->topk = round.topk;
  group->sequence_lengths = round.sequence_lengths;
  group->PoisonOutputs();
}

void Step(const Round& round, const Implementation& implementation, GroupFixture* group) {
  SwapInParams params = group->SwapIn();
  if (!round.replay) {
    implementation.swap_in(params);
    return;
  }
  --params.layer_count;
  implementation.swap_in(params);
  ReplayPlanParams replay = group->ReplayPlan();
  replay.layers += params.layer_count;
  replay.layer_count = 1;
  implementation.replay_plan(replay);
}

void Finish(const Round& round, const Implementation& implementation, GroupFixture* group) {
  if (!round.backup) return;
  BackupParams p = group->Backup();
  p.num_rows = group->num_rows();
  p.num_real_rows = &group->num_real_rows;
  p.row_to_request = group->row_to_request.data();
  p.slots = group->newest_slot.data();
  implementation.backup(p);
}

void Play(const Round& round, const Implementation& implementation, GroupFixture* group) {
  Prepare(round, implementation, group);
  Step(round, implementation, group);
  Finish(round, implementation, group);
}

}  // namespace kvtier::testing
