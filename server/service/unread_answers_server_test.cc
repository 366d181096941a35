// A client that asks for steps and never reads their answers, against a whole server.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "server/service/service_fixture.h"
#include "server/service/unread_answers.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

class UnreadAnswersServerTest : public ServiceFixture {
 protected:
  UnreadAnswersServerTest() {
    manual_clock_ = std::make_unique<ManualClock>(absl::FromUnixSeconds(1'000'000'000));
  }

  // A step of as many rows as may be, or of so many, for nobody.
  static v1::RunStepsRequest LargeStep(const ClientSession& session, int rows = 1024) {
    v1::RunStepsRequest step;
    *step.mutable_swap_in() = InlineStep(session, {});
    step.mutable_swap_in()->mutable_inline_()->clear_rows();
    for (int i = 0; i < rows; ++i) step.mutable_swap_in()->mutable_inline_()->add_rows();
    return step;
  }

  // Asks for steps on a connection of its own, and reads nothing.
  class DeafWorker {
   public:
    DeafWorker(std::shared_ptr<grpc::Channel> channel, const ClientSession& session,
               const std::string& cache = "kv")
        : stub_(v1::KvTier::NewStub(channel)) {
      SetPatience(&context_);
      steps_ = stub_->RunSteps(&context_);
      v1::RunStepsRequest step = LargeStep(session);
      step.mutable_swap_in()->set_cache(cache);
      // Until it is held back, and then until the connection ends.
      writer_ = std::thread([this, step] {
        while (steps_->Write(step)) {
        }
        ended_ = true;
      });
    }
    bool ended() const { return ended_.load(); }
    // To be called once it has ended.
    grpc::Status Finish() {
      writer_.join();
      return steps_->Finish();
    }

   private:
    const std::unique_ptr<v1::KvTier::Stub> stub_;
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<v1::RunStepsRequest, v1::RunStepsResponse>> steps_;
    std::atomic<bool> ended_ = false;
    std::thread writer_;
  };

  // Lets time pass until `condition` holds.
  void PassTimeUntil(const std::function<bool()>& condition) {
    WaitUntil([&] {
      manual_clock_->Advance(absl::Seconds(1));
      return condition();
    });
  }
};

TEST_F(UnreadAnswersServerTest, ItsSessionEndsWithTheReasonAndThenItsConnection) {
  auto deaf = std::make_unique<ClientSession>(stub(), "deaf");
  ClientSession good(stub(), "good");
  Attach(*deaf);
  Attach(good);
  DeafWorker worker(NewChannel(), *deaf);
  v1::SessionEvent event;
  std::thread reader([&] { event = deaf->Next(); });
  PassTimeUntil([&] { return Stats().sessions() == 1; });
  reader.join();
  EXPECT_THAT(event.revoked().message(), HasSubstr("not read for 30s"));
  PassTimeUntil([&] { return worker.ended(); });
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // Others, on other connections, go on.
  Admit(good, "r");
}

// The first step stalls and keeps its call; what is ready behind it is nobody's any more.
TEST_F(UnreadAnswersServerTest, WhoHasGoneBehindAStallIsNotDeaf) {
  ClientSession good(stub(), "good"), deaf(stub(), "deaf");
  Attach(good);
  Attach(deaf);
  Admit(good);
  Assign(good, 1);
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  v1::RunStepsRequest stalls;
  *stalls.mutable_swap_in() = InlineStep(good, {1, 2});
  v1::RunStepsRequest refused = LargeStep(good, 512);
  refused.mutable_swap_in()->set_cache("unknown");
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = stub()->RunSteps(&context);
  EXPECT_TRUE(steps->Write(stalls));
  EXPECT_TRUE(steps->Write(refused));
  // By the time that this one is under way the one before has its answer.
  EXPECT_TRUE(steps->Write(stalls));
  WaitUntil([&] { return plan().calls(DeviceOperation::kSwapIn) == 2; });
  context.TryCancel();
  EXPECT_EQ(steps->Finish().error_code(), grpc::StatusCode::CANCELLED);

  DeafWorker worker(NewChannel(), deaf);
  PassTimeUntil([&] { return worker.ended(); });
  EXPECT_FALSE(worker.Finish().ok());
  EXPECT_EQ(Stats().sessions(), 1) << "the good one";
  delay->Release();
}

// Its answers cannot be sent before that of the step that stalls, however well it reads.
TEST_F(UnreadAnswersServerTest, WhoWaitsBehindAStallIsNotDeaf) {
  ClientSession session(stub(), "good");
  Attach(session);
  Attach(session, "other");
  Admit(session);
  Assign(session, 1);
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  v1::RunStepsRequest stalls;
  *stalls.mutable_swap_in() = InlineStep(session, {1, 2});
  // On another device stream; with the next one, much more than makes a client deaf.
  v1::RunStepsRequest behind = LargeStep(session, 512);
  behind.mutable_swap_in()->set_cache("other");
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  EXPECT_TRUE(steps->Write(stalls));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(steps->Write(behind));
  EXPECT_TRUE(steps->WritesDone());
  WaitUntil([&] { return plan().calls(DeviceOperation::kSwapIn) == 3; });
  // Done after them, on the same device stream: they are ready.
  v1::SwapInResponse after;
  EXPECT_TRUE(Call(stub(), &v1::KvTier::Stub::SwapIn, behind.swap_in(), &after).ok());

  // Who is deaf is found out later than it would be.
  ClientSession deaf(stub(), "deaf");
  Attach(deaf, "another");
  DeafWorker worker(NewChannel(), deaf, "another");
  PassTimeUntil([&] { return worker.ended(); });
  EXPECT_FALSE(worker.Finish().ok());
  EXPECT_EQ(Stats().sessions(), 1) << "the good one";
  delay->Release();
  v1::RunStepsResponse response;
  for (const int rows : {1, 512, 512}) {
    ASSERT_TRUE(steps->Read(&response));
    EXPECT_EQ(response.swap_in().rows_size(), rows) << response.error().message();
  }
  EXPECT_FALSE(steps->Read(&response));
  EXPECT_TRUE(steps->Finish().ok());
}

class NarrowAnswersServerTest : public UnreadAnswersServerTest {
 protected:
  // One step of kRows rows has a place on a connection, and not two.
  static constexpr int kRows = 512;
  NarrowAnswersServerTest() { server_options_.unread_answers.bytes_max = int64_t{24} << 20; }
};

// What was ready behind a step that stalls is given back with its call, not with the stall.
TEST_F(NarrowAnswersServerTest, PlacesBehindAStallEndWithTheirCall) {
  ClientSession session(stub(), "good");
  Attach(session);
  Attach(session, "other");
  Admit(session);
  Assign(session, 1);
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  v1::RunStepsRequest stalls;
  *stalls.mutable_swap_in() = InlineStep(session, {1, 2});
  v1::RunStepsRequest behind = LargeStep(session, kRows);
  behind.mutable_swap_in()->set_cache("other");
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  EXPECT_TRUE(steps->Write(stalls));
  EXPECT_TRUE(steps->Write(behind));
  WaitUntil([&] { return plan().calls(DeviceOperation::kSwapIn) == 2; });
  v1::SwapInResponse response;
  const auto ask = [&] {
    return Call(connection.get(), &v1::KvTier::Stub::SwapIn, behind.swap_in(), &response);
  };
  EXPECT_TRUE(IsWireError(ask(), grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  context.TryCancel();
  EXPECT_EQ(steps->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([&] { return ask().ok(); });
  delay->Release();
}

// Each row is answered with room for top_k, however little is asked for.
TEST_F(NarrowAnswersServerTest, AnswersAreAsLargeAsTopKMakesThem) {
  ClientSession session(stub(), "good");
  v1::AttachCacheRequest request;
  v1::AttachCacheResponse attached;
  request.set_session_id(session.id());
  request.set_cache("kv");
  *request.mutable_layout() = SmallLayout();
  request.mutable_layout()->mutable_groups(0)->set_top_k(32768);
  request.mutable_layout()->mutable_groups(0)->set_hot_size(32768);
  request.mutable_layout()->mutable_groups(0)->mutable_layers(0)->set_row_bytes(16);
  ASSERT_TRUE(Call(stub(), &v1::KvTier::Stub::AttachCache, request, &attached).ok());
  auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
  const v1::RunStepsRequest step = LargeStep(session, 32);
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  EXPECT_TRUE(steps->Write(step));
  WaitUntil([&] { return plan().calls(DeviceOperation::kSwapIn) == 1; });
  v1::SwapInResponse response;
  EXPECT_TRUE(
      IsWireError(Call(connection.get(), &v1::KvTier::Stub::SwapIn, step.swap_in(), &response),
                  grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  delay->Release();
  v1::RunStepsResponse answer;
  EXPECT_TRUE(steps->Read(&answer));
  EXPECT_TRUE(steps->WritesDone());
  EXPECT_TRUE(steps->Finish().ok());
}

TEST_F(UnreadAnswersServerTest, WhoReadsIsNeverHeldBack) {
  ClientSession session(stub(), "good");
  Attach(session);
  const auto connection = v1::KvTier::NewStub(NewChannel());
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = connection->RunSteps(&context);
  constexpr int kSteps = 40;  // far more than have a place at a time
  std::thread writer([&] {
    const v1::RunStepsRequest step = LargeStep(session);
    for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(steps->Write(step));
    EXPECT_TRUE(steps->WritesDone());
  });
  v1::RunStepsResponse response;
  int answers = 0;
  while (steps->Read(&response)) {
    EXPECT_EQ(response.swap_in().rows_size(), 1024) << response.error().message();
    ++answers;
  }
  writer.join();
  EXPECT_TRUE(steps->Finish().ok());
  EXPECT_EQ(answers, kSteps);
}

// Its answer to many blocks is larger than what is sent to who does not read.
class AssignServerTest : public ServiceFixture {
 protected:
  static constexpr int32_t kBlocks = 25000;

  AssignServerTest() { server_options_.unread_answers.bytes_max = 800000; }

  // gRPC's own windows grow with what it measures of a connection, until the answer may be sent to
  // who reads nothing.
  std::shared_ptr<grpc::Channel> ChannelWithSmallWindow() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel("unix:" + server().socket_path(),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  void AttachMany(const ClientSession& session) {
    v1::AttachCacheRequest request;
    v1::AttachCacheResponse response;
    request.set_session_id(session.id());
    request.set_cache("kv");
    *request.mutable_layout() = SmallLayout();
    request.mutable_layout()->set_block_size(1);
    request.mutable_layout()->set_block_count(2 * kBlocks);
    request.mutable_layout()->mutable_groups(0)->mutable_layers(0)->set_row_bytes(16);
    ASSERT_TRUE(Call(stub(), &v1::KvTier::Stub::AttachCache, request, &response).ok());
  }

  // A call of AssignBlocks whose answer waits for as long as nothing is read.
  class UnreadCall {
   public:
    UnreadCall(const std::shared_ptr<grpc::Channel>& channel,
               const v1::AssignBlocksRequest& request)
        : stub_(channel) {
      SetPatience(&context_);
      call_ = stub_.PrepareCall(&context_, "/kvtier.v1.KvTier/AssignBlocks", &queue_);
      call_->StartCall(nullptr);
      EXPECT_TRUE(Next());
      const grpc::Slice words(request.SerializeAsString());
      call_->Write(grpc::ByteBuffer(&words, 1), grpc::WriteOptions().set_last_message(), nullptr);
      EXPECT_TRUE(Next());
    }
    ~UnreadCall() { queue_.Shutdown(); }
    // The answer's bytes.
    size_t Read() {
      grpc::ByteBuffer answer;
      call_->Read(&answer, nullptr);
      EXPECT_TRUE(Next());
      return answer.Length();
    }
    grpc::Status Finish() {
      grpc::Status status;
      call_->Finish(&status, nullptr);
      EXPECT_TRUE(Next());
      return status;
    }

   private:
    bool Next() {
      void* tag = nullptr;
      bool ok = false;
      return queue_.Next(&tag, &ok) && ok;
    }
    grpc::ClientContext context_;
    grpc::CompletionQueue queue_;
    grpc::GenericStub stub_;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  };

  static v1::AssignBlocksRequest Many(const ClientSession& session) {
    v1::AssignBlocksRequest request;
    request.set_session_id(session.id());
    request.set_cache("kv");
    request.set_request_id("r");
    request.set_count(kBlocks);
    return request;
  }
};

TEST_F(AssignServerTest, WhoReadsNoBlocksGetsNoMore) {
  ClientSession session(stub(), "deaf");
  ASSERT_NO_FATAL_FAILURE(AttachMany(session));
  Admit(session);
  const std::shared_ptr<grpc::Channel> channel = ChannelWithSmallWindow();
  UnreadCall unread(channel, Many(session));
  WaitUntil([&] { return Stats().caches(0).blocks_free() == kBlocks; });

  const auto stub_of_same = v1::KvTier::NewStub(channel);
  v1::AssignBlocksResponse response;
  const auto ask = [&](const v1::AssignBlocksRequest& request) {
    return Call(stub_of_same.get(), &v1::KvTier::Stub::AssignBlocks, request, &response);
  };
  EXPECT_TRUE(
      IsWireError(ask(Many(session)), grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT_REACHED"));
  EXPECT_EQ(Stats().caches(0).blocks_free(), kBlocks) << "refused before anything is done";
  // A few are no larger than any other answer.
  Assign(session, 1);
  // Once it is read there is room again.
  EXPECT_GT(unread.Read(), size_t{64} << 10) << "it would have been sent at once";
  EXPECT_TRUE(unread.Finish().ok());
  v1::AssignBlocksRequest rest = Many(session);
  rest.set_count(kBlocks - 1);
  WaitUntil([&] { return ask(rest).ok(); });
}

class DeafAssignServerTest : public AssignServerTest {
 protected:
  DeafAssignServerTest() {
    manual_clock_ = std::make_unique<ManualClock>(absl::FromUnixSeconds(1'000'000'000));
    server_options_.unread_answers.deaf_bytes_min = 1;
  }
};

TEST_F(DeafAssignServerTest, WhoReadsNoBlocksForLongIsEnded) {
  ClientSession session(stub(), "deaf");
  ASSERT_NO_FATAL_FAILURE(AttachMany(session));
  Admit(session);
  UnreadCall unread(ChannelWithSmallWindow(), Many(session));
  WaitUntil([&] { return Stats().caches(0).blocks_free() == kBlocks; });
  WaitUntil([&] {
    manual_clock_->Advance(absl::Seconds(1));
    return Stats().sessions() == 0;
  });
  ASSERT_EQ(Stats().sessions(), 0);  // or there is nothing to wait for
  EXPECT_THAT(session.Next().revoked().message(), HasSubstr("not read for 30s"));
  WaitUntil([&] {
    manual_clock_->Advance(absl::Seconds(1));
    return server().open_calls().empty();
  });
  EXPECT_FALSE(unread.Finish().ok());
}

}  // namespace
}  // namespace kvtier
