// A device refuses calls in two verbs of one session that come one after the other, some in a row:
// each verb does its work or nothing, and the worker's block table says so soon, whatever else
// comes.

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

constexpr char kCache[] = "kv";
constexpr int32_t kBlockSize = 64;

absl::Status Fault() {
  return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected",
                   {{"device_error", "injected"}});
}

class NodeTableTest : public NodeFixture {
 protected:
  // A request, and what its row of the block table shall be.
  struct Row {
    std::string request;
    int32_t region = 0;
    std::vector<int32_t> blocks;
  };
  // Works on `row`, and changes it if it succeeds.
  struct Verb {
    std::string name;
    std::function<absl::Status(Row& row, const Row& other)> run;
  };
  // Calls of one verb that the device refuses: the nth of its own, and those behind it.
  struct Refusal {
    int64_t nth = 0, count = 0;
  };

  NodeTableTest() : NodeTableTest(/*claims_cuda=*/false) {}
  // Nobody tries again but who is told to: so nothing comes between the two verbs.
  explicit NodeTableTest(bool claims_cuda)
      : NodeFixture(
            {.claims_cuda = claims_cuda, .node = {.version = "test", .reaper_threads = 0}}) {}

  void TearDown() override {
    plan().Clear();
    CloseSession();
    worker_.memory.reset();
    ExpectBaseline();
  }

  // Those that change the table.
  std::vector<Verb> Changes() {
    return {
        {"free",
         [this](Row& row, const Row&) {
           const absl::Status status =
               node()
                   .FreeBlocks(worker_.session, kCache, row.request, {row.blocks[0]}, Soon())
                   .status();
           if (status.ok()) row.blocks[0] = kNone;
           return status;
         }},
        {"release",
         [this](Row& row, const Row&) {
           const absl::Status status =
               node().ReleaseRequest(worker_.session, kCache, row.request, Soon()).status();
           if (status.ok()) row = {.request = row.request, .region = row.region};
           return status;
         }},
        {"assign", [this](Row& row, const Row&) { return AssignTo(row, 1, {}); }},
        {"share",
         [this](Row& row, const Row& other) {
           const bool can_share = !other.blocks.empty() && other.blocks.back() != row.blocks.back();
           return can_share ? AssignTo(row, 0, {other.blocks.back()}) : absl::OkStatus();
         }},
    };
  }
  std::vector<Verb> All() {
    std::vector<Verb> verbs = Changes();
    verbs.push_back({"invalidate", [this](Row& row, const Row&) {
                       return node()
                           .InvalidateBlocks(worker_.session, kCache, {row.blocks.back()}, Soon())
                           .status();
                     }});
    verbs.push_back({"swap in", [this](Row& row, const Row&) {
                       SwapInCall call;
                       call.cache = kCache;
                       call.inline_rows = {{.request_id = row.request, .topk = {0, 1}}};
                       return SwapIn(worker_, call).status;
                     }});
    verbs.push_back({"backup", [this](Row& row, const Row&) {
                       return Backup(worker_, {{.request_id = row.request,
                                                .slot = row.blocks.back() * kBlockSize}});
                     }});
    return verbs;
  }

  absl::Status AssignTo(Row& row, int32_t count, const std::vector<int32_t>& shared) {
    const auto assigned =
        node().AssignBlocks(worker_.session, kCache, row.request, count, shared, {}, Soon());
    if (!assigned.ok()) return assigned.status();
    row.blocks.resize(assigned->table_index, kNone);
    row.blocks.insert(row.blocks.end(), assigned->block_ids.begin(), assigned->block_ids.end());
    return absl::OkStatus();
  }

  // True if the device refused a call of it.
  bool Run(const Verb& verb, const Refusal& refusal, Row& row, const Row& other) {
    const int64_t faults = plan().faults();
    plan().FailNthCallHere(refusal.nth, Fault(), refusal.count);
    const absl::Status status = verb.run(row, other);
    EXPECT_TRUE(status.ok() || IsError(status, absl::StatusCode::kInternal, "DEVICE_ERROR"))
        << status;
    plan().FailNthCallHere(1, Fault(), 0);
    return plan().faults() > faults;
  }

  // Two requests with two blocks each, in a fresh session.
  void Begin() {
    worker_ = OpenAndAttach(layout_);
    for (Row* row : {&one_, &two_}) {
      *row = {.request = row->request, .region = Admit(worker_, row->request)};
      ASSERT_TRUE(AssignTo(*row, 2, {}).ok());
    }
    if (one_.region > two_.region) std::swap(one_, two_);
  }

  // Nothing is enqueued any more but what the verbs have left to do, and the end of the session,
  // after which the device has done all of it.
  void End() {
    while (node().RunReaper()) continue;
    std::set<int32_t> held;
    for (const Row* row : {&one_, &two_}) held.insert(row->blocks.begin(), row->blocks.end());
    held.erase(kNone);
    EXPECT_EQ(Stats().blocks_used, static_cast<int64_t>(held.size()));
    CloseSession();
    for (Row* row : {&one_, &two_}) {
      row->blocks.resize(layout_.max_blocks_per_request, kNone);
      EXPECT_EQ(worker_.memory->TableRow(row->region), row->blocks) << row->request;
    }
  }

  void CloseSession() {
    node().CloseSession(worker_.session);
    while (node().DeviceBytesUsed(worker_.attached.device.uuid) > 0 ||
           pool().stats().used_bytes > 0) {
      if (!node().RunReaper()) std::this_thread::yield();
    }
  }

  void FailTwoVerbs() {
    for (const Verb& first : Changes()) {
      for (const Verb& second : All()) {
        for (const int64_t count : {1, 2}) {
          SCOPED_TRACE(absl::StrCat(count, " calls of each: ", first.name, ", then ", second.name,
                                    " of another request"));
          FailEach(first, one_, second, two_, count);
          FailEach(first, two_, second, one_, count);
          if (HasFailure()) return;
        }
      }
    }
    RecordProperty("faults", plan().faults());
    EXPECT_GT(plan().faults(), 1000);
  }

  // Changes are written in the order of regions, so it matters whose verb is first.
  void FailEach(const Verb& first, Row& its, const Verb& second, Row& other, int64_t count) {
    bool met_first = true;
    for (int64_t n = 1; met_first; ++n) {
      bool met_second = true;
      for (int64_t m = 1; met_second; ++m) {
        SCOPED_TRACE(absl::StrCat("from their calls ", n, " and ", m, " on"));
        ASSERT_NO_FATAL_FAILURE(Begin());
        met_first = Run(first, {n, count}, its, other);
        met_second = Run(second, {m, count}, other, its);
        End();
        if (HasFailure()) return;
        ASSERT_LT(std::max(n, m), 100);
      }
    }
  }

  const CacheLayout layout_ =
      SmallLayout{
          .top_k = 2, .hot_size = 4, .block_count = 6, .max_requests = 2, .block_size = kBlockSize}
          .Make();
  Worker worker_;
  Row one_{.request = "one"}, two_{.request = "two"};
};

TEST_F(NodeTableTest, TwoVerbsThatTheDeviceRefuses) { FailTwoVerbs(); }

class NodeGpuTableTest : public NodeTableTest {
 protected:
  NodeGpuTableTest() : NodeTableTest(/*claims_cuda=*/true) {}
};

TEST_F(NodeGpuTableTest, TwoVerbsThatTheDeviceRefuses) { FailTwoVerbs(); }

}  // namespace
}  // namespace kvtier
