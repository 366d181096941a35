#include "server/config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CommandLine : public ::testing::Test {
 protected:
  CommandLine() {
    sources_.read_file = [this](absl::string_view path) -> absl::StatusOr<std::string> {
      if (path == "/etc/k.yaml") return file_;
      return absl::InvalidArgumentError(absl::StrCat(path, ": No such file or directory"));
    };
  }

  Command Read(std::vector<std::string> arguments) {
    sources_.arguments = std::move(arguments);
    const absl::StatusOr<Command> command = ReadCommand(sources_);
    EXPECT_TRUE(command.ok()) << command.status();
    return command.ok() ? *command : Command();
  }
  std::string ErrorOf(std::vector<std::string> arguments) {
    sources_.arguments = std::move(arguments);
    return std::string(ReadCommand(sources_).status().message());
  }

  std::string file_;
  CommandSources sources_;
};

TEST_F(CommandLine, FlagsOverEnvironmentOverFileOverDefaults) {
  file_ = "cpu_threads: 2\npin_threads: 3\nnuma_node: 4\n";
  sources_.environment = {{"PATH", "/bin"},
                          {"KVTIERD_PIN_THREADS", "5"},
                          {"KVTIERD_NUMA_NODE", "6"},
                          {"KVTIERD_CONFIG", "/etc/k.yaml"}};
  const Command command = Read({"--numa_node=7"});
  EXPECT_EQ(command.action, CommandAction::kServe);
  EXPECT_EQ(command.config_path, "/etc/k.yaml");
  const auto expect = [&](absl::string_view name, absl::string_view text,
                          absl::string_view origin) {
    EXPECT_THAT(command.values.Get(name).texts, ElementsAre(std::string(text)));
    EXPECT_EQ(command.values.Get(name).origin, origin);
  };
  expect("socket_gid", "-1", "default");
  expect("cpu_threads", "2", "/etc/k.yaml:1");
  expect("pin_threads", "5", "KVTIERD_PIN_THREADS");
  expect("numa_node", "7", "--numa_node");
  EXPECT_THAT(command.unknown_variables, IsEmpty());
}

TEST_F(CommandLine, WaysToWriteAFlag) {
  const Command command =
      Read({"--socket", "/a", "--tcp=x:1,y:2", "--allow_world_writable_socket"});
  EXPECT_THAT(command.values.Get("socket").texts, ElementsAre("/a"));
  EXPECT_THAT(command.values.Get("tcp").texts, ElementsAre("x:1", "y:2"));
  EXPECT_THAT(command.values.Get("allow_world_writable_socket").texts, ElementsAre("true"));
  EXPECT_THAT(
      Read({"--noallow_world_writable_socket"}).values.Get("allow_world_writable_socket").texts,
      ElementsAre("false"));
  EXPECT_THAT(
      Read({"--allow_world_writable_socket=false"}).values.Get("allow_world_writable_socket").texts,
      ElementsAre("false"));
  // The last one holds.
  EXPECT_THAT(Read({"--numa_node=1", "--numa_node=2"}).values.Get("numa_node").texts,
              ElementsAre("2"));
}

TEST_F(CommandLine, Mistakes) {
  EXPECT_EQ(ErrorOf({"--pool_byte=1"}), "there is no flag --pool_byte; did you mean --pool_bytes?");
  EXPECT_EQ(ErrorOf({"--validat"}), "there is no flag --validat; did you mean --validate?");
  EXPECT_EQ(ErrorOf({"--qqqqqq"}), "there is no flag --qqqqqq; --help lists them");
  EXPECT_EQ(ErrorOf({"--nosocket"}), "there is no flag --nosocket; did you mean --socket?");
  EXPECT_EQ(ErrorOf({"-h"}), "'-h': flags look like --name=value");
  EXPECT_EQ(ErrorOf({"--"}), "'--': flags look like --name=value");
  EXPECT_EQ(ErrorOf({"serve"}), "'serve': flags look like --name=value");
  EXPECT_EQ(ErrorOf({"--socket"}), "--socket needs a value");
  EXPECT_EQ(ErrorOf({"--validate=true"}), "--validate takes no value");
  EXPECT_EQ(ErrorOf({"--numa_node=x"}), "--numa_node: numa_node: 'x' is not -1..1023");
  EXPECT_EQ(ErrorOf({"--config=/none"}), "/none: No such file or directory");
  sources_.environment = {{"KVTIERD_NUMA_NODE", "x"}};
  EXPECT_EQ(ErrorOf({}), "KVTIERD_NUMA_NODE: numa_node: 'x' is not -1..1023");
}

TEST_F(CommandLine, WhatKubernetesSetsIsNoMistake) {
  sources_.environment = {{"KVTIERD_SERVICE_HOST", "10.0.0.1"},
                          {"KVTIERD_POOL_BYTE", "1GiB"},
                          {"KVTIERD_socket", "/x"},
                          {"KVTIERD_TCP", ""}};
  const Command command = Read({});
  EXPECT_THAT(
      command.unknown_variables,
      ElementsAre("KVTIERD_SERVICE_HOST", "KVTIERD_POOL_BYTE (did you mean KVTIERD_POOL_BYTES?)",
                  "KVTIERD_socket (did you mean KVTIERD_SOCKET?)"));
  EXPECT_EQ(command.values.Get("socket").origin, "default");
  EXPECT_EQ(command.values.Get("tcp").origin, "default");
}

TEST_F(CommandLine, Actions) {
  EXPECT_EQ(Read({"--validate"}).action, CommandAction::kValidate);
  EXPECT_EQ(Read({"--print_config", "--numa_node=1"}).action, CommandAction::kPrintConfig);
  EXPECT_EQ(Read({"--print_schema"}).action, CommandAction::kPrintSchema);
  EXPECT_EQ(Read({"--print_reference"}).action, CommandAction::kPrintReference);
  // Help must be there for whoever cannot write a configuration yet.
  EXPECT_EQ(Read({"--help", "--config=/none"}).action, CommandAction::kHelp);
  EXPECT_EQ(Read({"--version"}).action, CommandAction::kVersion);
}

}  // namespace
}  // namespace kvtier
