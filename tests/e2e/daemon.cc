#include "tests/e2e/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace kvtier::e2e {
namespace {

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

Daemon::Daemon(DaemonOptions options) : options_(std::move(options)) {
  // Bazel's own folders are too deep for a socket path.
  char name[] = "/tmp/kvtier-e2e-XXXXXX";
  folder_ = mkdtemp(name);
  socket_path_ = folder_ + "/kvtierd.sock";
  Start();
}

Daemon::~Daemon() {
  Kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Daemon::Start() {
  std::vector<std::string> words = {options_.binary, "--socket=" + socket_path_,
                                    "--backend=" + options_.backend,
                                    absl::StrCat("--pool_bytes=", options_.pool_bytes)};
  words.insert(words.end(), options_.flags.begin(), options_.flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    // A test that dies takes its daemon along.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = options_.log_path.empty()
                        ? -1
                        : open(options_.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log >= 0) dup2(log, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ASSERT_GT(pid_, 0);
  admin_ = v1::KvTierAdmin::NewStub(ChannelTo(socket_path_));
}

int Daemon::Wait() {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void Daemon::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Wait();
}

int Daemon::Stop() {
  kill(pid_, SIGTERM);
  return Wait();
}

absl::StatusOr<client::Session> Daemon::Open(const std::string& client_name,
                                             client::SessionOptions options) const {
  options.socket_path = socket_path_;
  options.client_name = client_name;
  options.wait_for_daemon = true;
  options.call_timeout = kPatience;
  return client::Session::Open(std::move(options));
}

v1::GetStatsResponse Daemon::Stats() {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  v1::GetStatsResponse response;
  const grpc::Status status = admin_->GetStats(&context, v1::GetStatsRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

bool Daemon::WaitForStats(const std::function<bool(const v1::GetStatsResponse&)>& condition) {
  if (condition(Stats())) return true;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  v1::WatchStatsRequest request;
  request.mutable_interval()->set_nanos(100000000);
  const auto reader = admin_->WatchStats(&context, request);
  v1::GetStatsResponse response;
  bool holds = false;
  while (!holds && reader->Read(&response)) holds = condition(response);
  context.TryCancel();
  reader->Finish().IgnoreError();
  return holds;
}

bool Daemon::WaitUntilReady() {
  return WaitForStats([](const v1::GetStatsResponse& stats) {
    return stats.pool().state() == v1::POOL_STATE_READY;
  });
}

}  // namespace kvtier::e2e
