// Accepts connections of the daemon's sockets on a thread of its own, and hands on those that speak
// HTTP/2 (or TLS).
//
// gRPC's listener has no credentials of its peers, follows the umask, takes over living sockets,
// and in this version stops accepting for good after certain errors. This one never stops: what
// fails is logged, and tried again a little later. And as gRPC spends tens of kilobytes on a
// connection that says nothing, and waits for it for ever, nobody gets there before he has spoken:
// until then he waits (waiting_room.h), at most kFirstWordsMax.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/shared_memory.h"
#include "server/core/thread.h"
#include "server/service/connection_counts.h"
#include "server/service/first_words.h"
#include "server/service/log.h"
#include "server/service/waiting_room.h"
#include "server/service/wakeup.h"

namespace kvtier {

// From being accepted to the end of the first words: clients send them at once.
inline constexpr absl::Duration kFirstWordsMax = absl::Seconds(10);
// Connections that wait, at most. A node's workers may all start at once.
inline constexpr size_t kWaitingMax = 512;

class Acceptor {
 public:
  // Where connections come from.
  struct Door {
    int listener = -1;  // non-blocking, and listens
    // Gets each connection that has spoken, non-blocking and close-on-exec.
    std::function<void(UniqueFd)> take;
  };
  struct Options {
    size_t waiting_max = kWaitingMax;
    absl::Duration first_words_max = kFirstWordsMax;
  };

  // Listeners, `clock`, `log` and `counts` must outlive the acceptor. Doors are asked on its
  // thread. Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(std::vector<Door> doors,
                                                         const Options& options, const Clock* clock,
                                                         const Log* log, ConnectionCounts* counts);
  // After this returns doors are asked no more. Closes all who still wait.
  ~Acceptor() { wakeup_.Wake(); }
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor(std::vector<Door> doors, const Options& options, const Clock* clock, const Log* log,
           ConnectionCounts* counts, Wakeup wakeup, UniqueFd epoll);
  void Run();
  // Listens again at doors that are not at rest.
  void OpenDoors();
  // Some of those who knock. Puts the door to rest if none can be taken.
  void AcceptSome(size_t door);
  void Greet(size_t door, UniqueFd connection);
  // Makes room. False if nobody waits.
  bool SendOneAway();
  // What an event says of one who waits, or has waited.
  void HearOf(uint64_t tag, uint32_t events);
  // Hands on, or ends, a connection that waits and may have spoken.
  void Hear(int fd, bool has_hung_up);
  // Hands on who has spoken, ends who has said something else. False: he has to wait.
  bool Conclude(FirstWords words, WaitingRoom::Waiting* waiting);
  void End(const WaitingRoom::Waiting& waiting, Refusal why);

  const std::vector<Door> doors_;
  const Clock* const clock_;
  const Log* const log_;
  ConnectionCounts* const counts_;
  WaitingRoom room_;  // these three: of the thread
  uint32_t next_sequence_ = 0;
  absl::Time rest_until_ = absl::InfinitePast();
  const Wakeup wakeup_;
  const UniqueFd epoll_;
  Thread thread_;  // last: joins while the rest is there
};

}  // namespace kvtier
