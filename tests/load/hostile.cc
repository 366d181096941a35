#include "tests/load/hostile.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/load/hostile_calls.h"
#include "tests/load/http2.h"
#include "tests/load/pace.h"

namespace kvtier::load {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// Connections made in one tick, 1,000 a second: what is measured is a daemon with strangers at its
// doors, and not who gets more of the processors.
constexpr int32_t kConnectsPerTick = 100;

// A peer that holds connections: what it sends on a new one, and on one that is `age` ticks old.
struct Holder {
  std::function<std::string()> first;
  std::function<std::string(size_t age)> later;
};

struct Held {
  Descriptor peer;
  size_t age = 0;
};

// One connection more. False if that was refused.
bool HoldOneMore(const HostileOptions& options, const Holder& holder, std::vector<Held>* held,
                 HostileResult* result) {
  absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
  if (peer.ok() && holder.first) {
    if (absl::Status sent = SendAll(*peer, holder.first()); !sent.ok()) peer = sent;
  }
  if (!peer.ok()) {
    ++result->refused;
    result->last_word = peer.status().ToString();
    return false;
  }
  ++result->opened;
  held->push_back({*std::move(peer)});
  return true;
}

HostileResult Hold(const HostileOptions& options, const Holder& holder) {
  HostileResult result;
  std::vector<Held> held;
  while (GoesOn(options, result)) {
    result.closed += std::ssize(held);
    std::erase_if(held, [&](Held& one) {
      ++one.age;
      return IsClosed(one.peer) || (holder.later && !SendAll(one.peer, holder.later(one.age)).ok());
    });
    result.closed -= std::ssize(held);
    for (int32_t i = 0; i < kConnectsPerTick && std::ssize(held) < options.count; ++i) {
      if (!HoldOneMore(options, holder, &held, &result)) break;
    }
    result.held_max = std::max<int64_t>(result.held_max, std::ssize(held));
    Pace(kTick);
  }
  return result;
}

HostileResult BeSilent(const HostileOptions& options) { return Hold(options, {}); }

HostileResult SendHalfFrames(const HostileOptions& options) {
  const std::string headers = CallHeaders(1, "/kvtier.v1.KvTierAdmin/GetStats");
  return Hold(options, {.first = [&] {
                return Preface() + Settings({}) + headers.substr(0, headers.size() / 2);
              }});
}

HostileResult Drip(const HostileOptions& options) {
  constexpr size_t kTicksPerByte = 5;
  const std::string script =
      Preface() + Settings({}) + CallHeaders(1, "/kvtier.v1.KvTierAdmin/GetStats");
  return Hold(options, {.later = [&](size_t age) {
                const size_t at = age / kTicksPerByte;
                return age % kTicksPerByte == 0 && at < script.size() ? script.substr(at, 1) : "";
              }});
}

HostileResult BreakHandshakes(const HostileOptions& options) {
  HostileResult result;
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same attack every time
  const std::string words = Preface() + Settings({}) + CallHeaders(1, "/grpc.health.v1/Check");
  while (GoesOn(options, result)) {
    const absl::Time next = absl::Now() + kTick;
    for (int32_t i = 0; i < options.count / 10; ++i) {
      absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
      if (!peer.ok()) {
        ++result.refused;
        result.last_word = peer.status().ToString();
        continue;
      }
      ++result.opened;
      (void)SendAll(*peer, words.substr(0, random() % words.size()));
      if (random() % 2 == 0) Reset(*std::move(peer));
    }
    PaceUntil(next);
  }
  return result;
}

HostileResult OpenStreams(const HostileOptions& options) {
  HostileResult result;
  while (GoesOn(options, result)) {
    absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
    if (!peer.ok() || !SendAll(*peer, Preface() + Settings({})).ok()) {
      ++result.refused;
      Pace(kTick);
      continue;
    }
    ++result.opened;
    std::string answers;
    bool closed = false;
    for (int32_t i = 0; i < options.count && !closed; ++i) {
      const uint32_t stream = 2 * static_cast<uint32_t>(i) + 1;
      closed = !SendAll(*peer, CallHeaders(stream, "/kvtier.v1.KvTier/OpenSession")).ok() ||
               ReadAvailable(*peer, &answers);
    }
    for (int i = 0; i < 10 && !closed && GoesOn(options, result); ++i) {
      Pace(kTick);
      closed = ReadAvailable(*peer, &answers);
    }
    result.closed += closed ? 1 : 0;
    result.answered += CountFrames(answers, FrameKind::kReset);
  }
  return result;
}

// The client's side of one connection that keeps to HTTP/2's windows, as it has to: who does not is
// hung up on.
class Sender {
 public:
  Sender(const Descriptor* peer, int32_t calls) : peer_(peer) {
    for (int32_t i = 0; i < calls; ++i) calls_[2 * static_cast<uint32_t>(i) + 1] = {};
  }

  // False: the daemon has ended it.
  bool Open() {
    if (!SendAll(*peer_, Preface() + Settings({})).ok()) return false;
    for (const auto& [stream, call] : calls_) {
      if (!SendAll(*peer_, CallHeaders(stream, "/kvtier.v1.KvTier/Backup")).ok() || !Hear()) {
        return false;
      }
    }
    return true;
  }
  // What the windows allow. Was anything sent?
  bool SendSome() {
    bool sent = false;
    for (auto& [stream, call] : calls_) {
      const int64_t bytes = std::min({window_, call.window, call.left, kFrameBytes});
      if (bytes <= 0) continue;
      std::string payload(static_cast<size_t>(bytes), '\0');
      if (call.left == kRequestBytes) {
        payload = MessageHead(kRequestBytes);
        payload.resize(static_cast<size_t>(bytes));
      }
      if (!SendAll(*peer_, Frame(FrameKind::kData, 0, stream, payload)).ok()) return false;
      window_ -= bytes;
      call.window -= bytes;
      call.left -= bytes;
      sent_bytes_ += bytes;
      sent = true;
    }
    return sent;
  }
  // False: the daemon has ended it.
  bool Hear() {
    const bool closed = ReadAvailable(*peer_, &heard_);
    for (const ReceivedFrame& frame : TakeFrames(&heard_)) {
      if (frame.kind == FrameKind::kWindowUpdate && frame.stream == 0) {
        window_ += IncrementOf(frame);
      } else if (frame.kind == FrameKind::kWindowUpdate && calls_.contains(frame.stream)) {
        calls_[frame.stream].window += IncrementOf(frame);
      } else if (frame.kind == FrameKind::kReset || (frame.flags & kEndStream) != 0) {
        ended_ += std::ssize(calls_);
        calls_.erase(frame.stream);
        ended_ -= std::ssize(calls_);
      }
    }
    return !closed;
  }

  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t ended() const { return ended_; }

 private:
  static constexpr int64_t kRequestBytes = 32 << 20, kFrameBytes = 16384;
  struct Call {
    int64_t window = kFirstWindow;
    int64_t left = kRequestBytes;  // with its head that leaves the last bytes unsaid
  };
  const Descriptor* const peer_;
  std::map<uint32_t, Call> calls_;
  int64_t window_ = kFirstWindow, sent_bytes_ = 0, ended_ = 0;
  std::string heard_;
};

HostileResult SendLargeRequests(const HostileOptions& options) {
  HostileResult result;
  while (GoesOn(options, result)) {
    const absl::StatusOr<Descriptor> peer = ConnectTo(options.address);
    if (!peer.ok()) {
      ++result.refused;
      Pace(kTick);
      continue;
    }
    ++result.opened;
    Sender sender(&*peer, options.count);
    bool open = sender.Open();
    const HostileResult earlier = result;
    while (open && GoesOn(options, result)) {
      if (!sender.SendSome()) Pace(kTick / 10);
      open = sender.Hear();
      result.answered = earlier.answered + sender.ended();
      result.sent_bytes = earlier.sent_bytes + sender.sent_bytes();
    }
    result.closed += open ? 0 : 1;
  }
  result.held_max = 1;
  return result;
}

using Kind = std::function<absl::StatusOr<HostileResult>(const HostileOptions&)>;

const std::map<std::string, Kind>& Kinds() {
  static const auto* const kinds =
      new std::map<std::string, Kind>{{"silent", BeSilent},
                                      {"handshakes", BreakHandshakes},
                                      {"half_frames", SendHalfFrames},
                                      {"streams", OpenStreams},
                                      {"unread_calls", LeaveSessionsUnread},
                                      {"unread_steps", LeaveStepsUnread},
                                      {"unread_unary", LeaveAnswersUnread},
                                      {"large_requests", SendLargeRequests},
                                      {"drip", Drip}};
  return *kinds;
}

}  // namespace

bool GoesOn(const HostileOptions& options, const HostileResult& result) {
  const absl::Time now = absl::Now();
  if (now < options.end) return true;
  return options.enough && !options.enough(result) && now < options.end + kOvertimeMax;
}

const std::vector<std::string>& HostileKinds() {
  static const auto* const names = [] {
    auto* const list = new std::vector<std::string>;
    for (const auto& [name, kind] : Kinds()) list->push_back(name);
    return list;
  }();
  return *names;
}

absl::StatusOr<HostileResult> BeHostile(const HostileOptions& options) {
  const auto kind = Kinds().find(options.kind);
  if (kind == Kinds().end()) {
    return absl::InvalidArgumentError(absl::StrCat("no hostile kind: ", options.kind));
  }
  RaiseDescriptorLimit();
  return kind->second(options);
}

}  // namespace kvtier::load
