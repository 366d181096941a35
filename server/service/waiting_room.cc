#include "server/service/waiting_room.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvtier {

void WaitingRoom::Enter(Waiting waiting) {
  const int fd = waiting.fd.get();
  ++counts_[KeyOf(waiting)];
  waiting_.push_back(std::move(waiting));
  by_fd_[fd] = std::prev(waiting_.end());
}

std::optional<WaitingRoom::Waiting> WaitingRoom::Leave(int fd) {
  const auto found = by_fd_.find(fd);
  if (found == by_fd_.end()) return std::nullopt;
  Waiting waiting = std::move(*found->second);
  waiting_.erase(found->second);
  by_fd_.erase(found);
  const auto count = counts_.find(KeyOf(waiting));
  if (--count->second == 0) counts_.erase(count);
  return waiting;
}

const WaitingRoom::Waiting* WaitingRoom::Find(int fd) const {
  const auto found = by_fd_.find(fd);
  return found == by_fd_.end() ? nullptr : &*found->second;
}

const WaitingRoom::Waiting* WaitingRoom::NextToGo() const {
  size_t most = 0;
  for (const auto& [key, count] : counts_) most = std::max(most, count);
  // Where one peer has most of the places it has the first ones, too: no long way.
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
    return counts_.find(KeyOf(one))->second == most;
  });
  return found == waiting_.end() ? nullptr : &*found;
}

std::vector<WaitingRoom::Waiting> WaitingRoom::SendAwayLate(absl::Time now) {
  std::vector<Waiting> late;
  while (!waiting_.empty() && now - waiting_.front().since >= patience_) {
    late.push_back(*Leave(waiting_.front().fd.get()));
  }
  return late;
}

}  // namespace kvtier
