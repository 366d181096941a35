// What others left in a part of the pool: wiped once, before the next one has it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/host_pool/host_pool.h"

namespace kvtier {
namespace {

constexpr int64_t kPiece = int64_t{2} << 20;

class HostPoolWipeTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostPool> Ready(int64_t bytes, HostPoolOptions options = {}) {
    options.size_bytes = bytes;
    auto pool = *HostPool::Create(options, backend_.get());
    pool->Start(nullptr);
    EXPECT_TRUE(pool->WaitReady(absl::InfiniteFuture()).ok());
    return pool;
  }

  const std::unique_ptr<DeviceBackend> backend_ = *MakeCpuBackend({});
};

TEST_F(HostPoolWipeTest, ANewPartNeverShowsAnothersBytes) {
  auto pool = Ready(60 * kPiece);  // more than one step of the wiping threads
  { std::memset(pool->Carve(50 * kPiece)->data(), 0xab, 50 * kPiece); }
  const PoolPart part = *pool->Carve(60 * kPiece);
  EXPECT_TRUE(
      std::all_of(part.data(), part.data() + part.size_bytes(), [](uint8_t b) { return b == 0; }));
}

bool IsZero(const uint8_t* data, int64_t bytes) {
  return data[0] == 0 && std::memcmp(data, data + 1, bytes - 1) == 0;
}

TEST_F(HostPoolWipeTest, WhatAnAttemptHasWipedTheNextOneNeedNot) {
  constexpr int64_t kStep = 32 * kPiece;
  auto pool = Ready(3 * kStep, {.touch_threads = 1});
  uint8_t* const data = pool->Carve(3 * kStep)->data();
  std::memset(data, 0xab, 3 * kStep);
  int asked = 0;
  const auto twice = [&asked] {
    return ++asked <= 2 ? absl::OkStatus() : absl::DeadlineExceededError("no time");
  };
  const absl::Status refused = pool->Carve(3 * kStep, twice).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(asked, 3) << "before each step";
  EXPECT_EQ(pool->stats().used_bytes, 0);
  EXPECT_TRUE(IsZero(data, 2 * kStep));
  EXPECT_EQ(data[2 * kStep], 0xab);
  asked = 0;
  const absl::StatusOr<PoolPart> part = pool->Carve(3 * kStep, twice);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(asked, 1) << "two steps are done";
  EXPECT_TRUE(IsZero(data, 3 * kStep));
}

TEST_F(HostPoolWipeTest, APartThatNobodyHadIsNotWipedAgain) {
  auto pool = Ready(2 * kPiece);
  std::memset(pool->Carve(2 * kPiece)->data(), 0xab, 2 * kPiece);
  int asked = 0;
  const auto count = [&asked] {
    ++asked;
    return absl::OkStatus();
  };
  PoolPart part = *pool->Carve(2 * kPiece, count);
  EXPECT_EQ(asked, 1);
  part.GiveBackUntouched();
  EXPECT_EQ(pool->stats().used_bytes, 0);
  part = *pool->Carve(kPiece, count);
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(IsZero(part.data(), kPiece));
  part.data()[0] = 1;
  part = PoolPart();
  part = *pool->Carve(2 * kPiece, count);
  EXPECT_EQ(asked, 2) << "this one somebody had";
  EXPECT_TRUE(IsZero(part.data(), 2 * kPiece));
}

}  // namespace
}  // namespace kvtier
