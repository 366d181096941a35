// The descriptor socket, both sides: peers of the daemon that send whatever they like, descriptors
// too, and a daemon that answers whatever it likes to the client. A token gives its descriptor
// once, a guess gives none, and no descriptor is left behind.
#include <dirent.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/support/fd_channel.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/shared_memory.h"
#include "server/service/fd_server.h"
#include "server/service/log.h"
#include "server/service/unix_socket.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

constexpr size_t kClients = 4;
constexpr size_t kSentDescriptorsMax = 3;
constexpr int kLooksMax = 50'000'000;  // only a leak looks so often

int OpenDescriptors() {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// A packet with `count` descriptors.
void SendPacket(int socket, const std::string& bytes, size_t count, int descriptor) {
  iovec part = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  std::array<char, CMSG_SPACE(kSentDescriptorsMax * sizeof(int))> control{};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (count > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) {
      memcpy(CMSG_DATA(rights) + i * sizeof(int), &descriptor, sizeof(descriptor));
    }
  }
  sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// A served descriptor socket, whose good tokens are "good <n>", each once.
class World {
 public:
  World()
      : path_(absl::StrCat("/tmp/kvf", getpid(), ".fd")),
        memory_(memfd_create("fuzz", MFD_CLOEXEC)) {
    log_.SetLevel(LogLevel::kError);
    struct stat file = {};
    fstat(memory_.get(), &file);
    inode_ = file.st_ino;
    listener_ = std::make_unique<UnixListener>(
        *UnixListener::Listen(path_, SOCK_SEQPACKET, {.mode = 0600}));
    server_ = *FdServer::Start(listener_->fd(), &clock_, &log_,
                               [this](absl::string_view token, Peer) { return Redeem(token); });
  }

  absl::Status Play(absl::string_view input, Played* played);

 private:
  absl::StatusOr<UniqueFd> Redeem(absl::string_view token) {
    MutexLock lock(&mutex_);
    if (token != good_) return absl::NotFoundError("no such token");
    good_.clear();
    return UniqueFd(dup(memory_.get()));
  }
  std::string NewToken() {
    MutexLock lock(&mutex_);
    return good_ = absl::StrCat("good ", ++tokens_);
  }
  absl::Status CheckService();
  absl::Status AnswerClient(const std::string& bytes, size_t descriptors);

  const std::string path_;
  const UniqueFd memory_;
  ino_t inode_ = 0;
  SystemClock clock_;
  Log log_{&clock_};
  std::unique_ptr<UnixListener> listener_;
  Mutex mutex_;  // rank: leaf
  std::string good_ KVTIER_GUARDED_BY(mutex_);
  int64_t tokens_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<FdServer> server_;
};

// Whatever others do, a client with a token gets its descriptor, once.
absl::Status World::CheckService() {
  const auto socket = ConnectFdSocket(path_);
  if (!socket.ok()) return absl::InternalError(socket.status().ToString());
  const std::string token = NewToken();
  const auto memory = RedeemFd(*socket, token, absl::InfiniteFuture());
  if (!memory.ok()) return absl::InternalError(memory.status().ToString());
  struct stat file = {};
  if (fstat(memory->get(), &file) != 0 || file.st_ino != inode_) {
    return absl::InternalError("another descriptor than the token's");
  }
  const auto again = RedeemFd(*socket, token, absl::InfiniteFuture());
  if (!absl::IsNotFound(again.status())) return absl::InternalError("a token was good twice");
  return absl::OkStatus();
}

// The client, and a daemon that answers `bytes`.
absl::Status World::AnswerClient(const std::string& bytes, size_t descriptors) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return absl::InternalError("socketpair");
  }
  const Descriptor client(ends[0]);
  Descriptor daemon(ends[1]);
  SendPacket(daemon.get(), bytes, descriptors, memory_.get());
  const auto memory = RedeemFd(client, "token", absl::InfinitePast());
  const bool is_one =
      bytes.size() >= 4 && bytes.substr(0, 4) == std::string(4, '\0') && descriptors == 1;
  if (memory.ok() && !is_one) return absl::InternalError("the client took what is no answer");
  return absl::OkStatus();
}

absl::Status World::Play(absl::string_view input, Played* played) {
  const int before = OpenDescriptors();
  std::array<Descriptor, kClients> clients;
  absl::Status wrong;
  size_t at = 0;
  const auto next = [&]() -> uint8_t {
    return at < input.size() ? static_cast<uint8_t>(input[at++]) : uint8_t{0};
  };
  while (at < input.size() && wrong.ok()) {
    ++played->operations;
    const uint8_t verb = next();
    Descriptor& client = clients[(verb >> 4) % kClients];
    const size_t length = verb % 8 < 4 ? next() : 0;
    const std::string bytes(input.substr(std::min(at, input.size()), length));
    at += bytes.size();
    const size_t descriptors = (verb >> 6) % (kSentDescriptorsMax + 1);
    switch (verb % 8) {
      case 0:
      case 1:
        if (!client.valid()) {
          auto socket = ConnectFdSocket(path_);
          if (socket.ok()) client = *std::move(socket);
        }
        if (client.valid()) SendPacket(client.get(), bytes, descriptors, memory_.get());
        break;
      case 2:
      case 3:
        wrong = AnswerClient(bytes, descriptors);
        break;
      case 4:
        client = Descriptor();
        break;
      case 5:
        if (client.valid()) shutdown(client.get(), SHUT_WR);
        break;
      case 6:
        if (client.valid()) shutdown(client.get(), SHUT_RD);
        break;
      default:
        wrong = CheckService();
    }
  }
  wrong.Update(CheckService());
  for (Descriptor& client : clients) client = Descriptor();
  // The daemon's ends go when its thread has seen that ours are gone.
  for (int looks = 0; wrong.ok() && OpenDescriptors() != before; ++looks) {
    if (looks > kLooksMax) wrong = absl::InternalError("descriptors were left");
    std::this_thread::yield();
  }
  return wrong;
}

absl::Status Play(absl::string_view input, Played* played) {
  static World world;
  return world.Play(input, played);
}

// Changed bytes, and some verbs more: so that one input is many packets.
std::string Mutate(absl::string_view input, Random& random) {
  constexpr size_t kInputBytesMax = 1024;
  constexpr uint64_t kVerbsMax = 24;
  std::string made = MutateBytes(input, random, {"good 1", "token", std::string(4, '\0')});
  for (uint64_t i = Below(random, kVerbsMax); i > 0; --i) {
    made += static_cast<char>(Below(random, 256));
    const uint64_t length = Below(random, Below(random, 8) == 0 ? 256 : 24);
    made += static_cast<char>(length);
    for (uint64_t j = 0; j < length; ++j) made += static_cast<char>(Below(random, 256));
  }
  if (made.size() > kInputBytesMax) made.resize(kInputBytesMax);
  return made;
}

}  // namespace

Target GetTarget() { return {.play = Play, .mutate = Mutate}; }

}  // namespace kvtier::fuzz
