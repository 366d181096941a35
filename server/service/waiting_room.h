// Connections that were accepted and have not said enough yet to be served.
//
// They cost a descriptor and nothing else. Whoever waits too long has to go; so does, where there
// is no place left, the one that has waited for longest among those of the peer with most of them:
// a process that floods the daemon pushes out its own connections, not those of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/core/shared_memory.h"
#include "server/session/types.h"

namespace kvtier {

// Not thread-safe.
class WaitingRoom {
 public:
  struct Waiting {
    UniqueFd fd;
    Peer peer;            // {-1, -1}: not known
    std::string address;  // over TCP; all whose peer is not known and who have none are one peer
    size_t door = 0;
    uint32_t sequence = 0;  // tells it from an earlier one with the same descriptor
    absl::Time since;
  };

  WaitingRoom(size_t places, absl::Duration patience) : places_(places), patience_(patience) {}

  bool full() const { return waiting_.size() >= places_; }
  // Not if it is full.
  void Enter(Waiting waiting);
  // The one with descriptor `fd`; none if it is not here.
  std::optional<Waiting> Leave(int fd);
  // Null if it is not here.
  const Waiting* Find(int fd) const;
  // Who has to go if somebody has. Null if nobody waits.
  const Waiting* NextToGo() const;
  // All that have waited too long at `now`.
  std::vector<Waiting> SendAwayLate(absl::Time now);

  size_t size() const { return waiting_.size(); }

 private:
  using Key = std::tuple<int32_t, int32_t, std::string>;
  static Key KeyOf(const Waiting& waiting) {
    return {waiting.peer.pid, waiting.peer.uid, waiting.address};
  }

  const size_t places_;
  const absl::Duration patience_;
  std::list<Waiting> waiting_;  // longest first
  absl::flat_hash_map<int, std::list<Waiting>::iterator> by_fd_;
  // A process, or where the kernel does not name it (another PID namespace) all of a user's; over
  // TCP an address.
  absl::flat_hash_map<Key, size_t> counts_;
};

}  // namespace kvtier
