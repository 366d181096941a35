// Tests that run against every implementation on a CPU, and the state that most begin with.
//
//   class Cases : public KernelTest {};
//   TEST_P(Cases, K01_DuplicateKey) { Group g = WorkedExample(); g.Step({200, ...}, 150); ... }
//   KVTIER_INSTANTIATE(Cases);
#pragma once

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/testing/group_fixture.h"
#include "kernels/testing/implementation.h"

namespace kvtier::testing {

using Ints = std::vector<int32_t>;

// One row of a step.
struct Row {
  int32_t region;
  Ints topk;  // filled up with -1
  int32_t newest = kNone;
};

// A group together with the implementation that works on it. Everything a step leaves is checked
// for what must always hold; tests say what they expect beyond that.
class Group : public GroupFixture {
 public:
  Group(const Implementation& implementation, const GroupOptions& options);

  // One step; outputs are poisoned before it. Returns the hot indices of all rows.
  Ints StepRows(const std::vector<Row>& rows);
  // The same for one row of region 0; the rows after it are padding. Returns its hot indices.
  Ints StepRow(const Ints& topk, int32_t newest = kNone);

  // Decode: writes a newest row (pattern of `slot` plus `salt`) into region's reserved row, or
  // writes it there and copies it to the host pool.
  void WriteNewest(int32_t region, int32_t slot, uint8_t salt = 0);
  void BackupNewest(int32_t region, int32_t slot);
  // Prefill: one host row from a tensor, on behalf of a region or of none.
  void BackupRow(int32_t region, int32_t slot, uint8_t salt);

  // Blocks get new tenants: generations rise, cached copies go.
  void AssignBlocks(const Ints& blocks);
  void EmptyRegion(int32_t region);

  // Slots of the plan entries of all rows that copy, in order.
  Ints Copied() const;
  // What a counter gained by the last step (or backup, or ...).
  int64_t Rise(Counter counter) const { return counts()[counter] - before_[counter]; }
  // The bytes behind hot index `index` equal host row `slot` on all layers.
  bool Holds(int32_t index, int32_t slot) const;
  bool IsZero(int32_t hot_row) const;
  // No byte of the hot rows [begin, end) was ever written.
  bool IsUntouched(int32_t begin, int32_t end) const;

 private:
  const Implementation implementation_;
  Counts before_;
};

// A cache of the sizes of the worked example with an empty region.
GroupOptions SmallOptions();
// The same with scores.
GroupOptions SmallAgedOptions();

class KernelTest : public ::testing::TestWithParam<Implementation> {
 protected:
  Group MakeGroup(const GroupOptions& options) const { return Group(GetParam(), options); }
  // The state before the worked example's step, with its scores if options say kAged.
  Group WorkedExample(GroupOptions options = SmallOptions()) const;
};

std::string ImplementationName(const ::testing::TestParamInfo<Implementation>& info);

#define KVTIER_INSTANTIATE(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Host, suite,                                                   \
                           ::testing::ValuesIn(::kvtier::testing::HostImplementations()), \
                           ::kvtier::testing::ImplementationName)

// `count` times -1 and the like.
Ints Times(int32_t count, int32_t value);
// begin, begin + 1, ..., end - 1.
Ints Range(int32_t begin, int32_t end);
// All of them, one after the other.
Ints Join(const std::vector<Ints>& parts);

}  // namespace kvtier::testing
