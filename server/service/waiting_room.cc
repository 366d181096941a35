#include "server/service/waiting_room.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvtier {
namespace {

// A process, or where the kernel does not name it (another PID namespace) all of a user's.
std::pair<int32_t, int32_t> KeyOf(const Peer& peer) { return {peer.pid, peer.uid}; }

}  // namespace

std::optional<WaitingRoom::Waiting> WaitingRoom::Leave(int fd) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [fd](const Waiting& one) { return one.fd.get() == fd; });
  if (found == waiting_.end()) return std::nullopt;
  Waiting waiting = std::move(*found);
  waiting_.erase(found);
  return waiting;
}

const WaitingRoom::Waiting* WaitingRoom::Find(int fd) const {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [fd](const Waiting& one) { return one.fd.get() == fd; });
  return found == waiting_.end() ? nullptr : &*found;
}

const WaitingRoom::Waiting* WaitingRoom::NextToGo() const {
  absl::flat_hash_map<std::pair<int32_t, int32_t>, size_t> counts;
  size_t most = 0;
  for (const Waiting& one : waiting_) most = std::max(most, ++counts[KeyOf(one.peer)]);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
    return counts[KeyOf(one.peer)] == most;
  });
  return found == waiting_.end() ? nullptr : &*found;
}

std::vector<WaitingRoom::Waiting> WaitingRoom::SendAwayLate(absl::Time now) {
  std::vector<Waiting> late;
  while (!waiting_.empty() && now - waiting_.front().since >= patience_) {
    late.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return late;
}

}  // namespace kvtier
