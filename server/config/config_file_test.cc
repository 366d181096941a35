#include "server/config/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<ConfigEntry> Parse(absl::string_view content) {
  const auto entries = ParseConfigFile("f.yaml", content);
  EXPECT_TRUE(entries.ok()) << entries.status();
  return entries.ok() ? *entries : std::vector<ConfigEntry>();
}

std::string ErrorOf(absl::string_view content) {
  return std::string(ParseConfigFile("f.yaml", content).status().message());
}

// The text of `value` behind a name.
std::vector<std::string> Texts(absl::string_view value) {
  const std::vector<ConfigEntry> entries = Parse("a: " + std::string(value) + "\n");
  return entries.size() == 1 ? entries[0].texts : std::vector<std::string>{"?"};
}

TEST(ConfigFile, ReadsNamesAndValues) {
  const std::vector<ConfigEntry> entries = Parse(
      "---\n# a comment\n\nsocket: /run/x.sock\r\npool_bytes: 8GiB   # why\n"
      "tcp: ['127.0.0.1:7400', \"[::1]:7400\"]\nallowed_uids:\n  - 1000\n  # one more\n- 1001\n");
  ASSERT_EQ(entries.size(), 4);
  EXPECT_EQ(entries[0].name, "socket");
  EXPECT_THAT(entries[0].texts, ElementsAre("/run/x.sock"));
  EXPECT_EQ(entries[0].line, 4);
  EXPECT_FALSE(entries[0].list);
  EXPECT_THAT(entries[1].texts, ElementsAre("8GiB"));
  EXPECT_THAT(entries[2].texts, ElementsAre("127.0.0.1:7400", "[::1]:7400"));
  EXPECT_TRUE(entries[2].list);
  EXPECT_THAT(entries[3].texts, ElementsAre("1000", "1001"));
  EXPECT_EQ(entries[3].line, 7);
  EXPECT_THAT(Parse(""), IsEmpty());
}

TEST(ConfigFile, TextsAreWhatIsWritten) {
  EXPECT_THAT(Texts("0660"), ElementsAre("0660"));
  EXPECT_THAT(Texts("-1"), ElementsAre("-1"));
  EXPECT_THAT(Texts("two words"), ElementsAre("two words"));
  EXPECT_THAT(Texts("a#b"), ElementsAre("a#b"));
  EXPECT_THAT(Texts("127.0.0.1:80"), ElementsAre("127.0.0.1:80"));
  EXPECT_THAT(Texts(R"("a \"b\" \\ # c")"), ElementsAre("a \"b\" \\ # c"));
  EXPECT_THAT(Texts("'it''s'  # so"), ElementsAre("it's"));
  EXPECT_THAT(Texts("\"\""), ElementsAre(""));
  EXPECT_THAT(Texts("[]"), IsEmpty());
  EXPECT_THAT(Texts("[ 1 , \"a, b\" ]"), ElementsAre("1", "a, b"));
}

TEST(ConfigFile, WhatElseYamlHasIsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf("a: 1\n\tb: 2\n"), HasSubstr("f.yaml:2: a tab"));
  EXPECT_THAT(ErrorOf("a:\n  b: 2\n"), HasSubstr("f.yaml:2: indented"));
  EXPECT_THAT(ErrorOf("a: {b: 2}\n"), HasSubstr("f.yaml:1: '{b: 2}' means something else"));
  EXPECT_THAT(ErrorOf("a: &x 2\n"), HasSubstr("quote it"));
  EXPECT_THAT(ErrorOf("a: |\n  text\n"), HasSubstr("quote it"));
  EXPECT_THAT(ErrorOf("a: ~\n"), HasSubstr("quote it"));
  EXPECT_THAT(ErrorOf("a: null\n"), HasSubstr("quote it"));
  EXPECT_THAT(ErrorOf("a: b: c\n"), HasSubstr("quote it"));
  EXPECT_THAT(ErrorOf("a: \"\\n\"\n"), HasSubstr("is none of"));
  EXPECT_THAT(ErrorOf("a: \"b\n"), HasSubstr("does not end"));
  EXPECT_THAT(ErrorOf("a: 'b\n"), HasSubstr("does not end"));
  EXPECT_THAT(ErrorOf("a: \"b\" c\n"), HasSubstr("'c' after the value"));
  EXPECT_THAT(ErrorOf("a: \"b\"#c\n"), HasSubstr("after the value"));
  EXPECT_THAT(ErrorOf("a: [b\n"), HasSubstr("expected ',' or ']'"));
  EXPECT_THAT(ErrorOf("a: [b,]\n"), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf("a: [[b]]\n"), HasSubstr("a value is missing"));
}

TEST(ConfigFile, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf("a:1\n"), HasSubstr("f.yaml:1: a blank is missing"));
  EXPECT_THAT(ErrorOf("just words\n"), HasSubstr("expected 'name: value'"));
  EXPECT_THAT(ErrorOf("A: 1\n"), HasSubstr("expected 'name: value'"));
  EXPECT_THAT(ErrorOf("- 1\n"), HasSubstr("an item of no list"));
  EXPECT_THAT(ErrorOf("a: 1\n- 1\n"), HasSubstr("f.yaml:2: an item of no list"));
  EXPECT_THAT(ErrorOf("a: [1]\n- 1\n"), HasSubstr("f.yaml:2: an item of no list"));
  EXPECT_THAT(ErrorOf("a:\nb: 1\n"), HasSubstr("f.yaml:1: a has no value"));
  EXPECT_THAT(ErrorOf("b: 1\na: \n"), HasSubstr("f.yaml:2: a has no value"));
  EXPECT_THAT(ErrorOf("a: 1\nb: 2\na: 3\n"), HasSubstr("f.yaml:3: a is there already, in line 1"));
  EXPECT_THAT(ErrorOf(std::string("a: \0", 4)), HasSubstr("a control character"));
}

TEST(ConfigFile, QuotedValuesReadAsTheyWere) {
  for (const std::string text : {"", "a", "a \"b\" \\ c", "# no comment", "null", "[x]"}) {
    EXPECT_THAT(Texts(QuoteValue(text)), ElementsAre(text));
  }
}

}  // namespace
}  // namespace kvtier
