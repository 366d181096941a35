#include "tests/load/watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "proto/kvtier/v1/admin.grpc.pb.h"
#include "tests/load/pace.h"

namespace kvtier::load {
namespace {

// A daemon that takes longer is not well, whatever it then says.
constexpr absl::Duration kPatience = absl::Seconds(30);

std::shared_ptr<grpc::Channel> NewChannel(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// One call of `stub`, at most kPatience.
template <typename Stub, typename Method, typename Request, typename Response>
grpc::Status Ask(Stub* stub, Method method, const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  return (stub->*method)(&context, request, response);
}

using grpc::health::v1::Health;

grpc::Status AskLiveness(Health::Stub* stub) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("liveness");
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = Ask(stub, &Health::Stub::Check, request, &response);
  if (status.ok() && response.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not alive");
  }
  return status;
}

}  // namespace

Watch::Watch(pid_t pid, std::string socket_path, absl::Duration interval, CallTimes* times)
    : pid_(pid), socket_path_(std::move(socket_path)), interval_(interval), times_(times) {
  thread_ = std::thread([this] { Run(); });
}

Watch::~Watch() { End(); }

std::vector<Look> Watch::End() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  if (thread_.joinable()) thread_.join();
  return std::move(looks_);
}

void Watch::Note(bool ok, const std::string& what) {
  if (!ok && errors_++ == 0) first_error_ = what;
}

void Watch::Run() {
  const auto channel = NewChannel(socket_path_);
  const auto admin = v1::KvTierAdmin::NewStub(channel);
  const auto health = Health::NewStub(channel);
  const absl::Time begin = absl::Now();
  for (int64_t count = 0;; ++count) {
    PaceUntil(begin + count * interval_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ending_) return;
    }
    const grpc::Status old =
        times_->Of("Check (liveness)", [&] { return AskLiveness(health.get()); });
    Note(old.ok(), absl::StrCat("liveness: ", old.error_message()));
    const grpc::Status fresh = times_->Of("Check (liveness, new connection)", [&] {
      return AskLiveness(Health::NewStub(NewChannel(socket_path_)).get());
    });
    Note(fresh.ok(), absl::StrCat("liveness on a new connection: ", fresh.error_message()));
    v1::GetStatsResponse stats;
    const grpc::Status asked = times_->Of("GetStats", [&] {
      return Ask(admin.get(), &v1::KvTierAdmin::Stub::GetStats, v1::GetStatsRequest(), &stats);
    });
    Note(asked.ok(), absl::StrCat("GetStats: ", asked.error_message()));
    const absl::StatusOr<ProcessSample> process = SampleProcess(pid_);
    Note(process.ok(), process.status().ToString());
    if (!asked.ok() || !process.ok()) continue;
    Look look = {.minutes = absl::ToDoubleMinutes(absl::Now() - begin),
                 .process = *process,
                 .sessions = stats.sessions()};
    for (const v1::CacheStats& cache : stats.caches()) {
      look.free_blocks += cache.blocks_free();
    }
    looks_.push_back(look);
  }
}

}  // namespace kvtier::load
