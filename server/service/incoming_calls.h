// Calls, from their headers to their ends, and how much of their requests may be on its way.
//
// gRPC receives all of a unary call's request before anybody here hears of the call: up to
// wire::kMessageBytesMax for each of any number of calls, also of a client that never sends the
// last byte. So calls are met at their headers instead (receiving_handler.h), and a request is
// asked for when there is room for one. Until then HTTP/2's flow control keeps all but its first
// 64 KiB at the client. What has been received stays for as long as its call, and is counted.
//
// Of everything one user gets no more than half of what others leave, and one peer - a process, a
// user's processes in containers, a TCP address - half of what is left of that: there is always
// some for others. The last is for operators.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace kvtier {

// Calls of one connection at a time: a worker's steps, and more. HTTP/2 says so to clients, too,
// but this gRPC does not hold one to it that never acknowledges that it has heard.
inline constexpr size_t kCallsPerConnectionMax = 256;

// Thread-safe. Owned by its places too. To be made by std::make_shared.
class IncomingCalls : public std::enable_shared_from_this<IncomingCalls> {
 public:
  struct Limits {
    // A call that has not been asked for its request costs about 120 KB.
    size_t calls_max = 4096;
    size_t calls_of_connection_max = kCallsPerConnectionMax;
    // Requests that are being received: 1 GiB, if all are as large as may be.
    size_t receiving_max = 32;
    size_t receiving_of_connection_max = 8;
    // Calls that go on receiving requests, one after the other (RunSteps), and of which nobody here
    // sees how much of a request is there: 8 GiB, if all are as large as may be. A session has one.
    size_t streams_max = 256;
    size_t streams_of_connection_max = 64;
    // Calls that tell what changes, until their clients end them (Health.Watch), of one peer.
    size_t watches_of_peer_max = 32;
    // Calls that read all statistics again and again (WatchStats), up to ten times a second each,
    // of one peer: a dashboard and some tools.
    size_t stats_watches_of_peer_max = 8;
    // Bytes of requests that were received and whose calls are not over.
    size_t kept_bytes_max = size_t{1} << 30;
    // For operators, so that there is a way in when others have taken all the rest; where there is
    // little, a sixteenth of it.
    size_t calls_reserved = 64;
    size_t receiving_reserved = 2;
    // From when a request is asked for to when all of it is there. A worker's largest takes a
    // fraction of a second.
    absl::Duration receiving_duration_max = absl::Seconds(10);
  };
  struct Caller {
    std::string connection, peer;
    std::string user;  // whose process it is; empty: the peer is all that is known
    bool is_operator = false;
  };
  enum class Kind { kOneRequest, kWatch, kStatsWatch, kStream };

 private:
  struct Use;
  struct Connection;
  // Where the calls of a caller are counted: entries that stay where they are until it has none.
  struct Counted {
    Connection* connection = nullptr;
    Use* peer = nullptr;
    Use* user = nullptr;  // null: the peer is all that is known
    bool is_operator = false;
  };

 public:
  // Of one call, until it is over.
  class Place {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    friend class IncomingCalls;
    Place(std::shared_ptr<IncomingCalls> calls, const Caller& caller, const Counted& counted,
          Kind kind)
        : calls_(std::move(calls)), caller_(caller), counted_(counted), kind_(kind) {}

    const std::shared_ptr<IncomingCalls> calls_;
    const Caller caller_;
    const Counted counted_;
    const Kind kind_;
    size_t kept_bytes_ = 0;  // under the lock of `calls_`
  };

  // `clock` must outlive it.
  IncomingCalls(const Limits& limits, const Clock* clock) : limits_(limits), clock_(clock) {}

  // A call has begun. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED.
  absl::StatusOr<std::shared_ptr<Place>> Begin(const Caller& caller, Kind kind);

  // Runs `start` when the call's request may be received: before this returns, or on a thread that
  // makes room. Connections take turns. From then on until Received, `give_up` runs once if it
  // takes too long.
  void Receive(std::shared_ptr<Place> place, std::function<void()> start,
               std::function<void()> give_up);
  // The call's request takes so much for as long as the call is not over. Once. Errors:
  // RESOURCE_EXHAUSTED / LIMIT_REACHED, and then it has to go at once.
  absl::Status Keep(Place* place, size_t bytes);
  // It is there, or will never be. Once for each `start`.
  void Received(const Place* place);
  // To be called every now and then; never waits.
  void GiveUpLate();

  size_t calls() const;
  size_t receiving() const;

 private:
  struct Use {
    size_t calls = 0, receiving = 0, streams = 0, watches = 0, stats_watches = 0, kept_bytes = 0;
  };
  using Count = size_t Use::*;
  struct Waiting {
    std::shared_ptr<Place> place;
    std::function<void()> start, give_up;
  };
  struct Connection {
    Use use;
    std::deque<Waiting> waiting;
  };
  struct Receiving {
    const Place* place = nullptr;
    absl::Time since;
    std::function<void()> give_up;  // empty once it has run
  };
  using Starts = std::vector<std::function<void()>>;

  void End(const Place& place);
  // Changes the use of all, and of whoever the caller counts as.
  template <typename Function>
  void Change(const Counted& counted, const Function& change) KVTIER_REQUIRES(mutex_);
  // Forgets whoever `caller` counts as and has no call.
  void DropIdle(const Caller& caller, const Counted& counted) KVTIER_REQUIRES(mutex_);
  // How many of `limit` the caller's peer may have, as long as others have what they have.
  size_t CapOf(const Counted& counted, Count count, size_t limit, size_t reserved) const
      KVTIER_REQUIRES(mutex_);
  absl::Status Check(const Counted& counted, Kind kind) const KVTIER_REQUIRES(mutex_);
  // Those whose turn it is.
  Starts TakeTurns() KVTIER_REQUIRES(mutex_);
  bool MayReceive(const Counted& counted) const KVTIER_REQUIRES(mutex_);

  const Limits limits_;
  const Clock* const clock_;
  mutable Mutex mutex_;  // rank: a leaf
  Use use_ KVTIER_GUARDED_BY(mutex_);
  // Of those who have a call.
  std::map<std::string, Use> peers_ KVTIER_GUARDED_BY(mutex_), users_ KVTIER_GUARDED_BY(mutex_);
  std::map<std::string, Connection> connections_ KVTIER_GUARDED_BY(mutex_);
  std::list<Connection*> turns_ KVTIER_GUARDED_BY(mutex_);    // where calls wait
  std::list<Receiving> receiving_ KVTIER_GUARDED_BY(mutex_);  // the oldest first
};

// Of all that come over TCP: operators' tools and probes, with small requests.
inline constexpr IncomingCalls::Limits kTcpCalls = {.calls_max = 512,
                                                    .receiving_max = 8,
                                                    .receiving_of_connection_max = 4,
                                                    .streams_max = 16,
                                                    .kept_bytes_max = size_t{16} << 20};

}  // namespace kvtier
