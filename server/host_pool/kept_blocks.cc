#include "server/host_pool/kept_blocks.h"

namespace kvtier {

void KeptBlocks::Add(int32_t block) {
  const int64_t number = ++last_number_;
  if (!by_block_.emplace(block, number).second) return;
  by_age_.emplace(number, block);
}

bool KeptBlocks::Remove(int32_t block) {
  const auto found = by_block_.find(block);
  if (found == by_block_.end()) return false;
  by_age_.erase({found->second, block});
  by_block_.erase(found);
  return true;
}

std::vector<int32_t> KeptBlocks::TakeOldest(int32_t count) {
  std::vector<int32_t> taken;
  while (static_cast<int32_t>(taken.size()) < count && !by_age_.empty()) {
    taken.push_back(by_age_.begin()->second);
    by_block_.erase(by_age_.begin()->second);
    by_age_.erase(by_age_.begin());
  }
  return taken;
}

std::vector<int32_t> KeptBlocks::List(int32_t first, int32_t count_max) const {
  std::vector<int32_t> blocks;
  for (auto it = by_block_.lower_bound(first);
       it != by_block_.end() && static_cast<int32_t>(blocks.size()) < count_max; ++it) {
    blocks.push_back(it->first);
  }
  return blocks;
}

}  // namespace kvtier
