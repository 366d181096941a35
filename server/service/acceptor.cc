#include "server/service/acceptor.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/status_macros.h"
#include "server/service/first_words.h"
#include "server/service/peer_table.h"

namespace kvtier {
namespace {

// Out of descriptors or memory: somebody has to close something first.
constexpr absl::Duration kRest = absl::Milliseconds(100);
// How late one that waited too long may be noticed.
constexpr int kTickMilliseconds = 250, kRestMilliseconds = 50;
// New connections of one door before the others, and those who wait, get their turn.
constexpr int kAcceptsPerTurn = 64;
constexpr int kEventsPerTurn = 64;

// What an epoll event is about: the wakeup, a door, or one who waits. Of the latter the descriptor
// and, above the kind, a sequence number: an event may be of one who had to go earlier in the same
// turn, and whose descriptor another has got since.
constexpr uint64_t kWakeupTag = 0, kDoorTag = uint64_t{1} << 32, kWaitingTag = uint64_t{2} << 32;
constexpr int kSequenceShift = 34;
constexpr uint32_t kSequenceMask = (uint32_t{1} << (64 - kSequenceShift)) - 1;

uint64_t WaitingTagOf(int fd, uint32_t sequence) {
  return uint64_t{sequence} << kSequenceShift | kWaitingTag | static_cast<uint32_t>(fd);
}

bool Watch(int epoll, int operation, int fd, uint32_t events, uint64_t tag) {
  epoll_event event = {.events = events, .data = {.u64 = tag}};
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(std::vector<Door> doors,
                                                          const Options& options,
                                                          const Clock* clock, const Log* log,
                                                          ConnectionCounts* counts) {
  KVTIER_ASSIGN_OR_RETURN(Wakeup wakeup, Wakeup::Create());
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  bool watched =
      epoll.valid() && Watch(epoll.get(), EPOLL_CTL_ADD, wakeup.fd(), EPOLLIN, kWakeupTag);
  for (size_t i = 0; i < doors.size(); ++i) {
    // Opened by OpenDoors, once after each turn.
    watched = watched && Watch(epoll.get(), EPOLL_CTL_ADD, doors[i].listener, 0, kDoorTag | i);
  }
  if (!watched) return absl::ResourceExhaustedError(absl::StrCat("epoll: ", strerror(errno)));
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(doors), options, clock, log, counts,
                                                  std::move(wakeup), std::move(epoll)));
  KVTIER_ASSIGN_OR_RETURN(acceptor->thread_,
                          Thread::Start("kv-accept", [raw = acceptor.get()] { raw->Run(); }));
  return acceptor;
}

Acceptor::Acceptor(std::vector<Door> doors, const Options& options, const Clock* clock,
                   const Log* log, ConnectionCounts* counts, Wakeup wakeup, UniqueFd epoll)
    : doors_(std::move(doors)),
      clock_(clock),
      log_(log),
      counts_(counts),
      room_(options.waiting_max, options.first_words_max),
      wakeup_(std::move(wakeup)),
      epoll_(std::move(epoll)) {}

void Acceptor::Run() {
  for (;;) {
    OpenDoors();
    epoll_event events[kEventsPerTurn];
    const int timeout = rest_until_ > clock_->Now() ? kRestMilliseconds
                        : room_.size() > 0          ? kTickMilliseconds
                                                    : -1;
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, timeout);
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeupTag) return;
      if ((tag & kWaitingTag) != 0) {
        HearOf(tag, events[i].events);
      } else {
        AcceptSome(static_cast<uint32_t>(tag));
      }
    }
    for (const WaitingRoom::Waiting& late : room_.SendAwayLate(clock_->Now())) {
      End(late, Refusal::kSilent);
    }
    counts_->SetWaiting(room_.size());
  }
}

void Acceptor::OpenDoors() {
  if (rest_until_ > clock_->Now()) return;
  if (rest_until_ != absl::InfinitePast()) {
    // Is it any better? Asked also if nobody knocks: readiness depends on it.
    rest_until_ = absl::InfinitePast();
    for (size_t i = 0; i < doors_.size(); ++i) AcceptSome(i);
    if (rest_until_ != absl::InfinitePast()) return;
  }
  for (size_t i = 0; i < doors_.size(); ++i) {
    Watch(epoll_.get(), EPOLL_CTL_MOD, doors_[i].listener, EPOLLIN | EPOLLONESHOT, kDoorTag | i);
  }
}

void Acceptor::AcceptSome(size_t door) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd connection(
        accept4(doors_[door].listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      counts_->SetAcceptError(0);
      Greet(door, std::move(connection));
      continue;
    }
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN) {
      counts_->SetAcceptError(0);
      return;
    }
    // One who waits may give his descriptor to one who knocks.
    if (SendOneAway()) continue;
    if (counts_->accept_error() != error) {
      log_->Event(LogLevel::kWarning, "accept_failed", {{"error", strerror(error)}});
    }
    counts_->SetAcceptError(error);
    counts_->Refused(Refusal::kNoDescriptors);
    rest_until_ = clock_->Now() + kRest;
    return;
  }
}

void Acceptor::Greet(size_t door, UniqueFd connection) {
  const int fd = connection.get();
  const Peer peer = ProcessOf(fd);
  WaitingRoom::Waiting waiting = {.fd = std::move(connection),
                                  .peer = peer,
                                  .address = peer.uid < 0 ? AddressOf(fd) : "",
                                  .door = door,
                                  .sequence = next_sequence_++ & kSequenceMask,
                                  .since = clock_->Now()};
  // Most have spoken before they are accepted.
  if (Conclude(PeekFirstWords(fd), &waiting)) return;
  // Told of each arrival once, so that half a preface keeps nobody busy. What has come meanwhile is
  // an arrival.
  if (!Watch(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET,
             WaitingTagOf(fd, waiting.sequence))) {
    End(waiting, Refusal::kNoDescriptors);
    return;
  }
  if (room_.full()) SendOneAway();
  room_.Enter(std::move(waiting));
}

bool Acceptor::SendOneAway() {
  const WaitingRoom::Waiting* const next = room_.NextToGo();
  if (next == nullptr) return false;
  // What it has said and nobody has heard yet is heard first.
  const int fd = next->fd.get();
  if (PeekFirstWords(fd) == FirstWords::kNotYet) {
    End(*room_.Leave(fd), Refusal::kCrowded);
  } else {
    Hear(fd, /*has_hung_up=*/false);
  }
  return true;
}

void Acceptor::HearOf(uint64_t tag, uint32_t events) {
  const auto fd = static_cast<int>(static_cast<uint32_t>(tag));
  const WaitingRoom::Waiting* const waiting = room_.Find(fd);
  // It may have had to go earlier in this turn, and the number be another's.
  if (waiting == nullptr || WaitingTagOf(fd, waiting->sequence) != tag) return;
  Hear(fd, (events & (EPOLLHUP | EPOLLRDHUP)) != 0);
}

void Acceptor::Hear(int fd, bool has_hung_up) {
  const FirstWords words = PeekFirstWords(fd);
  if (words == FirstWords::kNotYet && !has_hung_up) return;
  std::optional<WaitingRoom::Waiting> waiting = room_.Leave(fd);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  Conclude(words, &*waiting);
}

bool Acceptor::Conclude(FirstWords words, WaitingRoom::Waiting* waiting) {
  switch (words) {
    case FirstWords::kNotYet:
      return false;
    case FirstWords::kGone:
      break;
    case FirstWords::kOther:
      End(*waiting, Refusal::kNotHttp2);
      break;
    case FirstWords::kHttp2:
    case FirstWords::kTls:
      doors_[waiting->door].take(std::move(waiting->fd));
      break;
  }
  return true;
}

void Acceptor::End(const WaitingRoom::Waiting& waiting, Refusal why) {
  counts_->Refused(why);
  log_->Event(LogLevel::kWarning, "connection_refused",
              {{"uid", waiting.peer.uid},
               {"pid", waiting.peer.pid},
               {"address", waiting.address},
               {"why", RefusalName(why)}});
}

}  // namespace kvtier
