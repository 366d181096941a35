// Opening, losing and leaving a session, against a daemon that does as it is told.
#include "client/session.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cache.h"
#include "client/error.h"
#include "client/mutex.h"
#include "client/steps.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"

namespace kvtier::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Generous: only a failure ever waits so long.
constexpr absl::Duration kPatience = absl::Seconds(30);

// Collects what a session says.
class Listener {
 public:
  std::function<void(const SessionEvent&)> callback() {
    return [this](const SessionEvent& event) {
      MutexLock lock(&mutex_);
      events_.push_back(event);
      changed_.NotifyAll();
    };
  }
  // The first `count` states, once they have come.
  std::vector<SessionState> Wait(size_t count) {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kPatience,
                     [&]() KVTIER_CLIENT_REQUIRES(mutex_) { return events_.size() >= count; });
    std::vector<SessionState> states;
    for (const SessionEvent& event : events_) states.push_back(event.state);
    return states;
  }
  std::string last_message() {
    MutexLock lock(&mutex_);
    return events_.empty() ? "" : events_.back().message;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<SessionEvent> events_ KVTIER_CLIENT_GUARDED_BY(mutex_);
};

absl::Status OpeningError(const std::string& socket_path) {
  return Session::Open({.socket_path = socket_path}).status();
}

TEST(Session, SaysWhoTheDaemonIs) {
  FakeDaemon daemon;
  const absl::StatusOr<Session> session =
      Session::Open({.socket_path = daemon.socket_path(), .client_name = "worker-0"});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->id(), "boot-1.session-1");
  EXPECT_EQ(session->boot_id(), "boot-1");
  EXPECT_EQ(session->daemon_version(), "0.0.0-fake");
  ASSERT_EQ(session->devices().size(), 1u);
  EXPECT_EQ(session->devices()[0].uuid(), "CPU-0");
  EXPECT_EQ(session->state(), SessionState::kOpen);
  EXPECT_TRUE(session->status().ok());
  EXPECT_THAT(daemon.calls(), ElementsAre("OpenSession worker-0"));
}

TEST(Session, UnixPrefixIsAllowed) {
  FakeDaemon daemon;
  EXPECT_TRUE(Session::Open({.socket_path = "unix:" + daemon.socket_path()}).ok());
  EXPECT_TRUE(Session::Open({.socket_path = "unix://" + daemon.socket_path()}).ok());
}

TEST(Session, BadPathsAreRefusedWithTheLimit) {
  for (const std::string& path :
       {std::string(), std::string("/tmp/x\n"), "/tmp/" + std::string(103, 'a')}) {
    const absl::Status status = OpeningError(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReasonOf(status), "FIELD_INVALID");
    EXPECT_EQ(ErrorMetadataOf(status)["field"], "socket_path");
  }
  EXPECT_THAT(std::string(OpeningError("/tmp/" + std::string(103, 'a')).message()),
              AllOf(HasSubstr("108 bytes"), HasSubstr("at most 107")));
  EXPECT_EQ(OpeningError("/tmp/" + std::string(102, 'a')).code(), absl::StatusCode::kUnavailable);
}

TEST(Session, MissingSocketIsNamed) {
  const TempFolder folder;
  const absl::Status status = OpeningError(folder.path() + "/none.sock");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/none.sock does not exist"), HasSubstr("is kvtierd running")));
}

TEST(Session, SocketOfADeadDaemonIsToldApart) {
  const TempFolder folder;
  const std::string path = folder.path() + "/dead.sock";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  const absl::Status status = OpeningError(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nobody listens"));
}

// Who has connected and hears nothing waits as long as any call: a daemon may be slow to get its
// turn.
TEST(Session, SocketThatSaysNothingIsWaitedFor) {
  const TempFolder folder;
  const std::string path = folder.path() + "/mute.sock";
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  const absl::Status status =
      Session::Open({.socket_path = path, .call_timeout = absl::Milliseconds(500)}).status();
  close(fd);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not open a session"));
}

TEST(Session, FileThatIsNoSocketIsToldApart) {
  const TempFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  const absl::Status status = OpeningError(folder.path() + "/file");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is no socket"));
}

TEST(Session, AnotherServerIsToldApart) {
  const TempFolder folder;
  const std::string path = folder.path() + "/other.sock";
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  grpc::AsyncGenericService nothing;
  v1::KvTier::WithAsyncMethod_AttachCache<v1::KvTier::Service> other;  // without OpenSession
  builder.RegisterService(&other);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  const absl::Status status = OpeningError(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no kvtierd, or one of another API"));
  server->Shutdown();
  queue->Shutdown();
  void* tag;
  bool ok;
  while (queue->Next(&tag, &ok)) {
  }
}

TEST(Session, DaemonThatDoesNotAnswerIsGivenUpInTime) {
  FakeDaemon daemon;
  daemon.Hang(true);
  const absl::Time start = absl::Now();
  const absl::Status status =
      Session::Open({.socket_path = daemon.socket_path(), .call_timeout = absl::Milliseconds(200)})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_LT(absl::Now() - start, kPatience);
  daemon.Hang(false);
}

TEST(Session, ErrorsOfTheDaemonKeepReasonAndMetadata) {
  FakeDaemon daemon;
  ::google::rpc::ErrorInfo info;
  info.set_reason("LIMIT_REACHED");
  info.set_domain("kvtier.v1");
  (*info.mutable_metadata())["limit"] = "256";
  ::google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(250000000);
  ::google::rpc::Status details;
  details.set_code(8);
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(retry);
  daemon.FailOpening(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "256 sessions are open",
                                  details.SerializeAsString()));
  const absl::Status status = OpeningError(daemon.socket_path());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "256 sessions are open");
  EXPECT_EQ(ErrorReasonOf(status), "LIMIT_REACHED");
  EXPECT_EQ(ErrorMetadataOf(status)["limit"], "256");
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(250));
}

TEST(Session, DrainingIsToldAndCallsGoOn) {
  FakeDaemon daemon;
  Listener listener;
  const absl::StatusOr<Session> session =
      Session::Open({.socket_path = daemon.socket_path(), .on_event = listener.callback()});
  ASSERT_TRUE(session.ok()) << session.status();
  v1::SessionEvent event;
  event.mutable_draining()->set_message("node update");
  daemon.Tell(event);
  EXPECT_THAT(listener.Wait(1), ElementsAre(SessionState::kDraining));
  EXPECT_EQ(listener.last_message(), "node update");
  EXPECT_EQ(session->state(), SessionState::kDraining);
  EXPECT_TRUE(session->status().ok());
}

TEST(Session, RevocationIsToldOnceAndFencesCalls) {
  FakeDaemon daemon;
  Listener listener;
  const absl::StatusOr<Session> session =
      Session::Open({.socket_path = daemon.socket_path(), .on_event = listener.callback()});
  ASSERT_TRUE(session.ok()) << session.status();
  v1::SessionEvent event;
  event.mutable_revoked()->set_message("evicted by an operator");
  daemon.Tell(event);
  EXPECT_THAT(listener.Wait(1), ElementsAre(SessionState::kRevoked));
  daemon.EndSessions(grpc::Status::OK);
  EXPECT_TRUE(session->WaitUntilEnded(kPatience));
  EXPECT_EQ(session->state(), SessionState::kRevoked);
  EXPECT_EQ(session->status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReasonOf(session->status()), "SESSION_UNKNOWN");
  EXPECT_THAT(std::string(session->status().message()), HasSubstr("evicted by an operator"));
  EXPECT_THAT(listener.Wait(1), ElementsAre(SessionState::kRevoked));
}

TEST(Session, LossIsToldAndFailsCallsAtOnce) {
  FakeDaemon daemon;
  Listener listener;
  const absl::StatusOr<Session> session =
      Session::Open({.socket_path = daemon.socket_path(), .on_event = listener.callback()});
  ASSERT_TRUE(session.ok()) << session.status();
  daemon.EndSessions(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed"));
  EXPECT_TRUE(session->WaitUntilEnded(kPatience));
  EXPECT_THAT(listener.Wait(1), ElementsAre(SessionState::kLost));
  EXPECT_EQ(session->state(), SessionState::kLost);
  EXPECT_EQ(session->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Cache::Attach(*session, {.cache = "kv", .layout = SmallLayout()}).status().code(),
            absl::StatusCode::kUnavailable);
}

// What gRPC's server says of calls that it has received and does not begin, as it ends.
TEST(Session, NothingIsCancelledThatNobodyHasCancelled) {
  FakeDaemon daemon;
  const absl::StatusOr<Session> session = Session::Open({.socket_path = daemon.socket_path()});
  ASSERT_TRUE(session.ok()) << session.status();
  daemon.FailCalls(grpc::Status::CANCELLED, 1);
  const absl::Status status =
      Cache::Attach(*session, {.cache = "kv", .layout = SmallLayout()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(status), "DRAINING");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the daemon stops"));
}

TEST(Session, CallbackMayMakeCalls) {
  FakeDaemon daemon;
  absl::Status inside = absl::UnknownError("not called");
  std::unique_ptr<Session> session;
  {
    absl::StatusOr<Session> opened = Session::Open(
        {.socket_path = daemon.socket_path(), .on_event = [&](const SessionEvent& event) {
           if (event.state != SessionState::kDraining) return;
           inside = Cache::Attach(*session, {.cache = "kv", .layout = SmallLayout()}).status();
         }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    session = std::make_unique<Session>(*std::move(opened));
  }
  v1::SessionEvent event;
  event.mutable_draining()->set_message("soon");
  daemon.Tell(event);
  daemon.EndSessions(grpc::Status::OK);
  EXPECT_TRUE(session->WaitUntilEnded(kPatience));
  session.reset();
  EXPECT_TRUE(inside.ok()) << inside;
}

TEST(Session, ClosingIsNoLoss) {
  FakeDaemon daemon;
  Listener listener;
  {
    const absl::StatusOr<Session> session =
        Session::Open({.socket_path = daemon.socket_path(), .on_event = listener.callback()});
    ASSERT_TRUE(session.ok()) << session.status();
  }
  EXPECT_THAT(listener.Wait(0), ElementsAre());
}

TEST(Session, WaitsForADaemonThatComesLater) {
  const TempFolder folder;
  const absl::Status status = Session::Open({.socket_path = folder.path() + "/late.sock",
                                             .call_timeout = absl::Milliseconds(300),
                                             .wait_for_daemon = true})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not exist"));
}

// A child that was forked after the session was opened gets errors at once, also for what it
// destroys, and the parent goes on.
TEST(Session, D26_ForkedChildGetsErrors) {
  FakeDaemon daemon;
  absl::StatusOr<Session> session = Session::Open({.socket_path = daemon.socket_path()});
  ASSERT_TRUE(session.ok()) << session.status();
  absl::StatusOr<Cache> cache =
      Cache::Attach(*session, {.cache = "kv", .layout = SmallLayout(), .kernel_threads = 2});
  ASSERT_TRUE(cache.ok()) << cache.status();
  std::vector<absl::Duration> times;
  for (int i = 0; i < 5; ++i) {
    const absl::Time start = absl::Now();
    const pid_t child = fork();
    if (child == 0) {
      // A hang of anything below ends the child, and fails the test by its status.
      alarm(10);
      const bool refused = absl::IsFailedPrecondition(session->status()) &&
                           absl::IsFailedPrecondition(cache->SwapIn(0, 0)) &&
                           absl::IsFailedPrecondition(cache->SwapInRpc(0, 0).status()) &&
                           absl::IsFailedPrecondition(cache->Admit("r").status()) &&
                           absl::IsFailedPrecondition(Steps::Open(*cache).status());
      cache = absl::CancelledError();    // destroys the Cache
      session = absl::CancelledError();  // and the Session
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    times.push_back(absl::Now() - start);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  // A machine that does much else may be late once.
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[3], absl::Seconds(2)) << times[4];
  EXPECT_TRUE(session->status().ok());
  EXPECT_TRUE(cache->SwapIn(0, 0).ok());
  EXPECT_TRUE(cache->Admit("r").ok());
}

}  // namespace
}  // namespace kvtier::client
