// What must hold after each call, whatever it was.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/kvtier/v1/errors.pb.h"
#include "proto/support/status.h"
#include "tests/fuzz/direct_world.h"

namespace kvtier::fuzz {
namespace {

// What a caller may not learn of the daemon's machine.
constexpr absl::string_view kSecrets[] = {"/tmp/", "/proc/", "/home/",  "/dev/", "/sys/",
                                          "/root", "memfd",  "server/", ".cc:"};

}  // namespace

DirectWorld::Holdings DirectWorld::Look() const {
  Holdings holdings;
  const auto snapshot = node_->Snapshot("");
  for (const SessionSnapshot& session : node_->Sessions()) {
    std::vector<std::string>& held = holdings[session.session_id];
    held.push_back(absl::StrCat("uid ", session.peer.uid));
    for (const std::string& cache : session.caches) held.push_back(cache);
  }
  for (const CacheSnapshot& cache : snapshot->caches) {
    const auto requests = node_->Requests(cache.cache);
    if (!requests.ok()) continue;
    for (const RequestSnapshot& request : *requests) {
      holdings[request.session_id].push_back(
          absl::StrCat(cache.cache, " ", request.request_id, " region ", request.region, " blocks ",
                       request.blocks, " reserved ", request.reserved_blocks));
    }
  }
  return holdings;
}

void DirectWorld::Check(const Call& call, const Holdings& before) {
  CheckCounts();
  // Others' calls were under way, or the session of one was lost: no telling whose change it was.
  if (!alone_ || call.manner().later() || lease_lost_) return;
  const bool of_all = call.has_drain() || call.has_evict_session();
  const int32_t uid = CallerOf(call.manner()).identity.uid;
  const Holdings after = Look();
  if (of_all || call.has_close_session() || call.has_open_session()) return;
  for (const auto& [session, held] : before) {
    const bool own = held.front() == absl::StrCat("uid ", uid);
    if (own && !errors_seen_) continue;
    const auto now = after.find(session);
    if (now != after.end() && now->second == held) continue;
    return Fail(absl::StrCat(own ? "a call that was refused" : "somebody else's call",
                             " changed what a session has: ", held.size(), " things before, ",
                             now == after.end() ? 0 : now->second.size(), " after"));
  }
}

void DirectWorld::CheckCounts() {
  const auto snapshot = node_->Snapshot("");
  if (!snapshot.ok()) return Fail("no snapshot");
  const std::vector<SessionSnapshot> sessions = node_->Sessions();
  int64_t host_bytes = 0;
  for (const CacheSnapshot& cache : snapshot->caches) {
    host_bytes += cache.host_bytes;
    const int32_t all = cache.blocks_used + cache.blocks_free + cache.blocks_reserved +
                        cache.blocks_quarantined + cache.blocks_kept;
    if (all != cache.layout.block_count) {
      return Fail(absl::StrCat(cache.cache, ": used ", cache.blocks_used, " free ",
                               cache.blocks_free, " reserved ", cache.blocks_reserved,
                               " quarantined ", cache.blocks_quarantined, " kept ",
                               cache.blocks_kept, ", of ", cache.layout.block_count));
    }
    const auto requests = node_->Requests(cache.cache);
    if (!requests.ok()) return Fail("a cache that is listed is not there");
    int32_t held = 0, reserved = 0;
    for (const RequestSnapshot& request : *requests) {
      held += request.blocks;
      reserved += request.reserved_blocks;
      const bool known = std::any_of(sessions.begin(), sessions.end(), [&](const auto& session) {
        return session.session_id == request.session_id;
      });
      if (!known) return Fail("a request of a session that is not there");
    }
    // A block may be in several tables; those of sessions that are on their way out hold some, too.
    if (reserved > cache.blocks_reserved) return Fail("requests have more reserved than the cache");
    if (held > 0 && cache.blocks_used == 0) return Fail("requests hold blocks, and none is used");
  }
  if (pool_->stats().used_bytes < host_bytes) Fail("caches have more than the pool has given");
}

void DirectWorld::Judge(const std::string& name, const grpc::Status& status, const Manner& manner) {
  if (status.ok()) return;
  ++played_->errors;
  errors_seen_ = true;
  const DecodedStatus decoded = FromGrpcStatus(status);
  const std::string& reason = decoded.details.reason;
  const std::string text = absl::StrCat(name, ": code ", static_cast<int>(status.error_code()), " ",
                                        reason, ": ", status.error_message());
  v1::ErrorReason known;
  const bool cancelled = status.error_code() == grpc::StatusCode::CANCELLED;
  if (!cancelled && !v1::ErrorReason_Parse(absl::StrCat("ERROR_REASON_", reason), &known)) {
    return Fail(absl::StrCat("an error without a reason that is known: ", text));
  }
  const bool faulted = machine_.plan().faults() > 0;
  switch (status.error_code()) {
    case grpc::StatusCode::INTERNAL:
      if (!faulted) Fail(absl::StrCat("a caller must not be able to cause this: ", text));
      break;
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DATA_LOSS:
      Fail(absl::StrCat("a caller must not be able to cause this: ", text));
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      // What was put off may have been put off for too long.
      if (manner.weather() == 0 && !manner.has_deadline_milliseconds() && !manner.later() &&
          name != "WaitTicket") {
        Fail(absl::StrCat("late though nothing was: ", text));
      }
      break;
    default:
      break;
  }
  JudgeText(name, status.error_message());
  for (const auto& [key, value] : decoded.details.metadata) JudgeText(name, value);
}

void DirectWorld::JudgeTaken(const Pending& call) {
  const Caller& caller = CallerOf(call.manner);
  const bool of_operators = call.name == "Drain" || call.name == "EvictSession";
  const bool of_viewers = call.name == "GetStats" || call.name == "GetNodeInfo" ||
                          call.name == "ListCaches" || call.name == "ListSessions" ||
                          call.name == "ListRequests";
  if (of_operators || of_viewers) {
    const Role needed = of_operators ? Role::kOperator : Role::kViewer;
    if (caller.role < needed) Fail(absl::StrCat(call.name, " for who may not: ", caller.peer));
    return;
  }
  if (caller.identity.uid < 0) Fail(absl::StrCat(call.name, " for a worker that nobody knows"));
  for (const Session& session : sessions_) {
    if (session.id != call.session_id) continue;
    if (Callers()[session.caller].identity.uid != caller.identity.uid) {
      Fail(absl::StrCat(call.name, " in somebody else's session"));
    }
  }
  if (call.manner.has_deadline_milliseconds() && call.manner.deadline_milliseconds() <= 0) {
    Fail(absl::StrCat(call.name, " after its deadline"));
  }
  // The others may be done before anybody can give them up.
  const bool queued =
      call.name == "AttachCache" || call.name == "DetachCache" || call.name == "ListKeptBlocks";
  if (call.manner.cancel() && queued) Fail(absl::StrCat(call.name, " though nobody waits for it"));
}

void DirectWorld::JudgeText(const std::string& name, absl::string_view text) {
  for (const absl::string_view secret : kSecrets) {
    // Who says it is told it.
    if (absl::StrContains(text, secret) && !absl::StrContains(said_, secret)) {
      Fail(absl::StrCat(name, ": a leak: ", text));
    }
  }
}

}  // namespace kvtier::fuzz
