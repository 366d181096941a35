// Rows on their way to the host pool.
#include "kernels/testing/case_fixture.h"

namespace kvtier::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class BackupTest : public KernelTest {
 protected:
  static GroupOptions Options() {
    GroupOptions options = SmallOptions();
    options.shape.region_count = 3;
    options.shape.rows_per_request = 2;
    options.layouts = {Contiguous(32, 48), SplitPage(16, 4, 4, 96)};
    options.tracking = true;
    return options;
  }
};

// Tensors of six rows a layer, row r filled with bytes 0x10 * layer + r.
class Tensors {
 public:
  explicit Tensors(const std::vector<RowLayout>& layouts) : layouts_(layouts) {
    for (size_t l = 0; l < layouts.size(); ++l) {
      ByteBuffer& tensor = tensors_.emplace_back(StorageBytes(layouts[l], 6), /*sparse=*/false);
      for (int32_t r = 0; r < 6; ++r) {
        const auto byte = static_cast<uint8_t>(0x10 * l + r);
        std::fill_n(tensor.data() + ValueOffset(layouts[l], r), layouts[l].value_bytes, byte);
        if (layouts[l].format != RowFormat::kSplitPage) continue;
        std::fill_n(tensor.data() + ScaleOffset(layouts[l], r), layouts[l].scale_bytes, byte);
      }
      sources_.push_back(tensor.data());
    }
  }

  void SetSource(BackupParams* p) const {
    p->sources = sources_.data();
    p->source_layouts = layouts_.data();
    p->source_row_count = 6;
  }

 private:
  std::vector<RowLayout> layouts_;
  std::vector<ByteBuffer> tensors_;
  std::vector<const uint8_t*> sources_;
};

// The row with this byte, of layer 0 or 1.
std::string Filled(const Group& g, int32_t layer, int32_t row) {
  return std::string(RowBytes(g.layouts()[layer]), static_cast<char>(0x10 * layer + row));
}

// A worker's tensors have strides and pages of their own. Of two rows for one slot the later one
// stays, in whatever order they are copied.
TEST_P(BackupTest, TensorsOfOtherGeometry) {
  Group g = MakeGroup(Options());
  const Tensors tensors({Contiguous(32, 32), SplitPage(16, 4, 2, 48)});
  const Ints regions = {0, kNone, 2, 2, 0, 1, 2, 2, 2};
  const Ints slots = {7, 64, 8, 9, 7, kNone, 10, 2048, 11};
  const Ints sources = {1, 2, 3, 4, 5, 0, 6, 0, -1};  // 6 and -1 are no rows of the tensor
  BackupParams p = g.Backup();
  tensors.SetSource(&p);
  p.num_rows = 9;
  p.row_to_request = regions.data();
  p.slots = slots.data();
  p.source_rows = sources.data();
  GetParam().backup(p);
  for (int32_t l = 0; l < 2; ++l) {
    EXPECT_EQ(g.HostRow(l, 7), Filled(g, l, 5));
    EXPECT_EQ(g.HostRow(l, 64), Filled(g, l, 2));
    EXPECT_EQ(g.HostRow(l, 8), Filled(g, l, 3));
    EXPECT_EQ(g.HostRow(l, 9), Filled(g, l, 4));
    for (const int32_t slot : {6, 10, 11, 65}) {
      EXPECT_EQ(g.HostRow(l, slot), g.PatternRow(l, slot));
    }
  }
  EXPECT_EQ(g.counts()[Counter::kBackedUpRows], 5);  // the row that lost counts as well
  EXPECT_EQ(g.counts()[Counter::kBackedUpBytes], 5 * (32 + 20));
  EXPECT_EQ(g.counts()[Counter::kRejectedRows], 0);
  EXPECT_EQ(g.GuardDamage(), "");
}

// Cached copies of what is written go: in the region of the row, for few rows and for many.
TEST_P(BackupTest, DropsCopiesInTheRowsRegionOnly) {
  for (const int32_t rows : {1, 4, 5, 12}) {
    Group g = MakeGroup(Options());
    for (int32_t h = 0; h < 16; ++h) {
      g.owner_of(0, h) = g.owner_of(1, h) = h % 14;  // 0 and 1 twice, which is corruption
    }
    const Tensors tensors(g.layouts());
    const Ints regions = Times(rows, 1), slots = Range(0, rows), sources = Times(rows, 0);
    BackupParams p = g.Backup();
    tensors.SetSource(&p);
    p.num_rows = rows;
    p.row_to_request = regions.data();
    p.slots = slots.data();
    p.source_rows = sources.data();
    GetParam().backup(p);
    for (int32_t h = 0; h < 16; ++h) {
      EXPECT_EQ(g.owner_of(0, h), h % 14);
      EXPECT_EQ(g.owner_of(1, h), h % 14 < rows ? kNone : h % 14);
    }
    EXPECT_EQ(g.counts()[Counter::kInvalidatedCopies], 0);  // that counts other things
  }
}

// Without source rows it is the newest rows that are copied: the k-th row of a request from its
// k-th reserved row.
TEST_P(BackupTest, NewestRows) {
  Group g = MakeGroup(Options());
  for (int32_t region = 0; region < 3; ++region) {
    for (int32_t k = 0; k < 2; ++k) {
      g.FillHotRow(g.region_start(region) + 16 + k, /*slot=*/100 * region + k, /*salt=*/9);
    }
  }
  const Ints regions = {2, kNone, 0, 2, 2, 3, -2, 1};
  const Ints slots = {200, 5, 0, 201, 202, 6, 7, 100};
  BackupParams p = g.Backup();
  p.num_rows = 8;
  p.row_to_request = regions.data();
  p.slots = slots.data();
  const int32_t real_rows = 7;
  p.num_real_rows = &real_rows;
  GetParam().backup(p);
  for (int32_t l = 0; l < 2; ++l) {
    for (const int32_t slot : {200, 0, 201}) {
      EXPECT_EQ(g.HostRow(l, slot), g.PatternRow(l, slot, 9));
    }
    for (const int32_t slot : {5, 202, 6, 7, 100}) {  // padding, too many, no such region, padding
      EXPECT_EQ(g.HostRow(l, slot), g.PatternRow(l, slot));
    }
  }
  EXPECT_EQ(g.counts()[Counter::kBackedUpRows], 3);
  EXPECT_EQ(g.counts()[Counter::kRejectedRows], 3);
}

// A row counts as backed for the tenant that its block had when the backup ran.
TEST_P(BackupTest, MarksRowsBacked) {
  Group g = MakeGroup(Options());
  g.block_generation[1] = 5;
  EXPECT_EQ(g.backed_generation[70], 1);
  g.BackupRow(0, 70, 1);
  EXPECT_EQ(g.backed_generation[70], 5);
  EXPECT_EQ(g.backed_generation[71], 1);
  EXPECT_THAT(g.StepRow({70, 71}), ElementsAre(0, 1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(g.Copied(), ElementsAre(70));
  EXPECT_EQ(g.Rise(Counter::kUnbackedReads), 1);
}

// More layers than one launch of a GPU takes. The row is backed when the last one is.
TEST_P(BackupTest, ManyLayers) {
  GroupOptions options = Options();
  options.layouts = std::vector<RowLayout>(600, Contiguous(16));
  Group g = MakeGroup(options);
  g.block_generation[1] = 7;
  g.BackupRow(1, 70, /*salt=*/9);
  for (int32_t l = 0; l < 600; ++l) EXPECT_EQ(g.HostRow(l, 70), g.PatternRow(l, 70, 9));
  EXPECT_EQ(g.backed_generation[70], 7);
  EXPECT_EQ(g.counts()[Counter::kBackedUpRows], 1);
  EXPECT_EQ(g.counts()[Counter::kBackedUpBytes], 600 * 16);
}

// More rows than one launch takes, and the first slot again at their end.
TEST_P(BackupTest, ManyRows) {
  constexpr int32_t kRows = 20000;
  Group g = MakeGroup(Options());
  const Tensors tensors(g.layouts());
  const Ints slots = Join({{5}, Times(kRows - 3, kNone), {6, 5}});
  Ints sources = Times(kRows, 1);
  sources.back() = 2;
  BackupParams p = g.Backup();
  tensors.SetSource(&p);
  p.num_rows = kRows;
  p.row_to_request = nullptr;
  p.slots = slots.data();
  p.source_rows = sources.data();
  GetParam().backup(p);
  EXPECT_EQ(g.HostRow(0, 5), Filled(g, 0, 2));
  EXPECT_EQ(g.HostRow(1, 6), Filled(g, 1, 1));
  EXPECT_EQ(g.counts()[Counter::kBackedUpRows], 3);
}

// Nothing to do, and nobody to do it for.
TEST_P(BackupTest, EmptyCalls) {
  Group g = MakeGroup(Options());
  BackupParams none = g.Backup();
  GetParam().backup(none);
  const Ints slots = {3};
  const Ints sources = {0};
  const Tensors tensors(g.layouts());
  BackupParams nobody = g.Backup();
  tensors.SetSource(&nobody);
  nobody.num_rows = 1;
  nobody.slots = slots.data();
  nobody.source_rows = sources.data();
  nobody.row_to_request = nullptr;  // rows of no request
  nobody.stats = nullptr;
  nobody.tracking = {};
  GetParam().backup(nobody);
  EXPECT_EQ(g.HostRow(1, 3), Filled(g, 1, 0));
  EXPECT_THAT(g.counts().values, Each(0));
}

KVTIER_INSTANTIATE(BackupTest);

}  // namespace
}  // namespace kvtier::testing
