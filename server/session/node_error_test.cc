// Every verb against every thing that can be wrong with its arguments.

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using Code = absl::StatusCode;
using Verb = std::function<absl::Status(const std::string& session, const std::string& cache,
                                        const std::string& request)>;

class NodeErrorTest : public NodeFixture {
 protected:
  absl::Status SwapInStatus(const std::string& session, SwapInCall call) {
    return node().SwapIn(session, call, nullptr).status();
  }

  // By name; those that name a request and those that do not.
  std::vector<std::pair<std::string, Verb>> RequestVerbs() {
    return {
        {"ReleaseRequest",
         [&](auto& s, auto& c, auto& r) {
           return node().ReleaseRequest(s, c, r, Soon()).status();
         }},
        {"AssignBlocks",
         [&](auto& s, auto& c, auto& r) {
           return node().AssignBlocks(s, c, r, 1, {}, {}, Soon()).status();
         }},
        {"FreeBlocks", [&](auto& s, auto& c,
                           auto& r) { return node().FreeBlocks(s, c, r, {0}, Soon()).status(); }},
        {"SwapIn",
         [&](auto& s, auto& c, auto& r) {
           SwapInCall call;
           call.cache = c;
           call.inline_rows = {{.request_id = ""}, {.request_id = r}};
           return SwapInStatus(s, call);
         }},
        {"Backup",
         [&](auto& s, auto& c, auto& r) {
           BackupCall call;
           call.cache = c;
           call.inline_rows = {{.request_id = r, .slot = 1}};
           return node().Backup(s, call, nullptr).status();
         }},
    };
  }
  std::vector<std::pair<std::string, Verb>> CacheVerbs() {
    std::vector<std::pair<std::string, Verb>> verbs = RequestVerbs();
    verbs.emplace_back("AdmitRequest", [&](auto& s, auto& c, auto& r) {
      return node().AdmitRequest(s, c, r, 0, Soon()).status();
    });
    verbs.emplace_back("InvalidateBlocks", [&](auto& s, auto& c, auto&) {
      return node().InvalidateBlocks(s, c, {0}, Soon()).status();
    });
    verbs.emplace_back("ReplayPlan", [&](auto& s, auto& c, auto&) {
      return node().ReplayPlan(s, {.cache = c, .num_rows = 1}, nullptr).status();
    });
    verbs.emplace_back("OnTicket",
                       [&](auto& s, auto& c, auto&) { return node().OnTicket(s, c, 1, nullptr); });
    verbs.emplace_back("DetachCache", [&](auto& s, auto& c, auto&) {
      return node().DetachCache(s, c, Soon()).status();
    });
    return verbs;
  }
};

TEST_F(NodeErrorTest, D25_UnknownSessionCacheAndRequest) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  for (const auto& [name, verb] : CacheVerbs()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(IsError(verb("", "kv", "r"), Code::kNotFound, "SESSION_UNKNOWN"));
    EXPECT_TRUE(
        IsError(verb(node().boot_id() + ".1", "kv", "r"), Code::kNotFound, "SESSION_UNKNOWN"));
    EXPECT_TRUE(
        IsError(verb("0123456789abcdef.1", "kv", "r"), Code::kFailedPrecondition, "BOOT_ID_STALE"));
    EXPECT_TRUE(IsError(verb(worker.session, "other", "r"), Code::kNotFound, "CACHE_UNKNOWN"));
    EXPECT_TRUE(IsError(verb(worker.session, "", "r"), Code::kNotFound, "CACHE_UNKNOWN"));
  }
  for (const auto& [name, verb] : RequestVerbs()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(IsError(verb(worker.session, "kv", "s"), Code::kNotFound, "REQUEST_UNKNOWN"));
  }
  // Detached: as if it had never been attached.
  ASSERT_TRUE(node().DetachCache(worker.session, "kv", Soon()).ok());
  for (const auto& [name, verb] : CacheVerbs()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(IsError(verb(worker.session, "kv", "r"), Code::kNotFound, "CACHE_UNKNOWN"));
  }
  node().CloseSession(worker.session);
  for (const auto& [name, verb] : CacheVerbs()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(IsError(verb(worker.session, "kv", "r"), Code::kNotFound, "SESSION_UNKNOWN"));
  }
  worker.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeErrorTest, D25_BadAttachments) {
  const std::string session = Open();
  const auto attach = [&](const std::string& cache, const CacheLayout& layout,
                          const std::string& device) {
    return node().AttachCache(session, cache, layout, device, Soon()).status();
  };
  const CacheLayout good = SmallLayout{}.Make();
  for (const std::string& name :
       {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\n"),
        std::string("a\0b", 3), std::string("\xC3\xA9")}) {
    EXPECT_TRUE(IsError(attach(name, good, ""), Code::kInvalidArgument, "FIELD_INVALID"));
  }
  const absl::Status device = attach("kv", good, "GPU-7");
  EXPECT_TRUE(IsError(device, Code::kFailedPrecondition, "DEVICE_UNKNOWN"));
  EXPECT_EQ(ErrorMetadataOf(device).at("known"), "CPU-0");
  CacheLayout bad = good;
  bad.groups[0].layers[0].value_bytes = 584;
  EXPECT_TRUE(IsError(attach("kv", bad, ""), Code::kInvalidArgument, "LAYOUT_INVALID"));
  const absl::Status full = attach("kv", SmallLayout{.block_count = 1024}.Make(), "");
  EXPECT_TRUE(IsError(full, Code::kResourceExhausted, "POOL_EXHAUSTED"));
  EXPECT_TRUE(node().Snapshot("")->caches.empty());
  EXPECT_TRUE(attach(std::string(128, 'x'), good, "CPU-0").ok());
  ExpectBaseline();
}

TEST_F(NodeErrorTest, D25_BadRequestsAndRows) {
  Worker worker = OpenAndAttach(SmallLayout{.layers = 2}.Make());
  Admit(worker, "r");
  const auto invalid = [](const absl::Status& status) {
    return IsError(status, Code::kInvalidArgument, "FIELD_INVALID");
  };
  const auto admit = [&](const std::string& id, int32_t reserve) {
    return node().AdmitRequest(worker.session, "kv", id, reserve, Soon()).status();
  };
  EXPECT_TRUE(invalid(admit("", 0)));
  EXPECT_TRUE(invalid(admit(std::string(129, 'x'), 0)));
  EXPECT_TRUE(invalid(admit("s", -1)));
  EXPECT_TRUE(IsError(admit("s", 33), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));

  const auto swap_in = [&](const std::function<void(SwapInCall&)>& change) {
    SwapInCall call;
    call.cache = "kv";
    call.step_rows = 1;
    change(call);
    return SwapInStatus(worker.session, call);
  };
  EXPECT_TRUE(swap_in([](SwapInCall&) {}).ok());
  EXPECT_TRUE(swap_in([](SwapInCall& c) { c.layers = LayerRange{1, 1}; }).ok());
  EXPECT_TRUE(swap_in([](SwapInCall& c) { c.layers = LayerRange{2, 0}; }).ok());
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) { c.group = 1; })));
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) { c.group = -1; })));
  for (const LayerRange& layers : {LayerRange{-1, 1}, LayerRange{0, 3}, LayerRange{1, 2},
                                   LayerRange{1, INT32_MAX}, LayerRange{0, -1}}) {
    EXPECT_TRUE(invalid(swap_in([&](SwapInCall& c) { c.layers = layers; })));
  }
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) { c.step_rows.reset(); })));
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) { c.inline_rows.emplace(); })));
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) { c.step_rows = -1; })));
  EXPECT_TRUE(IsError(swap_in([](SwapInCall& c) { c.step_rows = 5; }), Code::kFailedPrecondition,
                      "INPUT_MISMATCH"));
  EXPECT_TRUE(invalid(swap_in([](SwapInCall& c) {
    c.step_rows.reset();
    c.inline_rows.emplace(kInlineRowsMax + 1);
  })));
  // One bad row: none is done, and its number is said.
  const absl::Status bad_row = swap_in([](SwapInCall& c) {
    c.step_rows.reset();
    c.inline_rows = {{.request_id = "r", .topk = {1}}, {.request_id = "gone"}};
  });
  EXPECT_TRUE(IsError(bad_row, Code::kNotFound, "REQUEST_UNKNOWN"));
  EXPECT_EQ(ErrorMetadataOf(bad_row).at("row"), "1");

  EXPECT_TRUE(
      IsError(node().ReplayPlan(worker.session, {.cache = "kv", .num_rows = 5}, nullptr).status(),
              Code::kFailedPrecondition, "INPUT_MISMATCH"));
  BackupCall backup;
  backup.cache = "kv";
  EXPECT_TRUE(invalid(node().Backup(worker.session, backup, nullptr).status()));
  backup.inline_rows = {{.request_id = "", .slot = 1}};
  EXPECT_TRUE(invalid(node().Backup(worker.session, backup, nullptr).status()));
  backup.inline_rows->resize(kInlineBackupRowsMax + 1);
  EXPECT_TRUE(invalid(node().Backup(worker.session, backup, nullptr).status()));
  while (Stats().sessions[0].operations_in_flight > 0) std::this_thread::yield();
  EXPECT_EQ(Total()[Counter::kSteps], 0);
}

// A device that is gone: every verb that needs it says so, the others go on.
TEST_F(NodeErrorTest, D25_LostDevice) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  Assign(worker, "r", 1);
  plan().LoseDevice("XID 79");
  for (const auto& [name, verb] : CacheVerbs()) {
    if (name == "OnTicket" || name == "DetachCache") continue;
    SCOPED_TRACE(name);
    EXPECT_TRUE(IsError(verb(worker.session, "kv", name == "AdmitRequest" ? "s" : "r"),
                        Code::kUnavailable, "DEVICE_LOST"));
  }
  EXPECT_EQ(Stats().blocks_used, 1);
  EXPECT_EQ(Stats().sessions[0].operations_in_flight, 0);
  // And it can still be left.
  EXPECT_TRUE(node().DetachCache(worker.session, "kv", Soon()).ok());
  worker.memory.reset();
  ExpectBaseline();
}

// Rows without a request are padding, and still have room for top_k: few bytes must not become
// many.
TEST_F(NodeErrorTest, InlineRowsTimesTopKAreBounded) {
  Worker worker = OpenAndAttach(
      SmallLayout{.top_k = 4096, .hot_size = 4096, .max_requests = 1, .row_bytes = 16}.Make());
  SwapInCall call;
  call.cache = "kv";
  call.inline_rows.emplace(kInlinePositionsMax / 4096 + 1);
  const absl::Status status = node().SwapIn(worker.session, call, nullptr).status();
  EXPECT_TRUE(IsError(status, Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_EQ(ErrorMetadataOf(status).at("field"), "rows");
  call.inline_rows->pop_back();
  EXPECT_TRUE(node().SwapIn(worker.session, call, nullptr).ok());
}

}  // namespace
}  // namespace kvtier
