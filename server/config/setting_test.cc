#include "server/config/setting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/config/daemon_config.h"
#include "server/config/print.h"
#include "server/config/setting_values.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool Takes(absl::string_view name, absl::string_view text) {
  return SettingValues().SetFromText(name, text, "--" + std::string(name)).ok();
}

TEST(Settings, DefaultsAreValues) {
  std::set<std::string> names;
  const SettingValues values;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(names.insert(std::string(setting.name)).second) << setting.name;
    EXPECT_FALSE(setting.help.empty()) << setting.name;
    EXPECT_TRUE(CheckTexts(setting, values.Get(setting.name).texts).ok()) << setting.name;
    EXPECT_EQ(values.Get(setting.name).origin, "default");
  }
}

TEST(Settings, TypedDefaults) {
  const DaemonConfig config = DaemonConfigOf(SettingValues());
  EXPECT_EQ(config.socket, "/run/kvtierd/kvtierd.sock");
  EXPECT_EQ(config.socket_mode, 0660);
  EXPECT_EQ(config.socket_gid, -1);
  EXPECT_FALSE(config.allow_world_writable_socket);
  EXPECT_THAT(config.allowed_uids, IsEmpty());
  EXPECT_THAT(config.tcp, IsEmpty());
  EXPECT_EQ(config.tcp_connections_per_address_max, kTcpConnectionsPerAddress);
  EXPECT_EQ(config.metrics_address, "");
  EXPECT_EQ(config.pool_bytes, int64_t{1} << 30);
  EXPECT_EQ(config.shutdown_grace, absl::Seconds(5));
  EXPECT_EQ(config.sessions_max, kSessionsMax);
  EXPECT_EQ(config.caches_max, kCachesMax);
  EXPECT_EQ(config.sessions_per_uid_max, 0);
  EXPECT_EQ(config.caches_per_uid_max, 0);
  EXPECT_EQ(config.pool_bytes_per_uid_max, 0);
  EXPECT_EQ(config.operations_in_flight_max, kOperationsInFlightMax);
  EXPECT_EQ(config.control_threads, kControlThreads);
  EXPECT_EQ(config.control_queue_max, kControlQueueMax);
}

TEST(Settings, TypedValues) {
  SettingValues values;
  ASSERT_TRUE(values
                  .SetFromFile("f",
                               "socket_mode: 0600\nallow_world_writable_socket: true\n"
                               "allowed_uids: [1000, 0]\ntcp:\n- a:1\n- b:2\n"
                               "pool_bytes: 1.5GiB\nshutdown_grace: 1m30s\nlog_level: debug\n")
                  .ok());
  const DaemonConfig config = DaemonConfigOf(values);
  EXPECT_EQ(config.socket_mode, 0600);
  EXPECT_TRUE(config.allow_world_writable_socket);
  EXPECT_THAT(config.allowed_uids, ElementsAre(1000, 0));
  EXPECT_THAT(config.tcp, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(config.pool_bytes, (int64_t{3} << 30) / 2);
  EXPECT_EQ(config.shutdown_grace, absl::Seconds(90));
  EXPECT_EQ(config.log_level, "debug");
}

TEST(Settings, ValuesOutOfRangeAreRefused) {
  for (const absl::string_view good : {"0", "0660", "777", "0777"}) {
    EXPECT_TRUE(Takes("socket_mode", good)) << good;
  }
  for (const absl::string_view bad : {"", "rw", "0888", "1777", "00660", "-1"}) {
    EXPECT_FALSE(Takes("socket_mode", bad)) << bad;
  }
  EXPECT_TRUE(Takes("pin_threads", "256"));
  for (const absl::string_view bad : {"0", "257", "1.5", "", "many", "99999999999999999999"}) {
    EXPECT_FALSE(Takes("pin_threads", bad)) << bad;
  }
  EXPECT_TRUE(Takes("numa_node", "-1"));
  EXPECT_FALSE(Takes("numa_node", "-2"));
  EXPECT_FALSE(Takes("allowed_uids", "1,x"));
  EXPECT_FALSE(Takes("allowed_uids", "-1"));
  EXPECT_FALSE(Takes("pool_bytes", "much"));
  EXPECT_FALSE(Takes("shutdown_grace", "-1s"));
  EXPECT_FALSE(Takes("shutdown_grace", "2h"));
  EXPECT_FALSE(Takes("shutdown_grace", "5"));
  EXPECT_FALSE(Takes("backend", "abacus"));
  EXPECT_FALSE(Takes("allow_world_writable_socket", "yes"));
  EXPECT_TRUE(Takes("tcp", ""));
}

TEST(Settings, AnEmptyItemIsRefused) {
  for (const char* name : {"tcp", "tls_viewers", "tls_operators"}) {
    for (const char* items : {"['']", "[a, \"\"]", "[' ']"}) {
      EXPECT_EQ(SettingValues().SetFromFile("f", absl::StrCat(name, ": ", items)).message(),
                absl::StrCat("f:1: ", name, ": an item is empty"));
    }
    EXPECT_TRUE(SettingValues().SetFromFile("f", absl::StrCat(name, ": []")).ok());
  }
}

TEST(Settings, ARefusalSaysWhereAndWhatItMayBe) {
  SettingValues values;
  EXPECT_EQ(values.SetFromText("backend", "gpu", "KVTIERD_BACKEND").message(),
            "KVTIERD_BACKEND: backend: 'gpu' is not auto, cpu or cuda");
  EXPECT_EQ(values.SetFromFile("f", "\ntcp: a:1\n").message(),
            "f:2: tcp: a list of texts is expected, written [a, b]");
  EXPECT_EQ(values.SetFromFile("f", "socket: [a]\n").message(),
            "f:1: socket: a text is expected, and this is a list");
  EXPECT_EQ(values.SetFromFile("f", "pool_byte: 1GiB\n").message(),
            "f:1: there is no setting 'pool_byte'; did you mean 'pool_bytes'?");
  EXPECT_EQ(values.SetFromFile("f", "quux: 1\n").message(), "f:1: there is no setting 'quux'");
}

TEST(Settings, TheNearestNameIsNamed) {
  EXPECT_EQ(NearestSetting("pool_size"), "");
  EXPECT_EQ(NearestSetting("poolbytes"), "pool_bytes");
  EXPECT_EQ(NearestSetting("log_levle"), "log_level");
  EXPECT_EQ(NearestSetting("session_max"), "sessions_max");
  EXPECT_EQ(NearestSetting("metrics-address"), "metrics_address");
  EXPECT_EQ(NearestSetting("zzzzzzzz"), "");
}

TEST(Settings, WhatIsPrintedReadsAsTheSame) {
  SettingValues values;
  ASSERT_TRUE(values.SetFromText("tcp", "a:1, b:2", "--tcp").ok());
  ASSERT_TRUE(values.SetFromText("socket", "/run/a \"b\".sock", "KVTIERD_SOCKET").ok());
  ASSERT_TRUE(values.SetFromFile("f.yaml", "log_level: debug\n").ok());
  const std::string printed = PrintConfig(values);
  EXPECT_THAT(printed, HasSubstr("\ntcp: [\"a:1\", \"b:2\"]  # --tcp\n"));
  EXPECT_THAT(printed, HasSubstr("\nlog_level: \"debug\"  # f.yaml:1\n"));
  EXPECT_THAT(printed, HasSubstr("\nsocket_gid: -1  # default\n"));
  SettingValues again;
  ASSERT_TRUE(again.SetFromFile("printed", printed).ok());
  for (const Setting& setting : Settings()) {
    EXPECT_EQ(again.Get(setting.name).texts, values.Get(setting.name).texts) << setting.name;
  }
}

TEST(Settings, AReloadAppliesWhatItMay) {
  SettingValues running, wanted;
  ASSERT_TRUE(wanted.SetFromFile("f", "log_level: debug\npool_bytes: 2GiB\n").ok());
  const SettingChanges changes = ChangesOf(running, wanted);
  EXPECT_THAT(changes.reloadable, ElementsAre("log_level"));
  EXPECT_THAT(changes.needs_restart, ElementsAre("pool_bytes"));
  const SettingValues reloaded = Reloaded(running, wanted);
  EXPECT_THAT(reloaded.Get("log_level").texts, ElementsAre("debug"));
  EXPECT_EQ(reloaded.Get("log_level").origin, "f:1");
  EXPECT_THAT(reloaded.Get("pool_bytes").texts, ElementsAre("1GiB"));
}

}  // namespace
}  // namespace kvtier
