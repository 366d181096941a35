// A worker that goes into a phase and stays in it until it is killed.
//
//   victim SOCKET PHASE      phases: victim.h
//
// Writes a byte to standard output when it is in the phase, and one after each call that it makes
// there.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cache.h"
#include "client/demo/worker.h"
#include "client/session.h"
#include "client/steps.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "proto/support/fd_channel.h"
#include "tests/gpu/reader.h"

namespace kvtier::testing {
namespace {

using Call = std::function<absl::Status()>;

void Say() {
  if (write(STDOUT_FILENO, "x", 1) != 1) _exit(1);
}

// Until it is killed, or a call fails.
absl::Status Repeat(const Call& call) {
  Say();
  while (true) {
    if (absl::Status status = call(); !status.ok()) return status;
    Say();
  }
}

absl::Status Stay() {
  Say();
  for (;;) pause();
}

absl::Status Connect(const std::string& socket_path) {
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  std::strncpy(address.sun_path, socket_path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return Stay();
}

v1::CacheLayout Layout() { return demo::DemoLayout(1, 64, 4, Reader::kTopK); }

// Without the client library, which would take its descriptors at once.
absl::Status AskForDescriptors(const std::string& socket_path) {
  const auto stub = v1::KvTier::NewStub(
      grpc::CreateChannel("unix:" + socket_path, grpc::InsecureChannelCredentials()));
  grpc::ClientContext session_context, context;
  const auto events = stub->OpenSession(&session_context, v1::OpenSessionRequest());
  v1::SessionEvent event;
  if (!events->Read(&event)) return absl::UnavailableError("no session");
  v1::AttachCacheRequest request;
  request.set_session_id(event.opened().session_id());
  request.set_cache("kv");
  *request.mutable_layout() = Layout();
  v1::AttachCacheResponse attached;
  const grpc::Status status = stub->AttachCache(&context, request, &attached);
  if (!status.ok()) return absl::UnknownError(status.error_message());
  const auto socket = ConnectFdSocket(event.opened().fd_socket_path());
  if (!socket.ok()) return socket.status();
  for (const v1::Segment& segment : attached.segments()) {
    const std::string& token = segment.fd_token();
    // The answers, with their descriptors, stay in the socket.
    if (!token.empty() && send(socket->get(), token.data(), token.size(), 0) < 0) {
      return absl::UnavailableError(std::strerror(errno));
    }
  }
  return Stay();
}

absl::StatusOr<client::Session> Open(const std::string& socket_path) {
  return client::Session::Open({.socket_path = socket_path,
                                .client_name = "victim",
                                .call_timeout = absl::Minutes(1),
                                .wait_for_daemon = true});
}

absl::StatusOr<client::Cache> Attach(const client::Session& session, const std::string& cache) {
  return client::Cache::Attach(
      session, {.cache = cache, .layout = Layout(), .wait_for_pool = absl::Minutes(1)});
}

absl::Status StayInSession(const std::string& socket_path, const std::string& phase) {
  absl::StatusOr<client::Session> session = Open(socket_path);
  if (!session.ok()) return session.status();
  if (phase == "opened") return Stay();
  if (phase == "attached") {
    const absl::StatusOr<client::Cache> cache = Attach(*session, "kv");
    return cache.ok() ? Stay() : cache.status();
  }
  int64_t number = 0;
  return Repeat([&] {
    return Attach(*session, phase == "attach" ? "kv" : absl::StrCat("victim-", number++)).status();
  });
}

// Calls of one kind each; they take over what a step has left in the step buffers.
std::map<std::string, Call> CallsOf(Reader& reader) {
  client::Cache& cache = reader.cache();
  client::Request& request = reader.request();
  return {
      {"admit", [&] { return cache.Admit("another").status(); }},
      {"assign",
       [&]() -> absl::Status {
         const absl::StatusOr<client::AssignedBlocks> blocks = request.AssignBlocks(2);
         if (!blocks.ok()) return blocks.status();
         return request.FreeBlocks(blocks->block_ids).status();
       }},
      {"invalidate",
       [&] {
         return cache.InvalidateBlocks(std::vector<int32_t>{request.SlotOf(0) / 64}).status();
       }},
      {"list_kept", [&] { return cache.ListKeptBlocks().status(); }},
      {"swap_in", [&] { return cache.SwapInRpc(0, 1, {}, /*wait=*/true).status(); }},
      {"replay", [&] { return cache.ReplayPlanRpc(0, 1, std::nullopt, /*wait=*/true).status(); }},
      {"backup", [&] { return cache.BackupRpc(1, /*wait=*/true).status(); }},
      {"wait_ticket",
       [&]() -> absl::Status {
         const absl::StatusOr<client::Ticket> ticket = cache.SwapInRpc(0, 1);
         if (!ticket.ok()) return ticket.status();
         return cache.WaitTicket(ticket->number).status();
       }},
      {"run_steps", [&] { return reader.WrongRows(0).status(); }},
      {"graph", [&] { return reader.WrongRows(0).status(); }},
      {"append", [&] { return reader.Append(); }},
  };
}

absl::Status BeAVictim(const std::string& socket_path, const std::string& phase) {
  if (phase == "connected") return Connect(socket_path);
  if (phase == "tokens") return AskForDescriptors(socket_path);
  if (phase == "opened" || phase == "attached" || phase == "attach" || phase == "caches") {
    return StayInSession(socket_path, phase);
  }
  const auto plane = phase == "run_steps" ? demo::Plane::kRpc : demo::Plane::kInProcess;
  absl::StatusOr<std::unique_ptr<Reader>> reader =
      Reader::Start({.socket_path = socket_path, .name = "victim", .plane = plane, .salt = 9});
  if (!reader.ok()) return reader.status();
  if (const absl::StatusOr<int> wrong = (*reader)->AllWrongRows(); wrong.value_or(1) != 0) {
    return absl::InternalError(absl::StrCat("wrong rows: ", wrong.value_or(-1)));
  }
  if (phase == "between") {
    absl::Status status = (*reader)->Append(/*backup=*/false);
    return status.ok() ? Stay() : status;
  }
  const std::map<std::string, Call> calls = CallsOf(**reader);
  const auto found = calls.find(phase);
  if (found == calls.end()) return absl::InvalidArgumentError("no such phase");
  return Repeat(found->second);
}

}  // namespace
}  // namespace kvtier::testing

int main(int argc, char** argv) {
  alarm(120);  // a test that forgets its victim
  if (argc != 3) return 2;
  const absl::Status status = kvtier::testing::BeAVictim(argv[1], argv[2]);
  std::fprintf(stderr, "victim %s: %s\n", argv[2], status.ToString().c_str());
  return 1;
}
