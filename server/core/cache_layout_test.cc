#include "server/core/cache_layout.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int32_t kInt32Min = std::numeric_limits<int32_t>::min();

RowLayout Contiguous(int32_t bytes) { return {.value_bytes = bytes, .row_stride = bytes}; }

RowLayout SplitPage() {
  return {.format = RowFormat::kSplitPage,
          .value_bytes = 576,
          .scale_bytes = 8,
          .page_rows = 64,
          .page_bytes = 37440};
}

CacheLayout Valid() {
  CacheLayout layout;
  layout.groups = {{.layers = {Contiguous(656), SplitPage()}, .top_k = 8, .hot_size = 16},
                   {.layers = {Contiguous(1152)}, .top_k = 2048, .hot_size = 4096}};
  layout.block_count = 100;
  layout.max_requests = 4;
  layout.max_blocks_per_request = 100;
  layout.step_rows = 4;
  layout.dtype_tag = "fp8_ds_mla";
  return layout;
}

// What is wrong with one field, and the two numbers that the text must have.
struct Wrong {
  const char* name;
  std::function<void(CacheLayout&)> change;
  const char* field;
  std::vector<const char*> in_text;
};

class ValidateLayoutTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(ValidateLayoutTest, SaysFieldValueAndLimit) {
  CacheLayout layout = Valid();
  GetParam().change(layout);
  const absl::Status status = ValidateLayout(layout);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReasonOf(status), "LAYOUT_INVALID");
  const ErrorMetadata metadata = ErrorMetadataOf(status);
  ASSERT_EQ(metadata.count("field") + metadata.count("value") + metadata.count("limit"), 3u);
  EXPECT_EQ(metadata.at("field"), GetParam().field) << status;
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr(metadata.at("value")));
  EXPECT_THAT(text, HasSubstr(metadata.at("limit")));
  for (const char* part : GetParam().in_text) EXPECT_THAT(text, HasSubstr(part));
}

#define SET(expression) []([[maybe_unused]] CacheLayout& l) { expression; }

INSTANTIATE_TEST_SUITE_P(
    Rows, ValidateLayoutTest,
    ::testing::Values(Wrong{"K15_584",
                            SET(l.groups[0].layers[0] = Contiguous(584)),
                            "groups[0].layers[0].row_bytes",
                            {"584 % 16 = 8"}},
                      Wrong{"K15_132",
                            SET(l.groups[0].layers[0] = Contiguous(132)),
                            "groups[0].layers[0].row_bytes",
                            {"132 % 16 = 4"}},
                      Wrong{"K15_24",
                            SET(l.groups[1].layers[0] = Contiguous(24)),
                            "groups[1].layers[0].row_bytes",
                            {"24 % 16 = 8"}},
                      Wrong{"K15_8",
                            SET(l.groups[0].layers[0] = Contiguous(8)),
                            "groups[0].layers[0].row_bytes",
                            {"8", "16..4096"}},
                      Wrong{"K15_0",
                            SET(l.groups[0].layers[0] = Contiguous(0)),
                            "groups[0].layers[0].row_bytes",
                            {"16..4096"}},
                      Wrong{"K15_Negative",
                            SET(l.groups[0].layers[0] = Contiguous(-16)),
                            "groups[0].layers[0].row_bytes",
                            {"-16"}},
                      Wrong{"RowTooWide",
                            SET(l.groups[0].layers[0] = Contiguous(4112)),
                            "groups[0].layers[0].row_bytes",
                            {"4112", "4096"}},
                      Wrong{"StrideBelowRow",
                            SET(l.groups[0].layers[0].row_stride = 640),
                            "groups[0].layers[0].row_stride_bytes",
                            {"640", "656"}},
                      Wrong{"StrideRemainder",
                            SET(l.groups[0].layers[0].row_stride = 664),
                            "groups[0].layers[0].row_stride_bytes",
                            {"664 % 16 = 8"}},
                      Wrong{"StrideNegative",
                            SET(l.groups[0].layers[0].row_stride = INT64_MIN),
                            "groups[0].layers[0].row_stride_bytes",
                            {}},
                      Wrong{"ContiguousWithScales",
                            SET(l.groups[0].layers[0].scale_bytes = 8),
                            "groups[0].layers[0].scale_bytes",
                            {"contiguous"}},
                      Wrong{"ContiguousWithPageRows",
                            SET(l.groups[0].layers[0].page_rows = 64),
                            "groups[0].layers[0].page_rows",
                            {"contiguous"}},
                      Wrong{"ContiguousWithPageBytes",
                            SET(l.groups[0].layers[0].page_bytes = 64),
                            "groups[0].layers[0].page_bytes",
                            {"contiguous"}},
                      Wrong{"SplitWithStride",
                            SET(l.groups[0].layers[1].row_stride = 592),
                            "groups[0].layers[1].row_stride_bytes",
                            {"split pages"}},
                      Wrong{"SplitScaleMissing",
                            SET(l.groups[0].layers[1].scale_bytes = 0),
                            "groups[0].layers[1].scale_bytes",
                            {"4..1024"}},
                      Wrong{"SplitScaleRemainder",
                            SET(l.groups[0].layers[1].scale_bytes = 6),
                            "groups[0].layers[1].scale_bytes",
                            {"6 % 4 = 2"}},
                      Wrong{"SplitScaleTooWide",
                            SET(l.groups[0].layers[1].scale_bytes = 1028),
                            "groups[0].layers[1].scale_bytes",
                            {"1028", "1024"}},
                      Wrong{"SplitPageRows",
                            SET(l.groups[0].layers[1].page_rows = 32),
                            "groups[0].layers[1].page_rows",
                            {"32", "block_size (64)"}},
                      Wrong{"SplitPageTooSmall",
                            SET(l.groups[0].layers[1].page_bytes = 37360),
                            "groups[0].layers[1].page_bytes",
                            {"37360", "37376"}},
                      Wrong{"SplitPageRemainder",
                            SET(l.groups[0].layers[1].page_bytes = 37448),
                            "groups[0].layers[1].page_bytes",
                            {"37448 % 16 = 8"}},
                      Wrong{"UnknownFormat",
                            SET(l.groups[0].layers[1].format = static_cast<RowFormat>(7)),
                            "groups[0].layers[1].row_format",
                            {"7"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Groups, ValidateLayoutTest,
    ::testing::Values(
        Wrong{"NoGroup", SET(l.groups.clear()), "groups", {"0", "1..64"}},
        Wrong{"TooManyGroups", SET(l.groups.resize(65, l.groups[0])), "groups", {"65", "64"}},
        Wrong{"NoLayer", SET(l.groups[1].layers.clear()), "groups[1].layers", {"0", "1..256"}},
        Wrong{"TooManyLayers",
              SET(l.groups[1].layers.resize(257, Contiguous(16))),
              "groups[1].layers",
              {"257", "256"}},
        Wrong{"TooManyLayersTogether",
              SET(l.groups[1].layers.resize(255, Contiguous(16))),
              "groups",
              {"257", "256"}},
        Wrong {
          "K14_TopKAboveHotSize", SET(l.groups[0].top_k = 6; l.groups[0].hot_size = 4),
              "groups[0].top_k", {
            "6", "hot_size (4)"
          }
        },
        Wrong{"K14_Union",
              SET(l.rows_per_request = 3),
              "groups[0].hot_size",
              {"16", "rows_per_request * top_k (24)"}},
        Wrong{"K17_HotSize32769",
              SET(l.groups[1].hot_size = 32769),
              "groups[1].hot_size",
              {"32769", "32768", "int16"}},
        Wrong{"K17_HotSize65536",
              SET(l.groups[1].hot_size = 65536),
              "groups[1].hot_size",
              {"65536", "32768"}},
        Wrong{"K17_HotSizeMax",
              SET(l.groups[1].hot_size = kInt32Max),
              "groups[1].hot_size",
              {"2147483647"}},
        Wrong{
            "K17_TopK40000", SET(l.groups[1].top_k = 40000), "groups[1].top_k", {"40000", "32768"}},
        Wrong {
          "NoHotSlot", SET(l.groups[0].top_k = 0; l.groups[0].hot_size = 0), "groups[0].hot_size", {
            "1..32768"
          }
        },
        Wrong{"HotSizeNegative", SET(l.groups[0].hot_size = kInt32Min), "groups[0].hot_size", {}},
        Wrong{"TopKNegative", SET(l.groups[0].top_k = -1), "groups[0].top_k", {"-1"}},
        // RegionStride(4096, 1) = 4224: 65,536 regions fit; RegionStride(32768, 1) = 32896.
        Wrong {
          "K17_RegionsBeyondInt32",
              SET(l.groups[1].hot_size = 32768; l.max_requests = 65536;
                  l.max_blocks_per_request = 1),
              "max_requests", {
            "65536", "32896", "2155872256", "2147483648"
          }
        },
        Wrong {
          "StepBeyondInt32",
              SET(l.groups[1].hot_size = 32768; l.groups[1].top_k = 32768; l.step_rows = 65536),
              "step_rows", {
            "65536", "32768", "2147483648"
          }
        }),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Sizes, ValidateLayoutTest,
    ::testing::Values(
        Wrong{"BlockSize0", SET(l.block_size = 0), "block_size", {"1..4096"}},
        Wrong{"BlockSizeNegative", SET(l.block_size = kInt32Min), "block_size", {}},
        Wrong{"BlockSizeTooLarge", SET(l.block_size = 4097), "block_size", {"4097", "4096"}},
        Wrong{"NoBlock", SET(l.block_count = 0), "block_count", {}},
        Wrong{"BlocksNegative", SET(l.block_count = -5), "block_count", {"-5"}},
        Wrong{"K16_SlotsBeyondInt32",
              SET(l.block_count = 33554432),
              "block_count",
              {"33554432", "64", "2147483648"}},
        Wrong{"K16_SlotsFarBeyond", SET(l.block_count = kInt32Max), "block_count", {}},
        Wrong{"NoRequest", SET(l.max_requests = 0), "max_requests", {"1..65536"}},
        Wrong{"TooManyRequests", SET(l.max_requests = 65537), "max_requests", {"65537", "65536"}},
        Wrong{"RowsPerRequest0", SET(l.rows_per_request = 0), "rows_per_request", {"1..64"}},
        Wrong{"RowsPerRequest65", SET(l.rows_per_request = 65), "rows_per_request", {"65", "64"}},
        Wrong{"TableOfNothing", SET(l.max_blocks_per_request = 0), "max_blocks_per_request", {}},
        Wrong{"TableTooLong",
              SET(l.max_blocks_per_request = 101),
              "max_blocks_per_request",
              {"101", "100"}},
        Wrong {
          "TablesBeyondInt32",
              SET(l.block_count = 1 << 20; l.max_blocks_per_request = 1 << 20;
                  l.max_requests = 2048),
              "max_blocks_per_request", {
            "1048576", "2048", "2147483648"
          }
        },
        Wrong{"StepRows0", SET(l.step_rows = 0), "step_rows", {"1..65536"}},
        Wrong{"StepRowsTooMany", SET(l.step_rows = 65537), "step_rows", {"65537", "65536"}},
        Wrong{"BytesBeyondInt64",
              SET(l.groups[0].layers[0].row_stride = INT64_MAX / 16 * 16),
              "groups",
              {"9223372036854775807"}},
        Wrong {
          "HotBytesBeyondInt64",
              SET(l.groups[0].layers[0].row_stride = int64_t{1} << 54; l.block_count = 1;
                  l.max_blocks_per_request = 1; l.block_size = 64; l.max_requests = 1000),
              "groups", {}
        },
        Wrong{"PageBytesBeyondInt64",
              SET(l.groups[0].layers[1].page_bytes = int64_t{1} << 62),
              "groups",
              {}},
        Wrong{"UnknownPolicy",
              SET(l.eviction_policy = static_cast<EvictionPolicy>(2)),
              "eviction_policy",
              {"2", "LRU or AGED"}},
        Wrong{"TagTooLong", SET(l.dtype_tag = std::string(65, 'a')), "dtype_tag", {"65", "64"}},
        Wrong{"TagWithNewline", SET(l.dtype_tag = "a\nb"), "dtype_tag", {"printable ASCII"}},
        Wrong{"TagNotAscii", SET(l.dtype_tag = "fp8\xff"), "dtype_tag", {"printable ASCII"}}),
    [](const auto& info) { return info.param.name; });

TEST(ValidateLayoutTest, AcceptsWhatIsLegal) {
  const std::vector<std::function<void(CacheLayout&)>> changes = {
    SET(),
    SET(l.groups[0].top_k = 0; l.groups[0].hot_size = 1),
    SET(l.groups[0].top_k = 16),                                   // K14: hot_size == top_k
    SET(l.groups[0].hot_size = 17),                                // no multiple of anything
    SET(l.groups[1].hot_size = 32768; l.groups[1].top_k = 32768),  // K17
    SET(l.rows_per_request = 2),                                   // 2 * 8 == 16
    SET(l.dtype_tag = ""),
    SET(l.dtype_tag = std::string(64, '~')),
    SET(l.groups[0].layers[0].row_stride = 768),
    SET(l.block_size = 1; l.groups[0].layers[1] = Contiguous(16)),
    SET(l.block_count = 33554431),                              // K16: the last that fits
    SET(l.max_requests = 65536; l.max_blocks_per_request = 1),  // 65536 * 4224 < 2^31
    SET(l.step_rows = 65536),
    SET(l.groups.resize(64, l.groups[1])),
    SET(l.groups[1].layers.resize(254, Contiguous(352))),
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    CacheLayout layout = Valid();
    changes[i](layout);
    EXPECT_TRUE(ValidateLayout(layout).ok()) << i << ": " << ValidateLayout(layout);
  }
  for (const int32_t row_bytes : {656, 1152, 576, 16, 352, 4096}) {  // K15
    CacheLayout layout = Valid();
    layout.groups[0].layers[0] = Contiguous(row_bytes);
    EXPECT_TRUE(ValidateLayout(layout).ok()) << row_bytes;
  }
}

// Under ubsan: no arithmetic overflows, whatever the numbers.
TEST(ValidateLayoutTest, AnyInt32IsSafe) {
  const std::vector<std::function<int32_t*(CacheLayout&)>> fields = {
      [](CacheLayout& l) { return &l.block_size; },
      [](CacheLayout& l) { return &l.block_count; },
      [](CacheLayout& l) { return &l.max_requests; },
      [](CacheLayout& l) { return &l.rows_per_request; },
      [](CacheLayout& l) { return &l.max_blocks_per_request; },
      [](CacheLayout& l) { return &l.step_rows; },
      [](CacheLayout& l) { return &l.groups[0].top_k; },
      [](CacheLayout& l) { return &l.groups[0].hot_size; },
      [](CacheLayout& l) { return &l.groups[0].layers[0].value_bytes; },
      [](CacheLayout& l) { return &l.groups[0].layers[1].value_bytes; },
      [](CacheLayout& l) { return &l.groups[0].layers[1].scale_bytes; },
      [](CacheLayout& l) { return &l.groups[0].layers[1].page_rows; },
  };
  const std::vector<int32_t> values = {kInt32Min, kInt32Min + 1, -65536,   -1, 0, 1, 4096, 32768,
                                       65536,     kInt32Max - 1, kInt32Max};
  for (const auto& first : fields) {
    for (const auto& second : fields) {
      for (const int32_t a : values) {
        for (const int32_t b : values) {
          CacheLayout layout = Valid();
          *first(layout) = a;
          *second(layout) = b;
          if (!ValidateLayout(layout).ok()) continue;
          EXPECT_GT(HostGeometryOf(layout).size_bytes, 0);
        }
      }
    }
  }
}

TEST(CompareLayoutsTest, EqualLayouts) { EXPECT_TRUE(CompareLayouts(Valid(), Valid()).ok()); }

TEST(CompareLayoutsTest, NamesTheFirstDifferenceWithBothValues) {
  const auto compare = [](const std::function<void(CacheLayout&)>& change) {
    CacheLayout actual = Valid();
    change(actual);
    return CompareLayouts(Valid(), actual);
  };
  const auto expect = [&](const std::function<void(CacheLayout&)>& change, const char* field,
                          const char* expected, const char* value) {
    const absl::Status status = compare(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << field;
    EXPECT_EQ(ErrorReasonOf(status), "LAYOUT_MISMATCH");
    EXPECT_EQ(ErrorMetadataOf(status),
              (ErrorMetadata{{"field", field}, {"expected", expected}, {"value", value}}));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(field, " is ", expected, " there and ", value)));
  };
  expect(SET(l.eviction_policy = EvictionPolicy::kAged), "eviction_policy", "LRU", "AGED");
  expect(SET(l.share_rows = true), "share_rows", "false", "true");
  expect(SET(l.dtype_tag = "bf16"), "dtype_tag", "fp8_ds_mla", "bf16");
  expect(SET(l.dtype_tag = "\x01"), "dtype_tag", "fp8_ds_mla", "\\x01");
  expect(SET(l.block_size = 32), "block_size", "64", "32");
  expect(SET(l.block_count = 99; l.max_requests = 5), "block_count", "100", "99");
  expect(SET(l.max_requests = 5), "max_requests", "4", "5");
  expect(SET(l.rows_per_request = 2), "rows_per_request", "1", "2");
  expect(SET(l.max_blocks_per_request = 9), "max_blocks_per_request", "100", "9");
  expect(SET(l.step_rows = 8), "step_rows", "4", "8");
  expect(SET(l.groups.pop_back()), "groups", "2", "1");
  expect(SET(l.groups.clear()), "groups", "2", "0");
  expect(SET(l.groups[1].top_k = 1024), "groups[1].top_k", "2048", "1024");
  expect(SET(l.groups[1].hot_size = 8192), "groups[1].hot_size", "4096", "8192");
  expect(SET(l.groups[0].layers.pop_back()), "groups[0].layers", "2", "1");
  expect(SET(l.groups[0].layers[0] = SplitPage()), "groups[0].layers[0].row_format", "0", "1");
  expect(SET(l.groups[1].layers[0].value_bytes = 576), "groups[1].layers[0].row_bytes", "1152",
         "576");
  expect(SET(l.groups[1].layers[0].row_stride = 1168), "groups[1].layers[0].row_stride_bytes",
         "1152", "1168");
  expect(SET(l.groups[0].layers[1].scale_bytes = 4), "groups[0].layers[1].scale_bytes", "8", "4");
  expect(SET(l.groups[0].layers[1].page_rows = 1), "groups[0].layers[1].page_rows", "64", "1");
  expect(SET(l.groups[0].layers[1].page_bytes = 37376), "groups[0].layers[1].page_bytes", "37440",
         "37376");
}

#undef SET

}  // namespace
}  // namespace kvtier
