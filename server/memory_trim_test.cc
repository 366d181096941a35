#include "server/memory_trim.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#if defined(__has_feature)
#define KVTIER_TEST_HAS(feature) __has_feature(feature)
#else
#define KVTIER_TEST_HAS(feature) 0
#endif

namespace kvtier {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    KVTIER_TEST_HAS(address_sanitizer) || KVTIER_TEST_HAS(thread_sanitizer)
constexpr bool kHasSanitizer = true;
#else
constexpr bool kHasSanitizer = false;
#endif

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr size_t kBlockBytes = 1024;

int64_t ResidentBytes() {
  FILE* file = fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long long size = 0, resident = 0;
  EXPECT_EQ(fscanf(file, "%lld %lld", &size, &resident), 2);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

// Blocks that come to `bytes`, of which one in 64 stays: what is freed lies between those, where
// the C library does not give it back by itself.
class Holes {
 public:
  explicit Holes(int64_t bytes) {
    std::vector<std::unique_ptr<char[]>> freed;
    for (int64_t i = 0; i < bytes / static_cast<int64_t>(kBlockBytes); ++i) {
      auto block = std::make_unique<char[]>(kBlockBytes);
      memset(block.get(), 1, kBlockBytes);
      (i % 64 == 0 ? kept_ : freed).push_back(std::move(block));
    }
  }

 private:
  std::vector<std::unique_ptr<char[]>> kept_;
};

// As the C library tells of them.
int HeapCount() {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* file = open_memstream(&text, &bytes);
  EXPECT_EQ(malloc_info(0, file), 0);
  fclose(file);
  int count = 0;
  for (const char* at = text; (at = strstr(at, "<heap nr=")) != nullptr; ++at) ++count;
  free(text);
  return count;
}

class MemoryTrimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kHasSanitizer) GTEST_SKIP() << "sanitizers have heaps of their own";
  }

  const absl::Time begin_ = absl::FromUnixSeconds(1'000'000'000);
  MemoryTrimmer trimmer_;
};

TEST_F(MemoryTrimTest, ThreadsShareAFewHeaps) {
  LimitHeaps();
  std::vector<std::unique_ptr<char[]>> blocks(4 * kHeapsMax);
  std::latch all_are_there(4 * kHeapsMax);
  std::vector<std::thread> threads;
  for (std::unique_ptr<char[]>& block : blocks) {
    threads.emplace_back([&] {
      block = std::make_unique<char[]>(kBlockBytes);
      // No heap is free again before all have theirs.
      all_are_there.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(HeapCount(), kHeapsMax);
}

TEST_F(MemoryTrimTest, GivesBackEveryMinute) {
  trimmer_.Tick(begin_);
  const Holes holes(20 * kMebibyte);
  const int64_t before = ResidentBytes();
  trimmer_.Tick(begin_ + absl::Seconds(59));
  EXPECT_GT(ResidentBytes(), before - 4 * kMebibyte) << "not yet, and not so little";
  trimmer_.Tick(begin_ + absl::Seconds(64));
  EXPECT_LT(ResidentBytes(), before - 15 * kMebibyte);
}

TEST_F(MemoryTrimTest, GivesBackMuchAtTheNextLook) {
  trimmer_.Tick(begin_);
  const Holes holes(200 * kMebibyte);
  const int64_t before = ResidentBytes();
  trimmer_.Tick(begin_ + absl::Seconds(4));
  EXPECT_GT(ResidentBytes(), before - 4 * kMebibyte) << "looked too soon";
  trimmer_.Tick(begin_ + absl::Seconds(5));
  EXPECT_LT(ResidentBytes(), before - 150 * kMebibyte);
}

}  // namespace
}  // namespace kvtier
