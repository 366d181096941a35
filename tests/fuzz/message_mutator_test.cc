#include "tests/fuzz/message_mutator.h"

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "tests/fuzz/program.pb.h"

namespace kvtier::fuzz {
namespace {

// A new RPC has to be given a place in Program, or this fails.
TEST(ProgramTest, HasTheRequestOfEveryRpc) {
  std::set<std::string> known;
  const auto* const oneof = Call::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof->field_count(); ++i) {
    known.insert(oneof->field(i)->message_type()->full_name());
  }
  for (const auto* const file :
       {v1::OpenSessionRequest::descriptor()->file(), v1::GetStatsRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const auto* const method = file->service(s)->method(m);
        EXPECT_EQ(known.count(method->input_type()->full_name()), 1u) << method->full_name();
      }
    }
  }
}

TEST(MessageMutatorTest, ReachesEveryCallFromNothing) {
  const MessageMutator mutator({"kv"});
  Random random(1);
  std::set<int> seen;
  Program program;
  for (int i = 0; i < 5000; ++i) {
    mutator.Mutate(&program, random);
    for (const Call& call : program.calls()) {
      if (call.call_case() != Call::CALL_NOT_SET) seen.insert(call.call_case());
    }
    // What it makes can always be sent.
    Program again;
    ASSERT_TRUE(again.ParseFromString(program.SerializeAsString()));
  }
  EXPECT_EQ(static_cast<int>(seen.size()), Call::descriptor()->oneof_decl(0)->field_count());
}

TEST(MessageMutatorTest, TheSameSeedMakesTheSame) {
  const auto make = [] {
    Random random(7);
    Program program;
    for (int i = 0; i < 100; ++i) MessageMutator({"a", "b"}).Mutate(&program, random);
    return program.SerializeAsString();
  };
  EXPECT_EQ(make(), make());
}

}  // namespace
}  // namespace kvtier::fuzz
