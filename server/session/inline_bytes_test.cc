#include "server/session/inline_bytes.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

constexpr int64_t kLimit = 100;

TEST(InlineBytes, WhoHasNoneGetsAPlaceAndOthersWhatFits) {
  InlineBytes bytes(kLimit);
  absl::StatusOr<InlineBytes::Place> large = bytes.Take(kLimit + 1);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(ErrorReasonOf(bytes.Take(1).status()), "LIMIT_REACHED");
  large->reset();
  const absl::StatusOr<InlineBytes::Place> first = bytes.Take(60);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ErrorReasonOf(bytes.Take(41).status()), "LIMIT_REACHED");
  const absl::StatusOr<InlineBytes::Place> second = bytes.Take(40);
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(InlineBytes, APlaceOutlivesWhoGaveIt) {
  auto bytes = std::make_unique<InlineBytes>(kLimit);
  absl::StatusOr<InlineBytes::Place> place = bytes->Take(60);
  ASSERT_TRUE(place.ok()) << place.status();
  bytes.reset();
  place->reset();
}

// What is too large is asked for all the while, and never in the way of what fits.
TEST(InlineBytes, WhatIsRefusedRefusesNobodyElse) {
  constexpr int kTries = 1'000'000;
  InlineBytes bytes(kLimit);
  const absl::StatusOr<InlineBytes::Place> held = bytes.Take(60);
  ASSERT_TRUE(held.ok()) << held.status();
  std::atomic<bool> stop = false;
  std::atomic<int> taken = 0, asked = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      for (; !stop; ++asked) taken += bytes.Take(50).ok();
    });
  }
  while (asked == 0) std::this_thread::yield();
  int refused = 0;
  for (int i = 0; i < kTries; ++i) refused += !bytes.Take(40).ok();
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(taken, 0);
}

// Of many at once as many have a place as fit, and at the end nobody has.
TEST(InlineBytes, ManyAtOnceNeverHaveMoreThanTheLimit) {
  constexpr int kTries = 20'000;
  InlineBytes bytes(kLimit);
  std::atomic<int64_t> held = 0;
  std::atomic<bool> too_much = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int tries = 0; tries < kTries; ++tries) {
        const absl::StatusOr<InlineBytes::Place> place = bytes.Take(40);
        if (!place.ok()) continue;
        if (held.fetch_add(40) + 40 > kLimit) too_much = true;
        held -= 40;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(too_much);
  EXPECT_TRUE(bytes.Take(kLimit).ok());
  EXPECT_TRUE(bytes.Take(kLimit + 1).ok()) << "somebody still has a place";
}

}  // namespace
}  // namespace kvtier
