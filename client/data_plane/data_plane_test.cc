#include "client/data_plane/data_plane.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/counters.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kInvalidArgument = 3, kOutOfRange = 11, kUnimplemented = 12, kInternal = 13;
constexpr int32_t kTopK = 4, kHotSize = 4, kStride = 128, kBlock = 16, kSlots = 32, kRow = 16;

// One layer group of one layer, one region, as a daemon lays it out in memory.
class DataPlaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(kvtier_open("cpu", "CPU-0", 1, &plane_), 0);
    std::iota(lru_.begin(), lru_.end(), int16_t{0});
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      std::fill_n(host_ + int64_t{slot} * kRow, kRow, static_cast<uint8_t>(slot));
    }
    layer_ = {.host = host_, .hot = hot_, .value_bytes = kRow, .row_stride = kRow};
    group_ = {.top_k = kTopK,
              .hot_size = kHotSize,
              .region_stride = kStride,
              .rows_per_request = 1,
              .layer_count = 1,
              .layers = &layer_,
              .topk = topk_.data(),
              .hot_indices = hot_indices_.data(),
              .miss_mask = miss_mask_.data(),
              .valid_counts = &valid_count_,
              .plan_slots = plan_slots_.data(),
              .plan_hot_rows = plan_hot_rows_.data(),
              .plan_counts = &plan_count_,
              .owner = owner_.data(),
              .lru = lru_.data(),
              .backed_generation = backed_.data(),
              .stats = &stats_};
    const kvtier_arrays arrays = {.region_count = 1,
                                  .block_size = kBlock,
                                  .slot_count = kSlots,
                                  .max_blocks = 2,
                                  .step_rows = 1,
                                  .group_count = 1,
                                  .groups = &group_,
                                  .block_table = block_table_,
                                  .block_generation = block_generation_,
                                  .sequence_lengths = &sequence_length_,
                                  .row_to_request = &row_to_request_,
                                  .newest_slot = &newest_slot_,
                                  .num_real_rows = &num_real_rows_};
    ASSERT_EQ(kvtier_set_arrays(plane_, &arrays), 0);
  }
  void TearDown() override { kvtier_close(plane_); }

  int32_t SwapIn(const kvtier_inputs* inputs = nullptr, int32_t use_slots = 0) {
    return kvtier_swap_in(plane_, 0, 1, KVTIER_ALL_LAYERS, 0, use_slots, inputs, nullptr);
  }
  int HotByte(int i, const std::vector<int32_t>& indices) {
    return indices[i] < 0 ? -1 : hot_[int64_t{indices[i]} * kRow];
  }

  kvtier_plane* plane_ = nullptr;
  alignas(64) uint8_t host_[kSlots * kRow] = {};
  alignas(64) uint8_t hot_[kStride * kRow] = {};
  kvtier::StatsBlock stats_;
  std::vector<int32_t> topk_ = {17, 1, -1, -1}, hot_indices_ = {9, 9, 9, 9},
                       miss_mask_ = {9, 9, 9, 9};
  std::vector<int32_t> plan_slots_ = {9, 9, 9, 9}, plan_hot_rows_ = {9, 9, 9, 9};
  std::vector<int32_t> owner_ = std::vector<int32_t>(kHotSize, -1);
  std::vector<int16_t> lru_ = std::vector<int16_t>(kHotSize);
  std::vector<int32_t> backed_ = std::vector<int32_t>(kSlots, 7);
  int32_t block_table_[2] = {1, 0}, block_generation_[2] = {7, 7};
  int32_t valid_count_ = 9, plan_count_ = 9, sequence_length_ = -1;
  int32_t row_to_request_ = 0, newest_slot_ = -1, num_real_rows_ = 1;
  kvtier_layer layer_ = {};
  kvtier_group group_ = {};
};

TEST_F(DataPlaneTest, AStep) {
  ASSERT_EQ(SwapIn(), 0);
  // Position 17 is in the second block of the request, block 0.
  EXPECT_EQ(HotByte(0, hot_indices_), 1);
  EXPECT_EQ(HotByte(1, hot_indices_), kBlock + 1);
  EXPECT_EQ(hot_indices_[2], -1);
  EXPECT_EQ(plan_count_, 2);
  int64_t counts[KVTIER_COUNTERS] = {};
  ASSERT_EQ(kvtier_counts(plane_, 0, counts), 0);
  EXPECT_EQ(counts[static_cast<int>(kvtier::Counter::kMisses)], 2);
}

TEST_F(DataPlaneTest, ArraysOfTheCallersOwn) {
  const std::vector<int32_t> topk = {5, 5, 6, -1};
  std::vector<int32_t> found(kTopK, 9);
  const kvtier_inputs inputs = {.topk = topk.data(), .hot_indices = found.data()};
  ASSERT_EQ(SwapIn(&inputs, /*use_slots=*/1), 0);
  EXPECT_EQ(HotByte(0, found), 5);
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(HotByte(2, found), 6);
  EXPECT_THAT(hot_indices_, ElementsAre(9, 9, 9, 9));
}

TEST_F(DataPlaneTest, BackupsReachTheHostPool) {
  newest_slot_ = 3;
  std::fill_n(hot_ + int64_t{kHotSize} * kRow, kRow, uint8_t{77});
  ASSERT_EQ(kvtier_backup_newest(plane_, 1, nullptr, nullptr), 0);
  EXPECT_EQ(host_[3 * kRow], 77);

  alignas(16) uint8_t rows[2 * 32] = {};
  std::fill_n(rows + 32, kRow, uint8_t{88});
  kvtier_layer source = layer_;
  source.hot = rows;
  source.row_stride = 32;
  const int32_t taken[] = {1, 0}, slots[] = {9, -1};
  ASSERT_EQ(kvtier_backup_rows(plane_, 0, &source, 1, 2, taken, slots, nullptr, 2, nullptr), 0);
  EXPECT_EQ(host_[9 * kRow], 88);

  backed_[4] = 0;
  const int32_t marked[] = {4};
  ASSERT_EQ(kvtier_mark_backed(plane_, 0, marked, 1), 0);
  EXPECT_EQ(backed_[4], 7);
}

TEST_F(DataPlaneTest, EveryWrongArgumentIsNamed) {
  const int32_t slots[] = {kSlots}, rows[] = {0};
  kvtier_layer source = layer_;
  source.value_bytes = 32;
  kvtier_layer unaligned = layer_;
  unaligned.hot = hot_ + 8;
  int64_t counts[KVTIER_COUNTERS];
  EXPECT_EQ(kvtier_swap_in(plane_, 1, 1, -1, 0, 0, nullptr, nullptr), kInvalidArgument);
  EXPECT_EQ(kvtier_counts(plane_, -1, counts), kInvalidArgument);
  EXPECT_STREQ(kvtier_error_message(), "group is -1; it must be in 0..0");
  EXPECT_STREQ(kvtier_error_reason(), "FIELD_INVALID");
  EXPECT_STREQ(kvtier_error_metadata(), "field=group\nvalue=-1\nlimit=in 0..0\n");
  EXPECT_EQ(kvtier_swap_in(plane_, 0, 2, -1, 0, 0, nullptr, nullptr), kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("num_rows is 2"));
  EXPECT_EQ(kvtier_replay_plan(plane_, 0, 1, 0, 2, nullptr, nullptr), kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("layers is 2 from layer 0"));
  EXPECT_EQ(kvtier_swap_in(plane_, 0, 1, -1, 0, 0, nullptr, plane_), kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("null: the cache is on a CPU"));
  EXPECT_EQ(kvtier_mark_backed(plane_, 0, slots, 1), kOutOfRange);
  EXPECT_STREQ(kvtier_error_reason(), "SLOT_OUT_OF_RANGE");
  EXPECT_EQ(kvtier_backup_rows(plane_, 0, &source, 1, 1, rows, rows, nullptr, 1, nullptr),
            kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("rows of 32 bytes"));
  EXPECT_EQ(kvtier_backup_rows(plane_, 0, &unaligned, 1, 1, rows, rows, nullptr, 1, nullptr),
            kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("16-byte aligned"));
  EXPECT_EQ(kvtier_backup_rows(plane_, 0, &layer_, 2, 1, rows, rows, nullptr, 1, nullptr),
            kInvalidArgument);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("one for each layer"));
  EXPECT_EQ(kvtier_signal(plane_, &row_to_request_, 1, nullptr), kInvalidArgument);
}

TEST(DataPlane, DevicesThatAreNotThere) {
  kvtier_plane* plane = nullptr;
  EXPECT_EQ(kvtier_open("tpu", "TPU-0", 1, &plane), kUnimplemented);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("the backend 'tpu'"));
  EXPECT_EQ(kvtier_open("cpu", "CPU-0", 65, &plane), kInvalidArgument);
  EXPECT_EQ(plane, nullptr);
  // Another thread has failures of its own.
  std::thread([] { EXPECT_STREQ(kvtier_error_message(), ""); }).join();
}

TEST(DataPlane, DescriptorsAreNotTrusted) {
  kvtier_plane* plane = nullptr;
  ASSERT_EQ(kvtier_open("cpu", "CPU-0", 1, &plane), 0);
  const int fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  void* address = nullptr;
  EXPECT_EQ(kvtier_map_file(plane, fd, 0, 8192, 0, &address), kInternal);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("not sealed"));
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  for (const auto& [offset, size] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 8193},
                                                {4096, 8192},
                                                {8, 8},
                                                {-4096, 4096},
                                                {0, 0},
                                                {0, -1},
                                                {4096, std::numeric_limits<int64_t>::max()}}) {
    EXPECT_EQ(kvtier_map_file(plane, fd, offset, size, 0, &address), kInternal) << offset;
  }
  EXPECT_EQ(kvtier_map_file(plane, -1, 0, 8192, 0, &address), kInternal);
  // A file without seals must be its user's alone.
  char path[] = "/tmp/kvt-XXXXXX";
  const int file = mkstemp(path);
  unlink(path);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  EXPECT_EQ(kvtier_map_file(plane, file, 0, 4096, 0, &address), kInternal);
  ASSERT_EQ(fchmod(file, 0640), 0);
  EXPECT_EQ(kvtier_map_file(plane, file, 0, 4096, KVTIER_MAP_UNSEALED, &address), kInternal);
  EXPECT_THAT(kvtier_error_message(), HasSubstr("can be opened by others"));
  EXPECT_EQ(address, nullptr);
  ASSERT_EQ(fchmod(file, 0600), 0);
  EXPECT_EQ(
      kvtier_map_file(plane, file, 0, 4096, KVTIER_MAP_UNSEALED | KVTIER_MAP_READ_ONLY, &address),
      0);
  close(file);
  address = nullptr;
  EXPECT_EQ(kvtier_map_gpu_file(plane, fd, 8192, &address), kUnimplemented);
  EXPECT_EQ(kvtier_map_gpu_handle(plane, "", 0, 8192, &address), kUnimplemented);
  EXPECT_EQ(address, nullptr);
  ASSERT_EQ(kvtier_map_file(plane, fd, 4096, 4096, 0, &address), 0);
  close(fd);
  std::memset(address, 1, 4096);
  kvtier_close(plane);
}

TEST(DataPlane, WhoeverWaitsIsReleasedOnce) {
  int32_t word = 5;
  kvtier_release_wait(&word, 4);
  EXPECT_EQ(word, 5);
  kvtier_release_wait(&word, 9);
  EXPECT_EQ(word, 9);
  // Numbers are cyclic.
  word = std::numeric_limits<int32_t>::max();
  kvtier_release_wait(&word, std::numeric_limits<int32_t>::min());
  EXPECT_EQ(word, std::numeric_limits<int32_t>::min());
}

TEST(DataPlane, NoTensorsWithoutPython) {
  const int64_t shape[] = {1}, strides[] = {1};
  EXPECT_EQ(kvtier_dlpack(nullptr, 1, 0, 0, 32, 1, shape, strides, nullptr), nullptr);
}

}  // namespace
