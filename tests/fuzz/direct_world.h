// The daemon's services above a clock and a device that move when they are told, on one thread, and
// several clients that play a Program on them. Between a client and a handler there is no gRPC
// (direct_call.h): that is what makes it fast, and the same program does the same again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/host_pool/host_pool.h"
#include "server/service/access.h"
#include "server/service/admin_service.h"
#include "server/service/call_log.h"
#include "server/service/control_executor.h"
#include "server/service/kv_tier_service.h"
#include "server/service/log.h"
#include "server/service/open_calls.h"
#include "server/service/peer_table.h"
#include "server/service/stats_history.h"
#include "server/service/unread_answers.h"
#include "server/session/node.h"
#include "tests/fuzz/direct_call.h"
#include "tests/fuzz/program.pb.h"
#include "tests/fuzz/target.h"
#include "tests/simulation/machine.h"

namespace kvtier::fuzz {

// Who a call comes from is what its context says.
class DirectAccess final : public AccessControl {
 public:
  using AccessControl::AccessControl;

 protected:
  std::string PeerNameOf(const grpc::CallbackServerContext& call) const override {
    return static_cast<const DirectContext&>(call).peer_name();
  }
};

class DirectWorld {
 public:
  DirectWorld();
  ~DirectWorld();

  // Plays the calls, ends what they opened, and sees to it that nothing is left. Errors: an answer
  // that must not be, a change that nobody asked for, or something that did not come back. Once.
  absl::Status Play(const Program& program, Played* played);

 private:
  using SessionExchange = WriteExchange<v1::OpenSessionRequest, v1::SessionEvent>;
  using StatsExchange = WriteExchange<v1::WatchStatsRequest, v1::GetStatsResponse>;
  using StepsExchange = BidiExchange<v1::RunStepsRequest, v1::RunStepsResponse>;

  struct Session {
    std::string id;
    size_t caller = 0;
    std::unique_ptr<SessionExchange> stream;  // null: ended
  };
  struct Steps {
    std::unique_ptr<StepsExchange> stream;
    std::deque<int64_t> ids;  // not answered yet
  };
  // A unary call that is not answered yet.
  struct Pending {
    std::string name;
    std::string session_id;  // that it names, if its request does
    Manner manner;
    std::unique_ptr<Exchange> call;
    bool (*parses)(const std::string& answer) = nullptr;
  };
  struct Attachment {
    size_t caller = 0;
    std::vector<v1::Segment> segments;
    std::map<size_t, UniqueFd> descriptors;  // by segment
  };
  // What sessions hold, by session id: user, requests, their blocks.
  using Holdings = std::map<std::string, std::vector<std::string>>;

  void Fail(absl::string_view what);

  // ---- direct_world.cc
  void StartNode();
  void PlayCall(const Call& call);
  void PlayPoke(const Poke& poke);
  void CloseSession(int32_t number);
  void EndSession(Session* session);
  // Reactions and work that are due, until nothing moves. Device streams move if `device`.
  void Settle(bool device);
  bool ReactAll();
  void EndAll();
  void CheckBaseline();

  // ---- direct_calls.cc
  void PlayRequest(const Call& call);
  void PlayOpen(const Call& call);
  void PlayWatch(const Call& call);
  void PlaySteps(const Call& call);
  void TakeStepAnswers(Steps* steps);
  void EndSteps(Steps* steps);
  template <typename Service, typename Request, typename Response>
  void PlayUnary(const Call& call, const Request& given, const char* name, Service* service,
                 grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*,
                                                              const Request*, Response*));
  void Attached(const std::string& answer, size_t caller);
  std::string BytesOf(const google::protobuf::Message& given, const Manner& manner) const;
  Arrival ArrivalOf(const Manner& manner) const;
  // Answered, if it is; true then.
  bool Conclude(Pending* pending);

  // ---- direct_checks.cc
  Holdings Look() const;
  // After each call: counts add up, and nobody else's things are others than `before`.
  void Check(const Call& call, const Holdings& before);
  void CheckCounts();
  void Judge(const std::string& name, const grpc::Status& status, const Manner& manner);
  // Of a call that was carried out.
  void JudgeTaken(const Pending& call);
  void JudgeText(const std::string& name, absl::string_view text);

  absl::Status failure_;
  Played* played_ = nullptr;
  std::string said_;          // by the callers, in all of their calls
  bool alone_ = true;         // no other call was under way when it began
  bool errors_seen_ = false;  // by the call that is played: it was refused
  bool lease_lost_ = false;   // somebody's session ended while it waited

  simulation::Machine machine_;
  Log log_{&machine_};
  HostPool* pool_ = nullptr;
  std::unique_ptr<Node> node_;
  OpenCalls open_calls_;
  CallLog call_log_{&log_};
  StatsHistory history_;
  PeerTable peers_;
  std::unique_ptr<DirectAccess> access_;
  std::unique_ptr<ControlExecutor> executor_;
  std::shared_ptr<UnreadAnswers> unread_answers_;
  SessionCallContext context_;
  AdminContext admin_context_;
  std::unique_ptr<KvTierService> kv_tier_;
  std::unique_ptr<AdminService> admin_;

  std::vector<Session> sessions_;
  std::vector<std::string> session_ids_;
  std::map<size_t, Steps> steps_;  // by caller
  std::vector<Pending> pending_;
  std::vector<Attachment> attachments_;
};

// Who calls: by Manner::caller, modulo how many there are.
struct Caller {
  std::string peer;
  Peer identity;
  std::string certificate;  // over TCP
  Role role = Role::kNone;
};
const std::vector<Caller>& Callers();
inline const Caller& CallerOf(const Manner& manner) {
  return Callers()[static_cast<uint32_t>(manner.caller()) % Callers().size()];
}

}  // namespace kvtier::fuzz
