#include "client/cli/format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvtier::cli {
namespace {

TEST(Format, Numbers) {
  EXPECT_EQ(Bytes(0), "0 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Bytes(int64_t{512} << 30), "512 GiB");
  EXPECT_EQ(BytesPerSecond(0), "0 B/s");
  EXPECT_EQ(BytesPerSecond(12.34e9), "12.3 GB/s");
  EXPECT_EQ(BytesPerSecond(999.7), "1.00 kB/s");
  EXPECT_EQ(BytesPerSecond(2e10), "20 GB/s");
  EXPECT_EQ(Rate(0), "0");
  EXPECT_EQ(Rate(12345), "12.3k");
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1234567), "1,234,567");
  EXPECT_EQ(Grouped(-123456), "-123,456");
  EXPECT_EQ(Percent(true, 0.8649), "86.5 %");
  EXPECT_EQ(Percent(true, 0), "0.0 %");
  EXPECT_EQ(Percent(false, 0), "-");
  EXPECT_EQ(Latency(250), "250 us");
  EXPECT_EQ(Latency(2500), "2.50 ms");
  EXPECT_EQ(Latency(10000000), "10 s");
  EXPECT_EQ(Age(absl::Seconds(-3)), "0s");
  EXPECT_EQ(Age(absl::Hours(50)), "2d 2h");
}

TEST(Format, Bars) {
  EXPECT_EQ(Bar(0, 4), "[....]");
  EXPECT_EQ(Bar(0.5, 4), "[##..]");
  EXPECT_EQ(Bar(0.001, 4), "[#...]");
  EXPECT_EQ(Bar(7, 4), "[####]");
  EXPECT_EQ(Bar(-1, 4), "[....]");
  EXPECT_EQ(Bar(std::nan(""), 4), "[....]");
}

TEST(Format, Tables) {
  Table table({"NAME", ">COUNT"});
  EXPECT_TRUE(table.empty());
  table.Add({"a", "1"});
  table.Add({"longer", "1,000,000"});
  EXPECT_EQ(table.Text(),
            "NAME        COUNT\n"
            "a               1\n"
            "longer  1,000,000\n");
}

}  // namespace
}  // namespace kvtier::cli
