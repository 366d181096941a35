// Whose a cache is, and whose a session.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Code = absl::StatusCode;

constexpr int32_t kOwner = 1000, kOther = 1001, kFriend = 1002, kGroup = 44;

class NodeAccessTest : public NodeFixture {
 protected:
  NodeAccessTest() : NodeAccessTest(/*has_folder=*/false) {}
  explicit NodeAccessTest(bool has_folder)
      : NodeFixture(Options{.manual_clock = true, .has_folder = has_folder}) {}

  std::string OpenAs(int32_t uid, std::vector<int32_t> gids = {}) {
    return Open("worker", {.pid = 1, .uid = uid, .gids = std::move(gids)});
  }
  absl::Status AttachAs(int32_t uid, const AttachOptions& options = {},
                        const CacheLayout& layout = SmallLayout{}.Make(),
                        std::vector<int32_t> gids = {}) {
    return node()
        .AttachCache(OpenAs(uid, std::move(gids)), "kv", layout, "", Soon(), options)
        .status();
  }
  void ExpectRefused(const absl::Status& status, int32_t uid) {
    EXPECT_TRUE(IsError(status, Code::kPermissionDenied, "ACCESS_DENIED"));
    EXPECT_THAT(ErrorMetadataOf(status),
                UnorderedElementsAre(Pair("cache", "kv"), Pair("needs", "owner"),
                                     Pair("uid", std::to_string(uid))));
  }
  CacheAccess AccessOfCache() {
    const absl::StatusOr<NodeSnapshot> snapshot = node().Snapshot("kv");
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? snapshot->caches[0].access : CacheAccess();
  }
};

TEST_F(NodeAccessTest, ACacheIsItsMakersAlone) {
  ASSERT_TRUE(AttachAs(kOwner).ok());
  ASSERT_TRUE(AttachAs(kOwner).ok());  // another session of the same user
  ExpectRefused(AttachAs(kOther), kOther);
  ExpectRefused(AttachAs(0), 0);    // root is a user like any other
  ExpectRefused(AttachAs(-1), -1);  // nobody knows who that is
  EXPECT_EQ(AccessOfCache().owner_uid, kOwner);
  EXPECT_EQ(node().Snapshot("kv")->caches[0].sessions.size(), 2u);
}

TEST_F(NodeAccessTest, ARefusalTellsNothingOfTheCache) {
  ASSERT_TRUE(AttachAs(kOwner).ok());
  const absl::Status same = AttachAs(kOther);
  const absl::Status other =
      AttachAs(kOther, {.replace_kept = true}, SmallLayout{.top_k = 4}.Make());
  EXPECT_EQ(same, other);  // not even whether the layout is right
  EXPECT_THAT(std::string(same.message()), Not(HasSubstr(std::to_string(kOwner))));
}

TEST_F(NodeAccessTest, SharedWithUsers) {
  ASSERT_TRUE(AttachAs(kOwner, {.share = Sharing{.uids = {kFriend}}}).ok());
  EXPECT_TRUE(AttachAs(kFriend).ok());
  ExpectRefused(AttachAs(kOther), kOther);
}

TEST_F(NodeAccessTest, SharedWithAGroup) {
  ASSERT_TRUE(AttachAs(kOwner, {.share = Sharing{.gids = {kGroup}}}).ok());
  EXPECT_TRUE(AttachAs(kFriend, {}, SmallLayout{}.Make(), {7, kGroup}).ok());
  ExpectRefused(AttachAs(kOther, {}, SmallLayout{}.Make(), {7}), kOther);
  ExpectRefused(AttachAs(kGroup), kGroup);  // a user of the group's number is no member
}

TEST_F(NodeAccessTest, SharedWithEverybody) {
  ASSERT_TRUE(AttachAs(kOwner, {.share = Sharing{.everybody = true}}).ok());
  EXPECT_TRUE(AttachAs(kOther).ok());
}

TEST_F(NodeAccessTest, SharingIsSettledWhenACacheIsMade) {
  ASSERT_TRUE(AttachAs(kOwner, {.share = Sharing{.uids = {kFriend}}}).ok());
  EXPECT_TRUE(AttachAs(kOwner, {.share = Sharing{.uids = {kFriend}}}).ok());
  for (const int32_t uid : {kOwner, kFriend}) {
    const absl::Status status = AttachAs(uid, {.share = Sharing{.everybody = true}});
    EXPECT_TRUE(IsError(status, Code::kFailedPrecondition, "LAYOUT_MISMATCH"));
    EXPECT_THAT(ErrorMetadataOf(status),
                UnorderedElementsAre(Pair("cache", "kv"), Pair("field", "share"),
                                     Pair("value", "everybody"), Pair("expected", "users 1002")));
  }
  EXPECT_THAT(AccessOfCache().sharing.uids, ElementsAre(kFriend));
}

TEST_F(NodeAccessTest, SharingHasLimits) {
  const auto refused = [&](const Sharing& sharing) {
    return IsError(AttachAs(kOwner, {.share = sharing}), Code::kInvalidArgument, "FIELD_INVALID");
  };
  EXPECT_TRUE(refused({.uids = std::vector<int32_t>(kSharedWithMax + 1, 5)}));
  EXPECT_TRUE(refused({.uids = {-1}}));  // else whom nobody knows would be let in
  EXPECT_TRUE(refused({.gids = {-1}}));
}

TEST_F(NodeAccessTest, AKeptCacheIsNobodyElsesToTakeOrToReplace) {
  const std::string session = OpenAs(kOwner);
  ASSERT_TRUE(node()
                  .AttachCache(session, "kv", SmallLayout{}.Make(), "", Soon(),
                               {.retain = Retention{.blocks_max = 9, .duration = absl::Minutes(1)}})
                  .ok());
  node().CloseSession(session);
  ExpectRefused(AttachAs(kOther), kOther);
  ExpectRefused(AttachAs(kOther, {.replace_kept = true}, SmallLayout{.top_k = 4}.Make()), kOther);
  EXPECT_TRUE(AttachAs(kOwner).ok());
}

TEST_F(NodeAccessTest, WhomACacheIsSharedWithCannotTakeItFromItsOwner) {
  const std::string session = OpenAs(kOwner);
  const AttachOptions options = {
      .retain = Retention{.blocks_max = 9, .duration = absl::Minutes(1)},
      .share = Sharing{.uids = {kFriend}, .gids = {kGroup}},
  };
  ASSERT_TRUE(node().AttachCache(session, "kv", SmallLayout{}.Make(), "", Soon(), options).ok());
  const auto try_all = [&] {
    for (const Retention& retain :
         {Retention{.blocks_max = 0, .duration = absl::Minutes(1)}, *options.retain, Retention{}}) {
      ExpectRefused(AttachAs(kFriend, {.retain = retain}), kFriend);
    }
    const CacheLayout other = SmallLayout{.top_k = 4}.Make();
    ExpectRefused(AttachAs(kFriend, {.replace_kept = true}, other), kFriend);
    ExpectRefused(AttachAs(kOther, {.replace_kept = true}, other, {kGroup}), kOther);
    EXPECT_EQ(AccessOfCache().owner_uid, kOwner);
    EXPECT_EQ(node().Snapshot("kv")->caches[0].retention.blocks_max, 9);
  };
  try_all();
  node().CloseSession(session);
  try_all();
  // The same cache as it is, with or without the option that changes nothing.
  EXPECT_TRUE(AttachAs(kFriend, {.replace_kept = true}).ok());
  EXPECT_TRUE(AttachAs(kFriend).ok());
  EXPECT_TRUE(AttachAs(kOwner, {.retain = Retention{.blocks_max = 5}}).ok());
}

TEST_F(NodeAccessTest, AFreeNameIsWhoseComesFirst) {
  const std::string session = OpenAs(kOwner);
  ASSERT_TRUE(node().AttachCache(session, "kv", SmallLayout{}.Make(), "", Soon()).ok());
  ASSERT_TRUE(node().DetachCache(session, "kv", Soon()).ok());
  EXPECT_TRUE(AttachAs(kOther).ok());
  ExpectRefused(AttachAs(kOwner), kOwner);
}

TEST_F(NodeAccessTest, ASessionIsItsUsersAlone) {
  const std::string session = OpenAs(kOwner);
  EXPECT_TRUE(node().CheckCaller(session, {.pid = 99, .uid = kOwner}).ok());
  const absl::Status refused = node().CheckCaller(session, {.pid = 1, .uid = kOther});
  EXPECT_TRUE(IsError(refused, Code::kPermissionDenied, "ACCESS_DENIED"));
  EXPECT_EQ(ErrorMetadataOf(refused)["session_id"], session);
  // What is not there is the verb's to say.
  EXPECT_TRUE(node().CheckCaller("nobody's", {.pid = 1, .uid = kOther}).ok());
}

class NodeAccessRestartTest : public NodeAccessTest {
 protected:
  NodeAccessRestartTest() : NodeAccessTest(/*has_folder=*/true) {}
};

TEST_F(NodeAccessRestartTest, OwnersOutliveTheDaemon) {
  const Sharing sharing = {.uids = {kFriend}, .gids = {kGroup}};
  ASSERT_TRUE(AttachAs(kOwner, {.share = sharing}).ok());
  RestartNode();
  EXPECT_EQ(AccessOfCache().owner_uid, kOwner);
  EXPECT_EQ(AccessOfCache().sharing, sharing);
  ExpectRefused(AttachAs(kOther), kOther);
  EXPECT_TRUE(AttachAs(kFriend).ok());
  EXPECT_TRUE(AttachAs(kOther, {}, SmallLayout{}.Make(), {kGroup}).ok());
  EXPECT_TRUE(AttachAs(kOwner).ok());
}

}  // namespace
}  // namespace kvtier
