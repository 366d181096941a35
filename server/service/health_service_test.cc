// Health as probes and load balancers ask for it, of a whole server.
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public ServiceFixture {
 protected:
  // A Watch of one service.
  class Watching {
   public:
    Watching(const std::shared_ptr<grpc::Channel>& channel, const std::string& service)
        : stub_(grpc::health::v1::Health::NewStub(channel)) {
      SetPatience(&context_);
      grpc::health::v1::HealthCheckRequest request;
      request.set_service(service);
      reader_ = stub_->Watch(&context_, request);
    }
    ~Watching() {
      context_.TryCancel();
      (void)reader_->Finish();
    }
    // The next that it tells; UNKNOWN if it tells no more.
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      return reader_->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }

   private:
    grpc::ClientContext context_;
    const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
  };
};

TEST_F(HealthServiceTest, EachChangeIsToldToWhoWatches) {
  WaitForHealth("", "SERVING");
  Watching all(NewChannel(), ""), workers(NewChannel(), "kvtier.v1.KvTier"),
      alive(NewChannel(), "liveness"), nothing(NewChannel(), "nothing");
  EXPECT_EQ(all.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(workers.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(alive.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(nothing.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  server().Drain("an upgrade");
  EXPECT_EQ(all.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(workers.Next(), HealthCheckResponse::NOT_SERVING);
  // Neither of the others has changed: the end is what they hear of next.
  server_owner()->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(alive.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(nothing.Next(), HealthCheckResponse::UNKNOWN);
  server_owner().reset();
}

TEST_F(HealthServiceTest, OneAnswersWhatIsAsked) {
  WaitForHealth("", "SERVING");
  EXPECT_EQ(Health("liveness"), "SERVING");
  EXPECT_EQ(Health(""), "SERVING");
  EXPECT_EQ(Health("nothing"), std::to_string(grpc::StatusCode::NOT_FOUND));
}

// Its end is noticed while nothing changes.
TEST_F(HealthServiceTest, WhoWatchesMayLeave) {
  WaitForHealth("", "SERVING");
  for (int i = 0; i < 100; ++i) {
    Watching watching(NewChannel(), "");
    EXPECT_EQ(watching.Next(), HealthCheckResponse::SERVING);
  }
  server().Drain("an upgrade");
  EXPECT_EQ(Health(""), "NOT_SERVING");
}

}  // namespace
}  // namespace kvtier
