#include "server/service/service_fixture.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/status.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"

namespace kvtier {
namespace {

// Only a failure ever waits so long.
constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

SocketFolder::SocketFolder() {
  char name[] = "/tmp/kvs.XXXXXX";
  path_ = mkdtemp(name);
}

SocketFolder::~SocketFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ClientSession::ClientSession(v1::KvTier::Stub* stub, const std::string& name) {
  v1::OpenSessionRequest request;
  request.set_client_name(name);
  reader_ = stub->OpenSession(&context_, request);
  opened_ = Next().opened();
  EXPECT_NE(opened_.session_id(), "");
}

ClientSession::~ClientSession() {
  if (finished_) return;
  Cancel();
  Finish();
}

v1::SessionEvent ClientSession::Next() {
  v1::SessionEvent event;
  if (!reader_->Read(&event)) event.Clear();
  return event;
}

grpc::Status ClientSession::Finish() {
  finished_ = true;
  v1::SessionEvent event;
  while (reader_->Read(&event)) {
  }
  return reader_->Finish();
}

ServiceFixture::ServiceFixture()
    : log_(std::make_unique<Log>(&system_clock_)), plan_(std::make_shared<FaultPlan>()) {
  server_options_.version = "1.2.3";
  server_options_.socket_path = folder_.File("k.sock");
}

ServiceFixture::~ServiceFixture() {
  plan_->Clear();
  server_.reset();
  node_.reset();
  pool_.reset();
}

void ServiceFixture::SetUp() {
  StartServer();
  StartPool();
}

void ServiceFixture::StartServer() {
  auto cpu = MakeCpuBackend({});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  backend_ = MakeFaultInjectingBackend(*std::move(cpu), plan_);
  auto pool = HostPool::Create({.size_bytes = int64_t{16} << 20, .huge_pages = HugePages::kNever},
                               backend_.get());
  ASSERT_TRUE(pool.ok()) << pool.status();
  pool_ = *std::move(pool);
  const Clock* clock = &system_clock_;
  if (manual_clock_ != nullptr) clock = manual_clock_.get();
  node_ =
      std::make_unique<Node>(NodeOptions{.version = "1.2.3"}, clock, backend_.get(), pool_.get());
  auto server =
      Server::Start(server_options_, {clock, node_.get(), pool_.get(), backend_.get(), log_.get()});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  channel_ = NewChannel();
  stub_ = v1::KvTier::NewStub(channel_);
  admin_ = v1::KvTierAdmin::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
}

void ServiceFixture::StartPool() {
  pool_->Start([](int64_t, int64_t) {});
  ASSERT_TRUE(pool_->WaitReady(absl::Now() + kPatience).ok());
}

std::shared_ptr<grpc::Channel> ServiceFixture::NewChannel() const {
  grpc::ChannelArguments arguments;
  // A connection of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel("unix:" + server_->socket_path(),
                                   grpc::InsecureChannelCredentials(), arguments);
}

v1::CacheLayout ServiceFixture::SmallLayout() {
  v1::CacheLayout layout;
  v1::LayerGroupLayout* group = layout.add_groups();
  v1::LayerLayout* layer = group->add_layers();
  layer->set_row_format(v1::ROW_FORMAT_CONTIGUOUS);
  layer->set_row_bytes(656);
  group->set_top_k(8);
  group->set_hot_size(16);
  layout.set_block_count(32);
  layout.set_max_requests(4);
  return layout;
}

void ServiceFixture::Attach(const ClientSession& session, const std::string& cache) {
  v1::AttachCacheRequest request;
  v1::AttachCacheResponse response;
  request.set_session_id(session.id());
  request.set_cache(cache);
  *request.mutable_layout() = SmallLayout();
  const grpc::Status status = Call(stub(), &v1::KvTier::Stub::AttachCache, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

void ServiceFixture::Admit(const ClientSession& session, const std::string& request_id) {
  v1::AdmitRequestRequest request;
  v1::AdmitRequestResponse response;
  request.set_session_id(session.id());
  request.set_cache("kv");
  request.set_request_id(request_id);
  const grpc::Status status = Call(stub(), &v1::KvTier::Stub::AdmitRequest, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

v1::AssignBlocksResponse ServiceFixture::Assign(const ClientSession& session, int32_t count,
                                                const std::string& request_id) {
  v1::AssignBlocksRequest request;
  v1::AssignBlocksResponse response;
  request.set_session_id(session.id());
  request.set_cache("kv");
  request.set_request_id(request_id);
  request.set_count(count);
  const grpc::Status status = Call(stub(), &v1::KvTier::Stub::AssignBlocks, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::GetStatsResponse ServiceFixture::Stats() {
  v1::GetStatsResponse response;
  const grpc::Status status =
      Call(admin(), &v1::KvTierAdmin::Stub::GetStats, v1::GetStatsRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

v1::SwapInRequest ServiceFixture::InlineStep(const ClientSession& session,
                                             std::vector<int32_t> slots) {
  v1::SwapInRequest request;
  request.set_session_id(session.id());
  request.set_cache("kv");
  request.set_use_slots(true);
  v1::SwapInRow* row = request.mutable_inline_()->add_rows();
  row->set_request_id("r");
  row->mutable_topk()->Add(slots.begin(), slots.end());
  return request;
}

std::string ServiceFixture::Health(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  request.set_service(service);
  const grpc::Status status =
      Call(health_.get(), &grpc::health::v1::Health::Stub::Check, request, &response);
  if (!status.ok()) return absl::StrCat(static_cast<int>(status.error_code()));
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

void ServiceFixture::WaitForHealth(const std::string& service, const std::string& status) {
  WaitUntil([&] { return Health(service) == status; });
  EXPECT_EQ(Health(service), status);
}

void ServiceFixture::WaitUntil(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    ASSERT_LT(absl::Now(), deadline);
    std::this_thread::yield();
  }
}

void SetPatience(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
}

::testing::AssertionResult IsWireError(const grpc::Status& status, grpc::StatusCode code,
                                       const std::string& reason) {
  const DecodedStatus decoded = FromGrpcStatus(status);
  if (status.error_code() == code && decoded.details.reason == reason) {
    return ::testing::AssertionSuccess() << reason;
  }
  return ::testing::AssertionFailure() << "code " << status.error_code() << ", reason '"
                                       << decoded.details.reason << "': " << status.error_message();
}

std::string WireMetadata(const grpc::Status& status, const std::string& key) {
  const ErrorDetails details = FromGrpcStatus(status).details;
  const auto found = details.metadata.find(key);
  return found == details.metadata.end() ? "" : found->second;
}

}  // namespace kvtier
