// What a machine lacks for kvtierd, and what to change.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/kvtier/v1/admin.pb.h"

namespace kvtier::cli {

struct Finding {
  enum class Level {
    kGood,
    kNote,     // worth knowing
    kWarning,  // works, but slower or more fragile than it could
    kBad,      // does not work, or will not
  };
  Level level = Level::kGood;
  std::string check;   // "pages"
  std::string text;    // what is the case
  std::string advice;  // what to change; empty where nothing is to be
};

struct Patient {
  std::string root;         // in front of every path of the system; "" but in tests
  std::string socket_path;  // "": reached by TCP
  absl::Status reached;     // why the daemon does not answer
  std::optional<v1::GetNodeInfoResponse> info;
  std::string readiness;  // "SERVING"
};

// One check a function; each finds at least one thing to say.
std::vector<Finding> CheckDaemon(const Patient& patient);
std::vector<Finding> CheckSocketFolder(const Patient& patient);
std::vector<Finding> CheckDriver(const Patient& patient);
std::vector<Finding> CheckMig(const Patient& patient);
std::vector<Finding> CheckLimits(const Patient& patient);
std::vector<Finding> CheckPages(const Patient& patient);
std::vector<Finding> CheckSharedMemory(const Patient& patient);
std::vector<Finding> CheckCgroup(const Patient& patient);
std::vector<Finding> CheckNuma(const Patient& patient);

// All of them.
std::vector<Finding> Examine(const Patient& patient);

bool IsAnyBad(const std::vector<Finding>& findings);
std::string FindingsText(const std::vector<Finding>& findings);
std::string FindingsJson(const std::vector<Finding>& findings);

}  // namespace kvtier::cli
