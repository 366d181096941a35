#include "server/config/byte_size.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(ByteSize, ReadsWhatPeopleWrite) {
  EXPECT_EQ(*ParseByteSize("4096"), 4096);
  EXPECT_EQ(*ParseByteSize("64KiB"), 65536);
  EXPECT_EQ(*ParseByteSize("3MiB"), 3 << 20);
  EXPECT_EQ(*ParseByteSize("1GiB"), int64_t{1} << 30);
  EXPECT_EQ(*ParseByteSize("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize("2 TiB"), int64_t{1} << 41);
  EXPECT_EQ(*ParseByteSize("9223372036854775807"), INT64_MAX);
}

TEST(ByteSize, RefusesTheRest) {
  for (const char* text : {"", "GiB", "0", "-1", "-1GiB", "1GB", "1G", "x", "1.5", "0.3KiB", "nan",
                           "inf", "1e300GiB", "8388608TiB", "9223372036854775808", "1GiBGiB"}) {
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
  }
}

}  // namespace
}  // namespace kvtier
