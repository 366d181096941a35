// An AttachCache answer is believed only as far as it was checked: whatever a daemon sends, the
// client gets memory that it may use, or an error that names what is wrong.
#include "client/segment_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "client/device.h"
#include "client/error.h"
#include "client/testing/fake_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/region_index.h"

namespace kvtier::client {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CacheMemory> MapOf(const FakeCache& fake, const v1::CacheLayout& asked) {
  if (absl::Status status = CheckLayoutGiven(asked, fake.answer().layout()); !status.ok()) {
    return status;
  }
  absl::StatusOr<CacheShape> shape = CacheShapeOf(fake.answer().layout());
  if (!shape.ok()) return shape.status();
  Device device(data_plane::OpenCpu(/*kernel_threads=*/1));
  return CacheMemory::Map(fake.answer(), *shape, &device,
                          [&fake](const std::string& token) { return fake.Redeem(token); });
}

absl::StatusOr<CacheMemory> MapOf(const FakeCache& fake) { return MapOf(fake, SmallLayout()); }

// Reads and writes every byte that the view says is there: under ASan or with a guard page
// behind it, a wrong answer that was let through would be seen.
void TouchEverything(const CacheMemory& memory) {
  const CacheView& view = memory.view();
  const auto touch = [](auto span) {
    for (auto& element : span) element = static_cast<std::decay_t<decltype(element)>>(1);
  };
  touch(view.sequence_lengths);
  touch(view.row_to_request);
  touch(view.newest_slot);
  *view.num_real_rows = 1;
  int64_t sum = 0;
  for (const int32_t block : view.block_generation) sum += block;
  for (const GroupView& group : view.groups) {
    touch(group.topk);
    for (const int32_t slot : group.backed_generation) sum += slot;
    for (const LayerRows& layer : group.layers) {
      for (const Rows* rows : {&layer.host, &layer.hot}) {
        touch(std::span(rows->data(), StorageBytes(rows->layout(), rows->row_count())));
      }
    }
  }
  EXPECT_GE(sum, 0);
}

TEST(SegmentMap, TheArraysAreThoseOfTheDaemon) {
  FakeCache fake(SmallLayout());
  const absl::StatusOr<CacheMemory> memory = MapOf(fake);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const CacheView& view = memory->view();
  ASSERT_EQ(view.groups.size(), 2u);
  EXPECT_EQ(view.groups[0].shape.region_stride, 128);
  EXPECT_EQ(view.groups[0].topk.size(), 2u * 8);
  EXPECT_EQ(view.groups[0].owner.size(), 2u * 16);
  EXPECT_EQ(view.block_table.size(), 2u * 8);
  EXPECT_EQ(view.groups[0].layers.size(), 2u);
  EXPECT_EQ(view.groups[0].layers[1].host.value(31).size(), 48u);
  EXPECT_TRUE(view.groups[0].layers[1].host.value(32).empty());
  EXPECT_TRUE(view.groups[0].layers[1].host.value(-1).empty());
  EXPECT_TRUE(view.groups[0].layers[1].host.scale(0).empty());
  EXPECT_EQ(view.groups[1].layers[0].hot.scale(255).size(), 4u);
  EXPECT_EQ(view.groups[1].newest_hot_row(1), 128 + 16);

  view.groups[1].topk[9] = 77;
  EXPECT_EQ(fake.Array<int32_t>(fake.answer().buffers().groups(1).topk())[9], 77);
  view.groups[0].layers[1].host.value(5)[3] = 0xab;
  EXPECT_EQ(fake.Array<uint8_t>(fake.answer().buffers().groups(0).layers(1).host())[5 * 48 + 3],
            0xab);
  memory->kernel_arrays(1).state.index[70] = 12;
  EXPECT_EQ(fake.Array<uint16_t>(fake.answer().buffers().groups(1).index())[70], 12);
  TouchEverything(*memory);
}

TEST(SegmentMap, ScoresAreThereIfThePolicyHasThem) {
  v1::CacheLayout layout = SmallLayout();
  FakeCache lru(layout);
  const absl::StatusOr<CacheMemory> without = MapOf(lru, layout);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->kernel_arrays(0).state.score, nullptr);
  EXPECT_EQ(without->kernel_arrays(0).state.kept, nullptr);
  EXPECT_EQ(without->view().groups[0].shape.policy, EvictionPolicy::kLru);

  layout.set_eviction_policy(v1::EVICTION_POLICY_AGED);
  FakeCache aged(layout);
  const absl::StatusOr<CacheMemory> with = MapOf(aged, layout);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->view().groups[1].shape.policy, EvictionPolicy::kAged);
  with->kernel_arrays(1).state.score[31] = 9;
  EXPECT_EQ(aged.Array<uint8_t>(aged.answer().buffers().groups(1).score())[31], 9);
  with->kernel_arrays(1).state.kept[1] = 70;
  EXPECT_EQ(aged.Array<int32_t>(aged.answer().buffers().groups(1).kept())[1], 70);
}

TEST(SegmentMap, ADirectoryIsThereIfRowsAreShared) {
  v1::CacheLayout layout = SmallLayout();
  FakeCache alone(layout);
  const absl::StatusOr<CacheMemory> without = MapOf(alone, layout);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->kernel_arrays(0).state.directory, nullptr);

  layout.set_share_rows(true);
  FakeCache shared(layout);
  const absl::StatusOr<CacheMemory> with = MapOf(shared, layout);
  ASSERT_TRUE(with.ok()) << with.status();
  const int32_t last = 2 * with->view().groups[1].shape.slot_count - 1;
  with->kernel_arrays(1).state.directory[last] = 9;
  EXPECT_EQ(shared.Array<int32_t>(shared.answer().buffers().groups(1).directory())[last], 9);
}

TEST(SegmentMap, LargeRegionsHaveNoIndex) {
  v1::CacheLayout layout = SmallLayout();
  layout.mutable_groups(0)->set_hot_size(kIndexedHotSizeMax + 1);
  FakeCache fake(layout);
  const absl::StatusOr<CacheMemory> memory = MapOf(fake, layout);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->kernel_arrays(0).state.index, nullptr);
  EXPECT_NE(memory->kernel_arrays(1).state.index, nullptr);
}

TEST(SegmentMap, BlockGenerationsCannotBeWritten) {
  FakeCache fake(SmallLayout());
  const absl::StatusOr<CacheMemory> memory = MapOf(fake);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_DEATH(const_cast<int32_t&>(memory->view().block_generation[0]) = 7, "");
}

// One wrong thing in an answer, and what the error must name.
struct Lie {
  std::string name;
  std::function<void(FakeCache*)> tell;
  std::string text;
};

// Changes the answer.
std::function<void(FakeCache*)> Answer(std::function<void(v1::AttachCacheResponse*)> change) {
  return [change](FakeCache* fake) { change(&fake->answer()); };
}

std::vector<Lie> LiesAboutTheLayout() {
  return {
      {"layout differs", Answer([](auto* a) { a->mutable_layout()->set_max_requests(1); }),
       "max_requests"},
      {"row bytes differ", Answer([](auto* a) {
         a->mutable_layout()->mutable_groups(0)->mutable_layers(0)->set_row_bytes(16);
       }),
       "row_bytes"},
      {"huge hot size",
       Answer([](auto* a) { a->mutable_layout()->mutable_groups(0)->set_hot_size(40000); }),
       "hot_size"},
      {"stride below row", Answer([](auto* a) {
         a->mutable_layout()->mutable_groups(0)->mutable_layers(0)->set_row_stride_bytes(16);
       }),
       "row_stride_bytes"},
      {"page too small", Answer([](auto* a) {
         a->mutable_layout()->mutable_groups(1)->mutable_layers(0)->set_page_bytes(128);
       }),
       "page_bytes"},
      {"steps past the end", Answer([](auto* a) { a->mutable_layout()->set_step_rows(1 << 30); }),
       "step_rows"},
      {"group missing",
       Answer([](auto* a) { a->mutable_buffers()->mutable_groups()->RemoveLast(); }), "groups"},
      {"layer missing", Answer([](auto* a) {
         a->mutable_buffers()->mutable_groups(0)->mutable_layers()->RemoveLast();
       }),
       "layers"},
      {"another region stride",
       Answer([](auto* a) { a->mutable_buffers()->mutable_groups(0)->set_region_stride(64); }),
       "region_stride"},
      {"array too short", Answer([](auto* a) {
         a->mutable_buffers()->mutable_groups(0)->mutable_owner()->set_size_bytes(4);
       }),
       "owner"},
      {"index too short", Answer([](auto* a) {
         a->mutable_buffers()->mutable_groups(1)->mutable_index()->set_size_bytes(2);
       }),
       "index"},
      {"another policy",
       Answer([](auto* a) { a->mutable_layout()->set_eviction_policy(v1::EVICTION_POLICY_AGED); }),
       "eviction_policy"},
      {"rows that nobody asked to share",
       Answer([](auto* a) { a->mutable_layout()->set_share_rows(true); }), "share_rows"},
      {"array past the end", Answer([](auto* a) {
         a->mutable_buffers()->mutable_groups(1)->mutable_plan_counts()->set_offset_bytes(1 << 30);
       }),
       "plan_counts"},
      {"negative offset",
       Answer([](auto* a) { a->mutable_buffers()->mutable_newest_slot()->set_offset_bytes(-256); }),
       "newest_slot"},
  };
}

std::vector<Lie> LiesAboutMemory() {
  return {
      {"size that overflows", Answer([](auto* a) {
         a->mutable_buffers()->mutable_newest_slot()->set_size_bytes(INT64_MAX);
       }),
       "newest_slot"},
      {"offset that overflows", Answer([](auto* a) {
         a->mutable_buffers()->mutable_newest_slot()->set_offset_bytes(INT64_MAX - 255);
       }),
       "newest_slot"},
      {"unaligned", Answer([](auto* a) {
         a->mutable_buffers()->mutable_groups(0)->mutable_stats()->set_offset_bytes(8);
       }),
       "stats"},
      {"no such segment",
       Answer([](auto* a) { a->mutable_buffers()->mutable_block_table()->set_segment_index(9); }),
       "block_table"},
      {"another kind",
       Answer([](auto* a) { a->mutable_buffers()->mutable_block_table()->set_segment_index(0); }),
       "block_table"},
      {"written array is read-only",
       Answer([](auto* a) { a->mutable_segments(5)->set_read_only(true); }), "read-only"},
      {"two segments of a number",
       Answer([](auto* a) { a->mutable_segments(1)->set_segment_index(0); }), "number 0"},
      {"segment longer than its descriptor",
       Answer([](auto* a) { a->mutable_segments(0)->set_size_bytes(int64_t{1} << 40); }),
       "descriptor has"},
      {"segment begins past its descriptor",
       Answer([](auto* a) { a->mutable_segments(0)->set_offset_bytes(int64_t{1} << 40); }),
       "descriptor has"},
      {"offset of no page", Answer([](auto* a) { a->mutable_segments(0)->set_offset_bytes(8); }),
       "segment 0"},
      {"empty segment", Answer([](auto* a) { a->mutable_segments(0)->set_size_bytes(0); }),
       "segment 0"},
      {"descriptor can shrink",
       [](FakeCache* fake) { fake->ReplaceDescriptor(4, 1 << 20, /*seals=*/0); }, "sealed"},
      {"descriptor is short", [](FakeCache* fake) { fake->ReplaceDescriptor(4, 1, F_SEAL_SHRINK); },
       "descriptor has 1"},
  };
}

TEST(SegmentMap, EveryLieIsNamed) {
  std::vector<Lie> lies = LiesAboutTheLayout();
  for (Lie& lie : LiesAboutMemory()) lies.push_back(std::move(lie));
  for (const Lie& lie : lies) {
    FakeCache fake(SmallLayout());
    lie.tell(&fake);
    const absl::Status status = MapOf(fake).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << lie.name << ": " << status;
    EXPECT_EQ(ErrorReasonOf(status), "INTERNAL") << lie.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(lie.text)) << lie.name;
  }
}

TEST(SegmentMap, GpuMemoryIsNotImplemented) {
  FakeCache fake(SmallLayout());
  fake.answer().mutable_segments(3)->set_transport(v1::SEGMENT_TRANSPORT_CUDA_IPC);
  const absl::Status status = MapOf(fake).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ErrorReasonOf(status), "NOT_IMPLEMENTED");
  EXPECT_EQ(ErrorMetadataOf(status)["feature"], "SEGMENT_TRANSPORT_CUDA_IPC");
}

TEST(SegmentMap, UnknownTransportIsNotImplemented) {
  FakeCache fake(SmallLayout());
  fake.answer().mutable_segments(3)->set_transport(static_cast<v1::SegmentTransport>(17));
  EXPECT_EQ(ErrorReasonOf(MapOf(fake).status()), "NOT_IMPLEMENTED");
}

// Random numbers in random fields: an error, or memory that can be used to its last byte.
TEST(SegmentMap, NoAnswerLeadsOutOfBounds) {
  std::mt19937_64 random(20260101);
  const std::vector<int64_t> values = {-1,  0,    1,       4,         16,        255,
                                       256, 4096, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
  int64_t mapped = 0;
  for (int round = 0; round < 2000; ++round) {
    FakeCache fake(SmallLayout());
    v1::CacheBuffers* buffers = fake.answer().mutable_buffers();
    v1::GroupBuffers* group = buffers->mutable_groups(static_cast<int>(random() % 2));
    const std::vector<v1::Buffer*> arrays = {group->mutable_layers(0)->mutable_host(),
                                             group->mutable_layers(0)->mutable_hot(),
                                             group->mutable_owner(),
                                             group->mutable_lru(),
                                             group->mutable_stats(),
                                             group->mutable_topk(),
                                             group->mutable_hot_indices(),
                                             group->mutable_plan_counts(),
                                             group->mutable_backed_generation(),
                                             buffers->mutable_block_table(),
                                             buffers->mutable_row_to_request(),
                                             buffers->mutable_num_real_rows()};
    v1::Buffer* buffer = arrays[random() % arrays.size()];
    const int64_t value = values[random() % values.size()];
    v1::Segment* segment = fake.answer().mutable_segments(static_cast<int>(random() % 6));
    switch (random() % 5) {
      case 0:
        buffer->set_offset_bytes(value);
        break;
      case 1:
        buffer->set_size_bytes(value);
        break;
      case 2:
        buffer->set_segment_index(static_cast<int>(value));
        break;
      case 3:
        segment->set_size_bytes(value);
        break;
      default:
        segment->set_offset_bytes(value);
        break;
    }
    const absl::StatusOr<CacheMemory> memory = MapOf(fake);
    if (!memory.ok()) continue;
    ++mapped;
    TouchEverything(*memory);
  }
  EXPECT_GT(mapped, 0);
}

}  // namespace
}  // namespace kvtier::client
