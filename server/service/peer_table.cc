#include "server/service/peer_table.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/core/shared_memory.h"

namespace kvtier {
namespace {

// 0 if `fd` is not open.
ino_t InodeOf(int fd) {
  struct stat file = {};
  return fstat(fd, &file) == 0 ? file.st_ino : 0;
}

// Its group and its supplementary ones; the first alone where the kernel does not tell the others.
std::vector<int32_t> GroupsOf(int fd, gid_t gid) {
  std::vector<int32_t> gids = {static_cast<int32_t>(gid)};
  socklen_t bytes = 0;
  // The first call says how much room it takes.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes) == 0 || errno != ERANGE) {
    return gids;
  }
  std::vector<gid_t> others(bytes / sizeof(gid_t));
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, others.data(), &bytes) == 0) {
    for (const gid_t other : others) gids.push_back(static_cast<int32_t>(other));
  }
  return gids;
}

// A process that the kernel does not name counts as all of its user's that it does not name.
bool IsSameProcess(const Peer& a, const Peer& b) {
  return a.pid == b.pid && (a.pid >= 0 || a.uid == b.uid);
}

// None of another socket than a Unix one: of those of TCP the kernel says that they are nobody's.
std::optional<ucred> CredentialsOf(int fd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  if (credentials.uid == static_cast<uid_t>(-1)) return std::nullopt;
  return credentials;
}

// The number in a name like "fd:17"; -1 in others.
int FdOf(absl::string_view name) {
  int fd = -1;
  return absl::ConsumePrefix(&name, kLocalPeerPrefix) && absl::SimpleAtoi(name, &fd) ? fd : -1;
}

// pid 0: a process outside of the daemon's PID namespace.
Peer ProcessOf(const ucred& credentials) {
  return {.pid = credentials.pid > 0 ? credentials.pid : -1,
          .uid = static_cast<int32_t>(credentials.uid)};
}

}  // namespace

Peer PeerOf(int fd) {
  const std::optional<ucred> credentials = CredentialsOf(fd);
  if (!credentials.has_value()) return {};
  Peer peer = ProcessOf(*credentials);
  peer.gids = GroupsOf(fd, credentials->gid);
  return peer;
}

Peer ProcessOf(int fd) {
  const std::optional<ucred> credentials = CredentialsOf(fd);
  return credentials.has_value() ? ProcessOf(*credentials) : Peer();
}

std::string CountedAs(const Peer& peer) {
  return peer.pid >= 0 ? absl::StrCat("pid ", peer.pid) : absl::StrCat("uid ", peer.uid);
}

std::string CountedAs(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = {};
  in6_addr six = {};
  if (family == AF_INET) {
    // 127.0.0.0/8.
    if (*static_cast<const uint8_t*>(address) == IN_LOOPBACKNET) return "loopback";
    return inet_ntop(AF_INET, address, text, sizeof(text));
  }
  memcpy(&six, address, sizeof(six));
  if (IN6_IS_ADDR_LOOPBACK(&six)) return "loopback";
  if (IN6_IS_ADDR_V4MAPPED(&six)) return CountedAs(AF_INET, &six.s6_addr[12]);
  memset(&six.s6_addr[8], 0, 8);
  return absl::StrCat(inet_ntop(AF_INET6, &six, text, sizeof(text)), "/64");
}

std::string AddressOf(int fd) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "";
  if (storage.ss_family == AF_INET) {
    return CountedAs(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr);
  }
  if (storage.ss_family != AF_INET6) return "";
  return CountedAs(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

std::string AddressOf(absl::string_view name) {
  // "ipv6:[2001:db8::1%eth0]:4711", as part of a URI.
  std::string host = absl::StrReplaceAll(name.substr(0, name.rfind(':')),
                                         {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  host.resize(std::min(host.size(), host.find('%')));
  absl::string_view text = host;
  in6_addr address = {};
  for (const auto& [scheme, family] : {std::pair("ipv4:", AF_INET), std::pair("ipv6:", AF_INET6)}) {
    if (!absl::ConsumePrefix(&text, scheme)) continue;
    if (inet_pton(family, std::string(text).c_str(), &address) != 1) break;
    return CountedAs(family, &address);
  }
  return std::string(name);
}

void PeerTable::SetOperators(std::vector<int32_t> uids) {
  MutexLock lock(&mutex_);
  operators_ = std::move(uids);
}

std::optional<Refusal> PeerTable::Add(int fd, Peer peer, std::string address) {
  Entry entry = {.peer = std::move(peer), .address = std::move(address), .inode = InodeOf(fd)};
  MutexLock lock(&mutex_);
  // The number was given out anew, so that what is noted there has ended.
  entries_.erase(fd);
  std::optional<Refusal> refusal = Check(entry);
  if (refusal.has_value()) {
    DropEnded();
    refusal = Check(entry);
  }
  if (refusal.has_value()) return refusal;
  entry.id = next_id_++;
  entries_.emplace(fd, std::move(entry));
  return std::nullopt;
}

bool PeerTable::IsOperator(int32_t uid) const {
  return uid == 0 || uid == limits_.operator_uid ||
         std::find(operators_.begin(), operators_.end(), uid) != operators_.end();
}

size_t PeerTable::Count(const std::function<bool(const Entry&)>& counts) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [&counts](const auto& entry) { return counts(entry.second); }));
}

std::optional<Refusal> PeerTable::Check(const Entry& entry) const {
  const Peer& peer = entry.peer;
  const size_t places = limits_.connections_max - (IsOperator(peer.uid) ? 0 : limits_.reserved);
  if (entries_.size() >= places) return Refusal::kFull;
  if (!entry.address.empty()) {
    const size_t of_address =
        Count([&](const Entry& other) { return other.address == entry.address; });
    const size_t share = std::min(limits_.per_address_max, places - entries_.size());
    return of_address < share ? std::nullopt : std::make_optional(Refusal::kAddressFull);
  }
  const size_t of_process =
      Count([&](const Entry& other) { return IsSameProcess(other.peer, peer); });
  if (of_process >= limits_.per_process_max) return Refusal::kProcessFull;
  return std::nullopt;
}

PeerTable::Found PeerTable::Find(absl::string_view name) const {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(FdOf(name));
  if (found == entries_.end()) return {};
  const Entry& entry = found->second;
  return {.peer = entry.peer, .id = entry.id, .is_operator = IsOperator(entry.peer.uid)};
}

PeerTable::Entries::const_iterator PeerTable::Locate(int64_t id) const {
  return std::find_if(entries_.begin(), entries_.end(),
                      [id](const auto& entry) { return entry.second.id == id; });
}

Peer PeerTable::FindById(int64_t id) const {
  MutexLock lock(&mutex_);
  const auto found = Locate(id);
  return found == entries_.end() ? Peer() : found->second.peer;
}

bool PeerTable::End(int64_t id) {
  MutexLock lock(&mutex_);
  const auto found = Locate(id);
  if (found == entries_.end()) return false;
  // gRPC may close the number at any moment, and another connection get it: what is looked at and
  // what is ended are the same behind a number of our own, where there is one left.
  const UniqueFd own(fcntl(found->first, F_DUPFD_CLOEXEC, 0));
  const int fd = own.valid() ? own.get() : found->first;
  return InodeOf(fd) == found->second.inode && shutdown(fd, SHUT_RDWR) == 0;
}

size_t PeerTable::open() const {
  MutexLock lock(&mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    return InodeOf(entry.first) == entry.second.inode;
  }));
}

void PeerTable::DropEnded() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto current = it++;
    if (InodeOf(current->first) != current->second.inode) entries_.erase(current);
  }
}

}  // namespace kvtier
