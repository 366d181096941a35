// How many steps of a RunSteps call are under way at a time, against a whole server.
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "server/core/limits.h"
#include "server/service/service_fixture.h"

namespace kvtier {
namespace {

class RunStepsServerTest : public ServiceFixture {};

// The rows of all that are open at a time are more than a session's may take.
TEST_F(RunStepsServerTest, LargeBackupsWaitInsteadOfBeingRefused) {
  ClientSession session(stub(), "good");
  Attach(session);
  const std::string name(kNameBytesMax, 'x');
  Admit(session, name);
  v1::RunStepsRequest step;
  v1::BackupRequest* const backup = step.mutable_backup();
  backup->set_session_id(session.id());
  backup->set_cache("kv");
  for (int i = 0; i < kInlineBackupRowsMax; ++i) {
    v1::BackupRow* const row = backup->mutable_inline_()->add_rows();
    row->set_request_id(name);
    row->set_slot(1);
    row->set_source_hot_row(0);
  }
  constexpr int kSteps = 60;
  const auto bytes = static_cast<int64_t>(backup->inline_().SpaceUsedLong());
  const int64_t at_once = (kInlineBytesInFlightMax + bytes - 1) / bytes;
  ASSERT_LT(at_once, kSteps);

  const auto delay = plan().DelayNth(DeviceOperation::kBackup, 1);
  grpc::ClientContext context;
  SetPatience(&context);
  const auto steps = stub()->RunSteps(&context);
  std::thread writer([&] {
    for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(steps->Write(step));
    EXPECT_TRUE(steps->WritesDone());
  });
  WaitUntil([&] { return plan().calls(DeviceOperation::kBackup) >= at_once; });
  // If more were read, they would be by then.
  for (int i = 0; i < 50; ++i) Stats();
  EXPECT_LE(plan().calls(DeviceOperation::kBackup), at_once + 1);
  delay->Release();
  v1::RunStepsResponse response;
  int answers = 0;
  while (steps->Read(&response)) {
    EXPECT_TRUE(response.backup().completed()) << response.error().message();
    ++answers;
  }
  writer.join();
  EXPECT_TRUE(steps->Finish().ok());
  EXPECT_EQ(answers, kSteps);
}

}  // namespace
}  // namespace kvtier
