// kvtierctl: looks at a daemon, and ends what has to end.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/arguments.h"
#include "client/cli/doctor.h"
#include "client/cli/json.h"
#include "client/cli/top.h"
#include "client/cli/views.h"
#include "client/error.h"

namespace kvtier::cli {
namespace {

using Stub = v1::KvTierAdmin::Stub;

// How often a drain looks whether the sessions have left.
constexpr int32_t kDrainLookNanoseconds = 200'000'000;

int Fail(int code, const absl::Status& status) {
  const std::string reason = client::ErrorReasonOf(status);
  std::fprintf(stderr, "kvtierctl: %s%s%s\n", std::string(status.message()).c_str(),
               reason.empty() ? "" : " ",
               reason.empty() ? "" : absl::StrCat("(", reason, ")").c_str());
  return code;
}

int Fail(const absl::Status& status) {
  return Fail(client::ErrorReasonOf(status).empty() ? kNotReached : kRefused, status);
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// As JSON, or as what `view` makes of it.
template <typename Response, typename View>
int Answer(const Arguments& arguments, const absl::StatusOr<Response>& response, const View& view) {
  if (!response.ok()) return Fail(response.status());
  Print(arguments.output == Output::kJson ? ToJson(*response, /*lines=*/true) : view(*response));
  return kDone;
}

int Stats(const Admin& admin, const Arguments& arguments) {
  v1::GetStatsRequest request;
  const bool detailed = !arguments.operands.empty();
  if (detailed) request.set_cache(arguments.operands[0]);
  return Answer(arguments, admin.Call(&Stub::GetStats, request),
                [&](const v1::GetStatsResponse& stats) { return StatsView(stats, detailed); });
}

absl::StatusOr<v1::ListRequestsResponse> AllRequests(const Admin& admin, const std::string& cache) {
  v1::ListRequestsRequest request;
  request.set_cache(cache);
  request.set_page_size(1000);
  v1::ListRequestsResponse all;
  while (true) {
    absl::StatusOr<v1::ListRequestsResponse> page = admin.Call(&Stub::ListRequests, request);
    if (!page.ok()) return page.status();
    all.MergeFrom(*page);
    all.clear_next_page_token();
    if (page->next_page_token().empty()) return all;
    request.set_page_token(page->next_page_token());
  }
}

int Requests(const Admin& admin, const Arguments& arguments) {
  return Answer(arguments, AllRequests(admin, arguments.operands[0]),
                [](const v1::ListRequestsResponse& all) {
                  return RequestsView({all.requests().begin(), all.requests().end()});
                });
}

// Sessions that are open once none is, or when the time is up.
absl::StatusOr<int32_t> WaitForSessions(const Admin& admin, absl::Duration wait) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + wait));
  v1::WatchStatsRequest request;
  request.mutable_interval()->set_nanos(kDrainLookNanoseconds);
  const auto reader = admin.stub()->WatchStats(&context, request);
  v1::GetStatsResponse stats;
  int32_t sessions = -1;
  while (sessions != 0 && reader->Read(&stats)) sessions = stats.sessions();
  context.TryCancel();
  const grpc::Status status = reader->Finish();
  // At the deadline either side may be the first to end the call.
  const bool time_is_up = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                          status.error_code() == grpc::StatusCode::CANCELLED;
  if (sessions != 0 && !time_is_up) return admin.Explain(status);
  return sessions;
}

int Drain(const Admin& admin, const Arguments& arguments) {
  v1::DrainRequest request;
  request.set_message(arguments.message);
  absl::StatusOr<v1::DrainResponse> drained = admin.Call(&Stub::Drain, request);
  if (drained.ok() && drained->sessions() > 0 && arguments.wait > absl::ZeroDuration()) {
    const absl::StatusOr<int32_t> sessions = WaitForSessions(admin, arguments.wait);
    if (!sessions.ok()) return Fail(sessions.status());
    if (*sessions >= 0) drained->set_sessions(*sessions);
  }
  const int code = Answer(arguments, drained, [](const v1::DrainResponse& response) {
    return absl::StrCat("draining; ", response.sessions(), " sessions are still open\n");
  });
  if (code != kDone || arguments.wait <= absl::ZeroDuration() || drained->sessions() == 0) {
    return code;
  }
  return Fail(kSomethingToChange,
              absl::DeadlineExceededError(absl::StrCat(
                  drained->sessions(), " sessions have not left within ",
                  absl::FormatDuration(arguments.wait), "; the daemon goes on draining")));
}

int Evict(const Admin& admin, const Arguments& arguments) {
  v1::EvictSessionRequest request;
  request.set_session_id(arguments.operands[0]);
  request.set_message(arguments.message);
  return Answer(
      arguments, admin.Call(&Stub::EvictSession, request),
      [&](const v1::EvictSessionResponse&) { return arguments.operands[0] + " has ended\n"; });
}

int Health(const Admin& admin, const Arguments& arguments) {
  const std::string what = arguments.operands.empty() ? "readiness" : arguments.operands[0];
  if (what != "liveness" && what != "readiness") {
    return Fail(kBadCommandLine, absl::InvalidArgumentError(absl::StrCat(
                                     "'", what, "' is neither liveness nor readiness")));
  }
  const absl::StatusOr<std::string> status = admin.Health(what == "liveness" ? what : "");
  if (!status.ok()) return Fail(status.status());
  Print(arguments.output == Output::kJson ? absl::StrCat("{\"", what, "\": \"", *status, "\"}\n")
                                          : *status + "\n");
  return *status == "SERVING" ? kDone : kSomethingToChange;
}

int Doctor(const Admin& admin, const Arguments& arguments) {
  Patient patient = {.root = arguments.root, .socket_path = arguments.socket_path()};
  absl::StatusOr<v1::GetNodeInfoResponse> info =
      admin.Call(&Stub::GetNodeInfo, v1::GetNodeInfoRequest());
  patient.reached = info.status();
  if (info.ok()) {
    patient.info = *std::move(info);
    patient.readiness = admin.Health("").value_or("UNKNOWN");
  }
  const std::vector<Finding> findings = Examine(patient);
  Print(arguments.output == Output::kJson ? FindingsJson(findings) : FindingsText(findings));
  return IsAnyBad(findings) ? kSomethingToChange : kDone;
}

// Words for the completion script.
int Complete(const Admin& admin, const Arguments& arguments) {
  if (arguments.operands[0] == "caches") {
    const auto caches = admin.Call(&Stub::ListCaches, v1::ListCachesRequest());
    if (!caches.ok()) return Fail(caches.status());
    for (const v1::CacheInfo& cache : caches->caches()) Print(cache.cache() + "\n");
    return kDone;
  }
  const auto sessions = admin.Call(&Stub::ListSessions, v1::ListSessionsRequest());
  if (!sessions.ok()) return Fail(sessions.status());
  for (const v1::SessionInfo& session : sessions->sessions()) Print(session.session_id() + "\n");
  return kDone;
}

int Run(const Arguments& arguments) {
  if (arguments.command == "top") BlockInterrupts();
  const absl::StatusOr<Admin> reached =
      Admin::Create(arguments.target, arguments.tls, arguments.timeout);
  if (!reached.ok()) return Fail(kBadCommandLine, reached.status());
  const Admin& admin = *reached;
  const std::string& command = arguments.command;
  if (command == "stats") return Stats(admin, arguments);
  if (command == "requests") return Requests(admin, arguments);
  if (command == "drain") return Drain(admin, arguments);
  if (command == "evict") return Evict(admin, arguments);
  if (command == "health") return Health(admin, arguments);
  if (command == "doctor") return Doctor(admin, arguments);
  if (command == "complete") return Complete(admin, arguments);
  if (command == "caches") {
    return Answer(
        arguments, admin.Call(&Stub::ListCaches, v1::ListCachesRequest()),
        [](const v1::ListCachesResponse& caches) { return CachesView(caches, absl::Now()); });
  }
  if (command == "info") {
    return Answer(arguments, admin.Call(&Stub::GetNodeInfo, v1::GetNodeInfoRequest()), InfoView);
  }
  if (command == "sessions") {
    return Answer(arguments, admin.Call(&Stub::ListSessions, v1::ListSessionsRequest()),
                  [](const v1::ListSessionsResponse& sessions) {
                    return SessionsView(sessions, absl::Now());
                  });
  }
  absl::Status error;
  const int code = RunTop(admin, arguments, &error);
  return error.ok() ? code : Fail(code, error);
}

int Main(const std::vector<std::string>& words) {
  const char* socket = std::getenv("KVTIERD_SOCKET");
  const absl::StatusOr<Arguments> arguments =
      ParseArguments(words, socket == nullptr ? "" : socket);
  if (!arguments.ok()) return Fail(kBadCommandLine, arguments.status());
  if (arguments->command == "help") {
    Print(Usage());
    return kDone;
  }
  if (arguments->command == "completion") {
    if (arguments->operands[0] != "bash") {
      return Fail(kBadCommandLine, absl::InvalidArgumentError("there is one for bash alone"));
    }
    Print(BashCompletion());
    return kDone;
  }
  return Run(*arguments);
}

}  // namespace
}  // namespace kvtier::cli

int main(int argc, char** argv) {
  return kvtier::cli::Main(std::vector<std::string>(argv + 1, argv + argc));
}
