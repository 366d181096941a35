// What one user may have, and that others have theirs whatever the user does.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

constexpr int32_t kOne = 1000, kOther = 1001;
// What the smallest cache takes of the pool, of which the test has four.
constexpr int64_t kPiece = kPoolAlignmentBytes;

class NodeQuotaTest : public NodeFixture {
 protected:
  explicit NodeQuotaTest(const UserQuota& quota, bool has_folder = false)
      : NodeFixture(Options{.manual_clock = true,
                            .pool_bytes = 16 * kPiece,
                            .has_folder = has_folder,
                            .node = {.version = "test", .user_quota = quota}}) {}

  absl::StatusOr<std::string> TryOpen(int32_t uid) {
    return node().OpenSession("worker", {.pid = 1, .uid = uid}, nullptr);
  }
  std::string OpenAs(int32_t uid) { return Open("worker", {.pid = 1, .uid = uid}); }
  // A cache of one piece of the pool, or of more.
  absl::Status AttachTo(const std::string& session, const std::string& cache, int32_t pieces = 1,
                        const AttachOptions& options = {}) {
    SmallLayout layout;
    layout.row_bytes = 512;
    layout.block_count = pieces * 64;  // of 64 rows of 512 bytes each: a piece
    return node().AttachCache(session, cache, layout.Make(), "", Soon(), options).status();
  }
  UserSnapshot User(int32_t uid) {
    const absl::StatusOr<NodeSnapshot> snapshot = node().Snapshot("");
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    for (const UserSnapshot& user : snapshot->users) {
      if (user.uid == uid) return user;
    }
    return {};
  }
  static void ExpectRefused(const absl::Status& status, const ErrorMetadata& metadata) {
    EXPECT_TRUE(IsError(status, Code::kResourceExhausted, "LIMIT_REACHED"));
    EXPECT_EQ(ErrorMetadataOf(status), metadata);
  }
};

class SessionQuotaTest : public NodeQuotaTest {
 protected:
  SessionQuotaTest() : NodeQuotaTest({.sessions_max = 2}) {}
};

TEST_F(SessionQuotaTest, AUserHasSoManySessions) {
  const std::string first = OpenAs(kOne), second = OpenAs(kOne);
  const absl::Status refused = TryOpen(kOne).status();
  ExpectRefused(refused, {{"limit", "2"},
                          {"used", "2"},
                          {"requested", "1"},
                          {"uid", "1000"},
                          {"setting", "sessions_per_uid_max"}});
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(TryOpen(kOther).ok());
  EXPECT_EQ(User(kOne).sessions, 2);
  EXPECT_EQ(User(kOther).sessions, 1);
  node().CloseSession(first);
  EXPECT_TRUE(TryOpen(kOne).ok());
}

TEST_F(SessionQuotaTest, ItChangesWhileTheNodeRuns) {
  OpenAs(kOne);
  OpenAs(kOne);
  NodeLimits limits = node().limits();
  limits.user_quota.sessions_max = 1;
  node().SetLimits(limits);
  EXPECT_EQ(User(kOne).sessions, 2) << "none is ended";
  EXPECT_FALSE(TryOpen(kOne).ok());
  limits.user_quota.sessions_max = 0;
  node().SetLimits(limits);
  EXPECT_TRUE(TryOpen(kOne).ok());
}

class CacheQuotaTest : public NodeQuotaTest {
 protected:
  CacheQuotaTest() : NodeQuotaTest({.caches_max = 2}) {}
};

TEST_F(CacheQuotaTest, AUserMakesSoManyCaches) {
  const std::string one = OpenAs(kOne), other = OpenAs(kOther);
  ASSERT_TRUE(AttachTo(one, "a").ok());
  ASSERT_TRUE(AttachTo(one, "b", 1, {.share = Sharing{.uids = {kOther}}}).ok());
  ExpectRefused(AttachTo(one, "c"), {{"limit", "2"},
                                     {"used", "2"},
                                     {"requested", "1"},
                                     {"uid", "1000"},
                                     {"setting", "caches_per_uid_max"}});
  EXPECT_TRUE(AttachTo(OpenAs(kOne), "a").ok()) << "it is there already";
  // Whom one is shared with has as many of his own.
  EXPECT_TRUE(AttachTo(other, "b").ok());
  EXPECT_TRUE(AttachTo(other, "c").ok());
  EXPECT_TRUE(AttachTo(other, "d").ok());
  EXPECT_EQ(User(kOne).caches, 2);
  EXPECT_EQ(User(kOther).caches, 2);
}

TEST_F(CacheQuotaTest, OnesOwnThatNobodyUsesGivesWay) {
  const AttachOptions kept = {.retain = Retention{.blocks_max = 9, .duration = absl::Minutes(1)}};
  const std::string leaves = OpenAs(kOne), others = OpenAs(kOther), one = OpenAs(kOne);
  ASSERT_TRUE(AttachTo(others, "other", 1, kept).ok());
  node().CloseSession(others);
  ASSERT_TRUE(AttachTo(leaves, "kept", 1, kept).ok());
  node().CloseSession(leaves);
  ASSERT_TRUE(AttachTo(one, "a").ok());
  EXPECT_TRUE(AttachTo(one, "b").ok());
  EXPECT_FALSE(AttachTo(one, "c").ok());
  EXPECT_FALSE(node().Snapshot("kept").ok());
  EXPECT_TRUE(node().Snapshot("other").ok()) << "another user's stays";
}

class PoolQuotaTest : public NodeQuotaTest {
 protected:
  PoolQuotaTest() : NodeQuotaTest({.pool_bytes_max = 4 * kPiece}) {}
};

TEST_F(PoolQuotaTest, AUserTakesSoMuchOfThePool) {
  const std::string one = OpenAs(kOne), other = OpenAs(kOther);
  ASSERT_TRUE(AttachTo(one, "a", 3).ok());
  const absl::Status refused = AttachTo(one, "b", 2);
  ExpectRefused(refused, {{"limit", "8388608"},
                          {"used", "6291456"},
                          {"requested", "4194304"},
                          {"uid", "1000"},
                          {"setting", "pool_bytes_per_uid_max"}});
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(pool().stats().used_bytes, 3 * kPiece) << "refused before anything was taken";
  EXPECT_EQ(User(kOne).caches, 1);
  EXPECT_TRUE(AttachTo(one, "b", 1).ok());
  EXPECT_EQ(User(kOne).pool_bytes, 4 * kPiece);
  EXPECT_TRUE(AttachTo(other, "c", 4).ok());
  EXPECT_EQ(User(kOther).pool_bytes, 4 * kPiece);
}

TEST_F(PoolQuotaTest, NothingIsWaitedForThatNeverIsThere) {
  const absl::Status refused = AttachTo(OpenAs(kOne), "a", 5);
  ExpectRefused(refused, {{"limit", "8388608"},
                          {"used", "0"},
                          {"requested", "10485760"},
                          {"uid", "1000"},
                          {"setting", "pool_bytes_per_uid_max"}});
  EXPECT_FALSE(RetryDelayOf(refused).has_value());
}

TEST_F(PoolQuotaTest, WhatIsOnItsWayBackIsWaitedFor) {
  const std::string first = OpenAs(kOne);
  ASSERT_TRUE(AttachTo(first, "a", 4).ok());
  node().CloseSession(first);
  EXPECT_TRUE(AttachTo(OpenAs(kOne), "b", 4).ok()) << "a worker that starts again";
}

TEST_F(PoolQuotaTest, OnesOwnThatNobodyUsesGivesWay) {
  const AttachOptions kept = {.retain = Retention{.blocks_max = 9, .duration = absl::Minutes(1)}};
  const std::string leaves = OpenAs(kOne), others = OpenAs(kOther), one = OpenAs(kOne);
  ASSERT_TRUE(AttachTo(others, "other", 4, kept).ok());
  ASSERT_TRUE(AttachTo(leaves, "first", 1, kept).ok());
  ASSERT_TRUE(AttachTo(leaves, "second", 2, kept).ok());
  node().CloseSession(others);
  node().CloseSession(leaves);
  ASSERT_TRUE(AttachTo(one, "a", 1).ok());
  EXPECT_FALSE(AttachTo(one, "too large", 4).ok());
  EXPECT_TRUE(node().Snapshot("first").ok()) << "not dropped where it does not help";
  EXPECT_TRUE(AttachTo(one, "b", 3).ok());
  EXPECT_FALSE(node().Snapshot("first").ok());
  EXPECT_FALSE(node().Snapshot("second").ok());
  EXPECT_TRUE(node().Snapshot("other").ok()) << "another user's stays";
}

TEST_F(PoolQuotaTest, AnAttemptThatFailsTakesNothing) {
  const std::string one = OpenAs(kOne);
  plan().FailNth(DeviceOperation::kAllocate, 1, absl::InternalError("no"));
  EXPECT_FALSE(AttachTo(one, "a", 4).ok());
  EXPECT_TRUE(AttachTo(one, "a", 4).ok());
}

TEST_F(PoolQuotaTest, EverythingComesBack) {
  const std::string one = OpenAs(kOne);
  ASSERT_TRUE(AttachTo(one, "a", 4).ok());
  ASSERT_TRUE(node().DetachCache(one, "a", Soon()).ok());
  EXPECT_EQ(User(kOne).pool_bytes, 0);
  EXPECT_TRUE(AttachTo(one, "b", 4).ok());
  node().CloseSession(one);
  ExpectBaseline();
  EXPECT_THAT(node().Snapshot("")->users, IsEmpty());
}

class KeptPoolQuotaTest : public NodeQuotaTest {
 protected:
  // What is known of blocks lies in the pool as well: a piece more for each cache.
  KeptPoolQuotaTest() : NodeQuotaTest({.pool_bytes_max = 4 * kPiece}, /*has_folder=*/true) {}
};

TEST_F(KeptPoolQuotaTest, WhatAnEarlierDaemonLeftCounts) {
  const AttachOptions kept = {.retain = Retention{.blocks_max = 99, .duration = absl::Hours(1)}};
  ASSERT_TRUE(AttachTo(OpenAs(kOne), "a", 2, kept).ok());
  EXPECT_EQ(User(kOne).pool_bytes, 3 * kPiece);
  EXPECT_EQ(User(kOne).pool_bytes, pool().stats().used_bytes);
  RestartNode();
  EXPECT_EQ(User(kOne).pool_bytes, 3 * kPiece);
  const std::string one = OpenAs(kOne);
  ASSERT_TRUE(AttachTo(one, "a", 2).ok());
  EXPECT_FALSE(AttachTo(one, "b", 1).ok());
  EXPECT_TRUE(AttachTo(OpenAs(kOther), "b", 1).ok());
}

class NoQuotaTest : public NodeQuotaTest {
 protected:
  NoQuotaTest() : NodeQuotaTest({}) {}
};

TEST_F(NoQuotaTest, IsTheDefault) {
  const std::string one = OpenAs(kOne);
  EXPECT_TRUE(AttachTo(one, "a", 15).ok());
  EXPECT_THAT(node().Snapshot("")->users, SizeIs(1));
  EXPECT_TRUE(IsError(AttachTo(one, "b", 2), Code::kResourceExhausted, "POOL_EXHAUSTED"));
}

}  // namespace
}  // namespace kvtier
