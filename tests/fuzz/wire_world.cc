#include "tests/fuzz/wire_world.h"

#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "proto/support/status.h"
#include "server/device/cpu/cpu_backend.h"
#include "tests/fuzz/api_program.h"

namespace kvtier::fuzz {
namespace {

// Only a call that hangs waits so long.
constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr int64_t kPoolBytes = int64_t{8} << 20;
// Hot buffers together: what a fuzzer asks for must not take the machine's memory.
constexpr int64_t kDeviceBytes = int64_t{32} << 20;

template <typename... T>
absl::Status Wrong(const T&... what) {
  return absl::InternalError(absl::StrCat(what...));
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
}

// The method that takes `request`.
std::string MethodOf(const google::protobuf::Message& request,
                     const google::protobuf::Message** answer) {
  for (const auto* const file :
       {v1::OpenSessionRequest::descriptor()->file(), v1::GetStatsRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const auto* const method = file->service(s)->method(m);
        if (method->input_type() != request.GetDescriptor()) continue;
        *answer = google::protobuf::MessageFactory::generated_factory()->GetPrototype(
            method->output_type());
        return absl::StrCat("/", method->service()->full_name(), "/", method->name());
      }
    }
  }
  return "";
}

grpc::ByteBuffer ToBuffer(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

bool FromBuffer(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return false;
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return message->ParseFromString(bytes);
}

}  // namespace

// A call that stays open: of a session, or RunSteps.
struct WireWorld::OpenStream {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> events;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RunStepsRequest, v1::RunStepsResponse>> steps;

  grpc::Status Finish() {
    context.TryCancel();
    v1::SessionEvent event;
    while (events != nullptr && events->Read(&event)) {
    }
    v1::RunStepsResponse step;
    while (steps != nullptr && steps->Read(&step)) {
    }
    return events != nullptr ? events->Finish() : steps->Finish();
  }
};

WireWorld::WireWorld() {
  char name[] = "/tmp/kvf.XXXXXX";
  folder_ = mkdtemp(name);
  log_ = std::make_unique<Log>(&clock_);
  log_->SetLevel(LogLevel::kError);
  backend_ = *MakeCpuBackend({.memory_bytes_max = kDeviceBytes});
  pool_ = *HostPool::Create({.size_bytes = kPoolBytes, .huge_pages = HugePages::kNever},
                            backend_.get());
  pool_->Start([](int64_t, int64_t) {});
  pool_->WaitReady(absl::InfiniteFuture()).IgnoreError();
  StartServer();
}

WireWorld::~WireWorld() {
  server_.reset();
  node_.reset();
  pool_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void WireWorld::StartServer() {
  server_.reset();
  node_ =
      std::make_unique<Node>(NodeOptions{.version = "1.2.3"}, &clock_, backend_.get(), pool_.get());
  ServerOptions options;
  options.version = "1.2.3";
  options.socket_path = folder_ + "/k.sock";
  server_ =
      *Server::Start(options, {&clock_, node_.get(), pool_.get(), backend_.get(), log_.get()});
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  channel_ = grpc::CreateCustomChannel("unix:" + server_->socket_path(),
                                       grpc::InsecureChannelCredentials(), arguments);
  generic_ = std::make_unique<grpc::GenericStub>(channel_);
  stub_ = v1::KvTier::NewStub(channel_);
  admin_ = v1::KvTierAdmin::NewStub(channel_);
}

absl::Status WireWorld::Play(const Program& program, Played* played) {
  absl::Status wrong;
  for (const Call& call : program.calls()) {
    ++played->operations;
    wrong.Update(PlayCall(call, played));
    if (!wrong.ok()) break;
  }
  wrong.Update(EndAll());
  // A daemon that drains takes nothing more.
  if (node_->draining() || !wrong.ok()) StartServer();
  return wrong;
}

absl::Status WireWorld::PlayCall(const Call& call, Played* played) {
  switch (call.call_case()) {
    case Call::CALL_NOT_SET:
    case Call::kAdvance:  // of a device and a clock that only a simulation has
    case Call::kStepDevice:
    case Call::kFailDevice:
    case Call::kPoke:
      return absl::OkStatus();
    case Call::kCloseSession:
      CloseSession(call.close_session().session());
      return absl::OkStatus();
    case Call::kOpenSession:
      return PlayOpen(call.open_session(), played);
    case Call::kWatchStats:
      return PlayWatch(call.watch_stats(), played);
    default:
      break;
  }
  const auto* const reflection = call.GetReflection();
  const auto* const field =
      reflection->GetOneofFieldDescriptor(call, Call::descriptor()->oneof_decl(0));
  const google::protobuf::Message& given = reflection->GetMessage(call, field);
  const std::unique_ptr<google::protobuf::Message> request(given.New());
  request->CopyFrom(given);
  NameSessions(session_ids_, request.get());
  if (call.call_case() == Call::kRunSteps) {
    return PlaySteps(static_cast<const v1::RunStepsRequest&>(*request), played);
  }
  return PlayUnary(*request, played);
}

absl::Status WireWorld::PlayUnary(const google::protobuf::Message& request, Played* played) {
  const google::protobuf::Message* prototype = nullptr;
  const std::string method = MethodOf(request, &prototype);
  grpc::ClientContext context;
  SetDeadline(&context);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer buffer;
  grpc::Status status;
  const auto call = generic_->PrepareUnaryCall(&context, method, ToBuffer(request), &queue);
  call->StartCall();
  call->Finish(&buffer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  const absl::Status judged = Judge(method, status, played);
  if (!judged.ok() || !status.ok()) return judged;
  const std::unique_ptr<google::protobuf::Message> answer(prototype->New());
  return FromBuffer(buffer, answer.get()) ? absl::OkStatus()
                                          : Wrong(method, ": no answer of its type");
}

absl::Status WireWorld::PlayOpen(const v1::OpenSessionRequest& request, Played* played) {
  auto stream = std::make_unique<OpenStream>();
  stream->events = stub_->OpenSession(&stream->context, request);
  v1::SessionEvent event;
  if (!stream->events->Read(&event)) return Judge("OpenSession", stream->events->Finish(), played);
  if (event.opened().session_id().empty()) return Wrong("the first event opens no session");
  sessions_.push_back(std::move(stream));
  session_ids_.push_back(event.opened().session_id());
  return absl::OkStatus();
}

absl::Status WireWorld::PlayWatch(const v1::WatchStatsRequest& request, Played* played) {
  grpc::ClientContext context;
  const auto stream = admin_->WatchStats(&context, request);
  v1::GetStatsResponse stats;
  const bool read = stream->Read(&stats);
  if (read) context.TryCancel();
  while (stream->Read(&stats)) {
  }
  const grpc::Status status = stream->Finish();
  if (read && status.error_code() == grpc::StatusCode::CANCELLED) return absl::OkStatus();
  return Judge("WatchStats", status, played);
}

absl::Status WireWorld::PlaySteps(const v1::RunStepsRequest& request, Played* played) {
  if (steps_ == nullptr) {
    steps_ = std::make_unique<OpenStream>();
    SetDeadline(&steps_->context);
    steps_->steps = stub_->RunSteps(&steps_->context);
  }
  v1::RunStepsResponse answer;
  if (steps_->steps->Write(request) && steps_->steps->Read(&answer)) {
    if (answer.step_id() != request.step_id()) return Wrong("a step answers with another's id");
    if (answer.has_error()) {
      ++played->errors;
      if (answer.error().reason().empty()) return Wrong("a step's error without a reason");
    }
    return absl::OkStatus();
  }
  const std::unique_ptr<OpenStream> ended = std::move(steps_);
  return Judge("RunSteps", ended->steps->Finish(), played);
}

absl::Status WireWorld::Judge(const std::string& call, const grpc::Status& status,
                              Played* played) const {
  if (status.ok()) return absl::OkStatus();
  ++played->errors;
  const DecodedStatus decoded = FromGrpcStatus(status);
  const std::string text = absl::StrCat(call, ": code ", static_cast<int>(status.error_code()), " ",
                                        decoded.details.reason, ": ", status.error_message());
  if (decoded.details.reason.empty()) return Wrong("an error without a reason: ", text);
  switch (status.error_code()) {
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DATA_LOSS:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Wrong("a caller must not be able to cause this: ", text);
    default:
      break;
  }
  // What a caller may not learn of the daemon's machine.
  for (const absl::string_view secret : {folder_.c_str(), "/proc/", "/home/", "server/", ".cc:"}) {
    if (absl::StrContains(status.error_message(), secret)) return Wrong("a leak: ", text);
  }
  return absl::OkStatus();
}

void WireWorld::CloseSession(int32_t number) {
  if (sessions_.empty()) return;
  std::unique_ptr<OpenStream>& stream = sessions_[static_cast<uint32_t>(number) % sessions_.size()];
  if (stream == nullptr) return;
  stream->Finish();
  stream.reset();
}

absl::Status WireWorld::EndAll() {
  if (steps_ != nullptr) {
    steps_->steps->WritesDone();
    v1::RunStepsResponse ignored;
    while (steps_->steps->Read(&ignored)) {
    }
    steps_->steps->Finish();
    steps_.reset();
  }
  for (const std::unique_ptr<OpenStream>& stream : sessions_) {
    if (stream != nullptr) stream->Finish();
  }
  sessions_.clear();
  session_ids_.clear();
  // What a worker had retained stays until its time is over; nothing else does.
  const auto retained = [this] {
    int64_t bytes = 0;
    const auto snapshot = node_->Snapshot("");
    for (const CacheSnapshot& cache : snapshot->caches) bytes += cache.host_bytes;
    return bytes;
  };
  const absl::Time deadline = absl::Now() + kPatience;
  while (!node_->Sessions().empty() || node_->DeviceBytesUsed(kCpuDeviceUuid) != 0 ||
         pool_->stats().used_bytes != retained()) {
    if (absl::Now() > deadline) {
      return Wrong("not given back: ", node_->Sessions().size(), " sessions, ",
                   pool_->stats().used_bytes, " bytes of the pool, ",
                   node_->DeviceBytesUsed(kCpuDeviceUuid), " bytes of the device");
    }
    std::this_thread::yield();
  }
  if (pool_->stats().used_bytes == 0) return absl::OkStatus();
  StartServer();
  return pool_->stats().used_bytes == 0 ? absl::OkStatus() : Wrong("a cache outlives its node");
}

}  // namespace kvtier::fuzz
