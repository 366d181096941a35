// The shapes of parity.h.
#include "tests/gpu/parity.h"

namespace kvtier::testing {
namespace {

// `count` layers of different row bytes.
std::vector<RowLayout> ManyLayers(int32_t count) {
  std::vector<RowLayout> layouts;
  for (int32_t l = 0; l < count; ++l) {
    switch (l % 5) {
      case 0:
        layouts.push_back(Contiguous(16));
        break;
      case 1:
        layouts.push_back(Contiguous(656));
        break;
      case 2:
        layouts.push_back(Contiguous(64, 96));
        break;
      case 3:
        layouts.push_back(SplitPage(48, 12, 16, 1024));
        break;
      default:
        layouts.push_back(Contiguous(576));
        break;
    }
  }
  return layouts;
}

// The same with scores.
std::vector<ParityCase> SmallAgedCases() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48),
                  split = SplitPage(16, 4, 4, 96);
  return {
      {"aged_one", {Aged(Shape(1, 1, 1, 1, 1, 4, 4)), {plain}, 1}, 60, 32},
      {"aged", {Aged(Shape(8, 16, 3, 1, 8, 120, 6)), {padded}, 4, false, true}, 120, 896},
      {"aged_above_a_warp",
       {Aged(Shape(33, 67, 3, 1, 16, 480, 12)), {plain}, 4, true, true},
       80,
       96},
      {"aged_three_rows",
       {Aged(Shape(11, 37, 2, 3, 4, 128, 18)), {split, padded}, 7, false, true},
       120,
       32},
      {"aged_union_too_large",
       {Aged(Shape(8, 10, 2, 2, 8, 96, 7)), {plain}, 4, true, true},
       120,
       64},
      {"aged_many_words",
       {Aged(Shape(300, 2300, 1, 1, 32, 4096, 8)), {plain}, 1, false, true},
       20,
       64},
      {"aged_without_a_plan",
       {Aged(Shape(64, 256, 2, 1, 16, 1024, 24)), {plain}, 1},
       250,
       256,
       true},
      // Backups of few rows on several blocks each, some warps of which have two layers.
      {"aged_layers_90",
       {Aged(Shape(6, 12, 3, 2, 8, 96, 6)), ManyLayers(90), 7, false, true},
       30,
       96},
      {"aged_corrupt",
       {Aged(Shape(16, 40, 2, 2, 8, 96, 7)), {plain}, 4, true, true},
       150,
       64,
       false,
       true},
  };
}

std::vector<ParityCase> LargeAgedCases() {
  const RowLayout plain = Contiguous(16), half = Contiguous(576), dsa = Contiguous(656);
  return {
      {"aged_4096",
       {Aged(Shape(2048, 4096, 2, 1, 64, 16384, 128)), {dsa}, 3, true, true},
       40,
       1024},
      {"aged_10240",
       {Aged(Shape(2048, 10240, 2, 1, 64, 24576, 192)), {half}, 2, true, true},
       30,
       1024},
      {"aged_32768",
       {Aged(Shape(2048, 32768, 1, 1, 64, 65536, 1024)), {plain}, 1, false, true},
       20,
       1024},
      {"aged_corrupt_4096",
       {Aged(Shape(2048, 4096, 2, 1, 64, 12288, 96)), {plain}, 2, false, true},
       40,
       1024,
       false,
       true},
  };
}

// With a directory, and all regions have the first `blocks` of their blocks in common.
GroupOptions Sharing(int32_t blocks, GroupOptions options) {
  options.shares_rows = true;
  options.shared_blocks = blocks;
  return options;
}

std::vector<ParityCase> SmallSharingCases() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48),
                  split = SplitPage(16, 4, 4, 96);
  return {
      {"shared", Sharing(4, {Shape(8, 16, 3, 1, 8, 120, 6), {padded, split}, 4, true, true}), 150,
       96},
      {"shared_slots", Sharing(5, {Shape(8, 16, 4, 1, 8, 160, 6), {plain, padded}, 5}), 150, 64},
      {"shared_one_layer", Sharing(5, {Shape(33, 67, 3, 1, 16, 480, 12), {plain}, 4, true}), 80,
       96},
      {"shared_nothing", Sharing(0, {Shape(8, 16, 3, 1, 8, 120, 6), {padded, plain}, 4, true}), 60,
       96},
      {"shared_by_forty",
       Sharing(6, {Shape(6, 12, 40, 1, 2, 480, 6), {plain, split}, 45, true, true}), 60, 96},
      {"shared_three_rows",
       Sharing(9, {Shape(11, 37, 2, 3, 4, 128, 18), {split, padded, plain}, 7, false, true}), 120,
       32},
      {"shared_union_too_large",
       Sharing(5, {Shape(8, 10, 2, 2, 8, 96, 7), {plain, plain}, 4, true, true}), 120, 64},
      {"shared_aged",
       Sharing(8, {Aged(Shape(33, 67, 3, 1, 16, 480, 12)), {plain, padded}, 4, true, true}), 80,
       96},
      {"shared_without_a_plan",
       Sharing(4, {Shape(8, 16, 3, 2, 8, 120, 6), {padded, plain}, 6, false, true}), 80, 96, true},
      {"shared_layers_20",
       Sharing(2, {Shape(4, 8, 2, 1, 8, 48, 8), ManyLayers(20), 3, false, true}), 30, 64},
      {"shared_layers_300", Sharing(2, {Shape(4, 8, 2, 1, 8, 48, 8), ManyLayers(300), 3}), 12, 64},
      {"shared_corrupt",
       Sharing(5, {Shape(16, 40, 3, 2, 8, 144, 7), {plain, padded}, 6, true, true}), 150, 64, false,
       true},
      {"shared_corrupt_indexed",
       Sharing(5, {Shape(16, 40, 3, 1, 8, 144, 7), {plain, padded}, 4, false, true}), 150, 64,
       false, true},
  };
}

std::vector<ParityCase> LargeSharingCases() {
  const RowLayout dsa = Contiguous(656), half = Contiguous(576);
  return {
      {"shared_4096",
       Sharing(90, {Shape(2048, 4096, 8, 1, 64, 51200, 128), {dsa, half}, 9, true, true}), 40,
       1024},
      {"shared_4096_aged",
       Sharing(90, {Aged(Shape(2048, 4096, 4, 1, 64, 25600, 128)), {dsa, dsa}, 4, true}), 40, 1024},
      {"shared_64_regions",
       Sharing(14, {Shape(128, 256, 64, 1, 16, 16384, 16), {dsa, half}, 70, true, true}), 60, 1024},
      {"shared_rows_4",
       Sharing(60, {Shape(512, 2048, 4, 4, 64, 16384, 96), {dsa, half}, 16, true, true}), 40, 1024},
  };
}

}  // namespace

std::vector<ParityCase> SmallParityCases() {
  const RowLayout plain = Contiguous(16), padded = Contiguous(32, 48), dsa = Contiguous(656);
  const RowLayout split = SplitPage(16, 4, 4, 96), wide = SplitPage(32, 8, 64, 2576);
  std::vector<ParityCase> cases = {
      {"one_of_one", {Shape(1, 1, 1, 1, 1, 4, 4), {plain}, 1}, 120, 32},
      {"two_of_two", {Shape(2, 2, 2, 1, 2, 16, 4), {dsa}, 2}, 120, 96},
      {"hot_equals_top_k", {Shape(7, 7, 2, 1, 4, 64, 8), {plain, padded}, 3, true}, 120, 64},
      {"no_positions", {Shape(0, 5, 2, 1, 4, 64, 8), {plain}, 3, false, true}, 60, 96},
      {"no_layers", {Shape(6, 12, 2, 1, 4, 64, 8), {}, 3, false, true}, 60, 96, true},
      {"worked_example", {Shape(8, 16, 3, 1, 8, 120, 6), {padded}, 4, false, true}, 120, 896},
      {"below_a_warp", {Shape(31, 63, 2, 1, 16, 288, 10), {plain, split}, 2, true, true}, 80, 32},
      {"a_warp", {Shape(32, 64, 2, 1, 8, 256, 20), {split}, 2, true}, 80, 96},
      {"above_a_warp", {Shape(33, 67, 3, 1, 16, 480, 12), {dsa, plain}, 4, true, true}, 80, 96},
      {"odd_blocks", {Shape(16, 40, 2, 1, 7, 140, 12), {plain}, 2, true, true}, 80, 1024},
      {"two_warps", {Shape(64, 129, 2, 1, 32, 512, 8), {wide}, 3, false, true}, 80, 64},
      {"many_words", {Shape(300, 1100, 1, 1, 32, 2048, 8), {plain}, 1, false, true}, 20, 32},
      {"more_words_than_threads",
       {Shape(300, 2300, 1, 1, 32, 4096, 8), {plain}, 1, false, true},
       20,
       64,
       false,
       true},
      {"many_regions", {Shape(4, 9, 9, 1, 2, 144, 9), {plain, plain, split}, 11, true}, 60, 96},
      // Enough rows for copies in the order of addresses.
      {"many_small_requests", {Shape(8, 16, 40, 1, 4, 640, 6), {plain}, 44, true, true}, 60, 64},
      {"many_tiny_requests", {Shape(4, 8, 36, 1, 4, 288, 6), {split}, 36, true}, 60, 96},
      {"more_rows_than_regions", {Shape(4, 9, 2, 2, 2, 64, 9), {plain}, 40, true}, 60, 32},
      {"two_rows", {Shape(8, 16, 2, 2, 8, 96, 7), {plain}, 4, true, true}, 120, 96},
      {"three_rows", {Shape(11, 37, 2, 3, 4, 128, 18), {split, padded}, 7, false, true}, 120, 32},
      {"four_rows", {Shape(16, 64, 2, 4, 16, 320, 12), {padded}, 8, true}, 80, 224},
      {"five_short_rows", {Shape(3, 20, 3, 5, 4, 96, 9), {split}, 15, true, true}, 80, 96},
      {"rows_of_two_words", {Shape(40, 128, 2, 3, 8, 256, 16), {plain}, 6, true}, 60, 96},
      {"union_too_large", {Shape(8, 10, 2, 2, 8, 96, 7), {plain}, 4, true, true}, 120, 64},
      {"top_k_too_large", {Shape(9, 4, 2, 1, 8, 96, 7), {split}, 2, false}, 120, 32},
      {"without_a_plan", {Shape(8, 16, 3, 2, 8, 120, 6), {padded}, 6, false, true}, 80, 96, true},
      {"layers_61", {Shape(8, 16, 2, 1, 8, 64, 8), ManyLayers(61), 2, false, true}, 10, 96},
      {"layers_300", {Shape(4, 8, 1, 1, 8, 32, 8), ManyLayers(300), 1, false, true}, 4, 64},
      {"corrupt_small",
       {Shape(5, 8, 2, 1, 8, 64, 8), {plain}, 2, true, true},
       250,
       96,
       false,
       true},
      {"corrupt_union",
       {Shape(16, 40, 2, 2, 8, 96, 7), {plain}, 4, true, true},
       150,
       64,
       false,
       true},
      {"corrupt_words",
       {Shape(40, 131, 2, 1, 8, 256, 7), {plain}, 2, false, true},
       100,
       32,
       false,
       true},
  };
  for (const std::vector<ParityCase>& more : {SmallAgedCases(), SmallSharingCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

std::vector<ParityCase> LargeParityCases() {
  const RowLayout dsa = Contiguous(656), mla = Contiguous(1152), half = Contiguous(576);
  const RowLayout plain = Contiguous(16), large = Contiguous(4096), v4 = DeepSeekV4Layout();
  std::vector<ParityCase> cases = {
      {"hot_512_v4", {Shape(512, 512, 3, 1, 64, 6144, 32), {v4}, 4, true, true}, 60, 1024},
      {"hot_1000", {Shape(500, 1000, 3, 1, 64, 6144, 32), {dsa}, 4, true, true}, 60, 896},
      {"hot_1024_v4_rows_2", {Shape(512, 1024, 2, 2, 64, 6144, 48), {v4}, 4, true, true}, 60, 1024},
      {"hot_4096", {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true, true}, 40, 1024},
      {"hot_4096_small_blocks", {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true}, 20, 32},
      {"hot_4096_mla",
       {Shape(2048, 4096, 2, 1, 64, 12288, 96), {mla, half}, 2, false, true},
       30,
       1024},
      {"hot_equals_top_k", {Shape(2048, 2048, 4, 1, 64, 16384, 64), {plain}, 5, true}, 60, 1024},
      {"hot_8192_rows_4",
       {Shape(2048, 8192, 1, 4, 64, 32768, 512), {dsa}, 4, true, true},
       30,
       1024},
      {"hot_10240", {Shape(2048, 10240, 2, 1, 64, 24576, 192), {half}, 2, true, true}, 30, 1024},
      {"hot_32768", {Shape(2048, 32768, 1, 1, 64, 65536, 1024), {plain}, 1, false, true}, 20, 1024},
      {"hot_32768_top_k_16384",
       {Shape(16384, 32768, 1, 1, 64, 65536, 1024), {dsa}, 1, false},
       12,
       1024},
      {"hot_equals_top_k_32768",
       {Shape(32768, 32768, 1, 1, 64, 131072, 2048), {plain}, 2},
       12,
       960},
      {"row_bytes_4096", {Shape(256, 512, 4, 1, 64, 4096, 16), {large}, 5, true, true}, 60, 1024},
      {"layers_61_mixed",
       {Shape(64, 128, 2, 1, 16, 512, 16), ManyLayers(61), 3, true, true},
       40,
       1024},
      {"corrupt_4096",
       {Shape(2048, 4096, 2, 1, 64, 12288, 96), {plain}, 2, false, true},
       40,
       1024,
       false,
       true},
      {"corrupt_rows_3",
       {Shape(300, 1000, 2, 3, 64, 6144, 48), {plain}, 6, true, true},
       60,
       96,
       false,
       true},
      {"regions_64", {Shape(128, 256, 64, 1, 16, 16384, 16), {dsa}, 70, true, true}, 40, 1024},
      {"no_plan_4096",
       {Shape(2048, 4096, 2, 1, 64, 16384, 128), {dsa}, 3, true, true},
       20,
       1024,
       true},
  };
  for (const std::vector<ParityCase>& more : {LargeAgedCases(), LargeSharingCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

}  // namespace kvtier::testing
