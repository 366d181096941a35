#include "server/session/token_table.h"

#include <fcntl.h>

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

UniqueFd SomeFile() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class TokenTableTest : public ::testing::Test {
 protected:
  TokenTableTest() {
    table_.AddSession("s", 1000);
    table_.AddSession("t", -1);
  }
  std::string Issue(const std::string& session, const std::string& cache = "kv") {
    return table_.Issue(session, cache, SomeFile()).value_or("");
  }

  TokenTable table_;
};

TEST_F(TokenTableTest, EachTokenIsAnotherOneAndWorksOnce) {
  std::set<std::string> tokens;
  for (int i = 0; i < 50; ++i) tokens.insert(Issue("s"));
  EXPECT_EQ(tokens.size(), 50u);
  for (const std::string& token : tokens) {
    EXPECT_TRUE(table_.Redeem(token, 1000).ok());
    EXPECT_EQ(ErrorReasonOf(table_.Redeem(token, 1000).status()), "SESSION_UNKNOWN");
  }
  EXPECT_EQ(table_.token_count(), 0);
}

TEST_F(TokenTableTest, AnotherUserGetsNothingAndBreaksNothing) {
  const std::string token = Issue("s");
  EXPECT_FALSE(table_.Redeem(token, 0).ok());
  EXPECT_FALSE(table_.Redeem(token, -1).ok());
  EXPECT_TRUE(table_.Redeem(token, 1000).ok());
}

TEST_F(TokenTableTest, TheFirstUserBindsTheSession) {
  const std::string first = Issue("t"), second = Issue("t");
  EXPECT_TRUE(table_.Redeem(first, 7).ok());
  EXPECT_FALSE(table_.Redeem(second, 8).ok());
  EXPECT_TRUE(table_.Redeem(second, 7).ok());
}

TEST_F(TokenTableTest, TokensEndWithTheirSessionOrCache) {
  const std::string kv = Issue("s"), other = Issue("s", "other"), foreign = Issue("t");
  table_.RemoveCache("s", "kv");
  EXPECT_FALSE(table_.Redeem(kv, 1000).ok());
  EXPECT_TRUE(table_.Redeem(other, 1000).ok());
  const std::string last = Issue("s");
  table_.RemoveSession("s");
  EXPECT_FALSE(table_.Redeem(last, 1000).ok());
  EXPECT_EQ(ErrorReasonOf(table_.Issue("s", "kv", SomeFile()).status()), "SESSION_CLOSED");
  EXPECT_TRUE(table_.Redeem(foreign, 1000).ok());
}

TEST_F(TokenTableTest, ASessionThatNeverRedeemsKeepsABoundedNumber) {
  const std::string foreign = Issue("t");
  const std::string oldest = Issue("s");
  std::string newest;
  for (size_t i = 0; i < TokenTable::kTokensPerSessionMax; ++i) newest = Issue("s");
  EXPECT_EQ(table_.token_count(), static_cast<int64_t>(TokenTable::kTokensPerSessionMax) + 1);
  EXPECT_FALSE(table_.Redeem(oldest, 1000).ok());
  EXPECT_TRUE(table_.Redeem(newest, 1000).ok());
  EXPECT_TRUE(table_.Redeem(foreign, 7).ok());
}

}  // namespace
}  // namespace kvtier
