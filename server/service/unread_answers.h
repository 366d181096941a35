// Answers that are large, and that their clients have not read yet.
//
// gRPC keeps an answer until its client takes it, however large it is and however long that lasts;
// a client that never reads could so make the daemon hold any amount of memory. Here each answer
// that may be large has a place before it is computed: a connection that has none left, or a
// process with many of them, gets no further step done, and a connection that leaves much of what
// it has been answered for kUnreadMax is to be ended, whatever else it reads meanwhile. What the
// processes leave that read nothing is not to hurt those that read: these find places that are kept
// for them. Steps that leave their results in the step buffers need no place.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"

namespace kvtier {

// In memory, as a message and not as it is sent: eight of the largest answers.
inline constexpr int64_t kUnreadBytesMax = int64_t{256} << 20;
// Of all connections of a process (or what counts as one: CountedAs).
inline constexpr int64_t kUnreadBytesOfPeerMax = int64_t{512} << 20;
// Of all connections; and beyond that, for processes that have nothing waiting.
inline constexpr int64_t kUnreadBytesOfAllMax = int64_t{1} << 30;
inline constexpr int64_t kUnreadBytesReserved = int64_t{512} << 20;
// A client that leaves answers for so long does not read them: if they are so much. Who has less
// waiting costs little, and may be a worker that somebody has stopped for a while.
inline constexpr absl::Duration kUnreadMax = absl::Seconds(30);
inline constexpr int64_t kDeafBytesMin = int64_t{16} << 20;

// Thread-safe. Owned by its places too: the answer that a device owes may come late.
class UnreadAnswers : public std::enable_shared_from_this<UnreadAnswers> {
 public:
  struct Limits {
    int64_t bytes_max = kUnreadBytesMax;
    int64_t bytes_of_peer_max = kUnreadBytesOfPeerMax;
    int64_t bytes_of_all_max = kUnreadBytesOfAllMax;
    int64_t bytes_reserved = kUnreadBytesReserved;
    absl::Duration unread_max = kUnreadMax;
    int64_t deaf_bytes_min = kDeafBytesMin;
  };
  // Who is answered: a connection (PeerTable::Found: a place may outlive it, and its name be
  // another's), and as whom its calls are counted.
  struct Reader {
    int64_t connection = 0;
    std::string peer;
  };
  // A connection that does not read.
  struct Deaf {
    int64_t connection = 0;
    std::string session_id;
    int64_t bytes = 0;  // of answers that have waited for too long
  };

  // An answer that waits for its client.
  struct Ready {
    absl::Time since;
    int64_t bytes = 0;
  };

  // The place of one answer, from before it is computed until its client has taken it.
  class Place {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // The answer is there, and waits for its client.
    void SetReady();

   private:
    friend class UnreadAnswers;
    Place(std::shared_ptr<UnreadAnswers> answers, Reader reader, int64_t bytes)
        : answers_(std::move(answers)), reader_(std::move(reader)), bytes_(bytes) {}

    const std::shared_ptr<UnreadAnswers> answers_;
    const Reader reader_;
    const int64_t bytes_;
    std::optional<std::list<Ready>::iterator> ready_;  // of whoever answers
  };

  // `clock` must outlive it. To be made by std::make_shared.
  UnreadAnswers(const Limits& limits, const Clock* clock) : limits_(limits), clock_(clock) {}

  // A place for an answer of at most `bytes`. One of 0 bytes always gets one; who has nothing
  // waiting does while there are reserved bytes. Errors: RESOURCE_EXHAUSTED / LIMIT_REACHED.
  absl::StatusOr<std::shared_ptr<Place>> Take(const Reader& reader, absl::string_view session_id,
                                              int64_t bytes);
  // Connections where too much has waited for too long, each once.
  std::vector<Deaf> FindDeaf();
  // Of all connections: places taken.
  int64_t bytes() const;

 private:
  struct Connection {
    int64_t places = 0, bytes = 0;
    std::list<Ready> ready;  // the oldest first
    std::string session_id;  // of the last answer
    bool told = false;
  };
  absl::Status Check(const Reader& reader, int64_t bytes) const KVTIER_REQUIRES(mutex_);
  void Release(const Place& place);

  const Limits limits_;
  const Clock* const clock_;
  mutable Mutex mutex_;  // rank: a leaf
  std::map<int64_t, Connection> connections_ KVTIER_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> peers_ KVTIER_GUARDED_BY(mutex_);  // bytes, where there are any
  int64_t bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
