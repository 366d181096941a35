#include "client/cli/doctor.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/system_files.h"
#include "google/protobuf/struct.pb.h"

namespace kvtier::cli {
namespace {

using Level = Finding::Level;

const char* NameOf(Level level) {
  switch (level) {
    case Level::kGood:
      return "ok";
    case Level::kNote:
      return "note";
    case Level::kWarning:
      return "warning";
    case Level::kBad:
      return "bad";
  }
  return "";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::vector<Finding> CheckDaemon(const Patient& patient) {
  if (!patient.info.has_value() && absl::IsDeadlineExceeded(patient.reached)) {
    return {{Level::kBad, "daemon", std::string(patient.reached.message()),
             "something listens there, but does not answer in time: is the process stopped, or "
             "does it hang? (--timeout allows more)"}};
  }
  if (!patient.info.has_value()) {
    return {{Level::kBad, "daemon", std::string(patient.reached.message()),
             "start it, or name its socket with --socket; its log says why it ended, if it did"}};
  }
  const v1::GetNodeInfoResponse& info = *patient.info;
  std::vector<Finding> findings = {
      {Level::kGood, "daemon",
       absl::StrCat("kvtierd ", info.version(), " answers, pid ", info.pid()), ""}};
  if (info.pool().state() == v1::POOL_STATE_PINNING) {
    findings.push_back(
        {Level::kNote, "daemon",
         absl::StrCat("the pool is being pinned: ", Bytes(info.pool().pinned_bytes()), " of ",
                      Bytes(info.pool().total_bytes())),
         ""});
  } else if (patient.readiness != "SERVING") {
    const std::string& why = patient.info->not_ready_reason();
    findings.push_back({Level::kBad, "daemon",
                        absl::StrCat("it is ", patient.readiness, ": nothing new is admitted",
                                     why.empty() ? "" : ": ", why),
                        "a drain is taken back by a restart; for the rest see its log"});
  }
  return findings;
}

std::vector<Finding> CheckSocketFolder(const Patient& patient) {
  if (patient.socket_path.empty()) {
    return {{Level::kNote, "socket", "reached by TCP; workers need the Unix socket", ""}};
  }
  const std::string folder = FolderOf(patient.socket_path);
  struct stat status = {};
  if (stat(SystemFiles(patient.root).PathOf(folder).c_str(), &status) != 0) {
    return {{Level::kBad, "socket", absl::StrCat("the folder ", folder, " is not there"),
             "RuntimeDirectory=kvtierd in a systemd unit makes it, or a hostPath volume of type "
             "DirectoryOrCreate"}};
  }
  const auto mode = static_cast<unsigned>(status.st_mode & 07777);
  const std::string what =
      absl::StrFormat("%s has mode %04o, owner %d:%d", folder, mode, status.st_uid, status.st_gid);
  if ((mode & 0002U) != 0 && (mode & 01000U) == 0) {
    return {{Level::kWarning, "socket", absl::StrCat(what, ": anybody may replace the socket"),
             absl::StrCat("chmod o-w ", folder)}};
  }
  if ((mode & 0020U) != 0 && (mode & 01000U) == 0) {
    return {{Level::kWarning, "socket",
             absl::StrCat(what, ": whoever is in that group may replace the socket"),
             absl::StrCat("chmod +t ", folder)}};
  }
  return {{Level::kGood, "socket", what, ""}};
}

std::vector<Finding> Examine(const Patient& patient) {
  const std::function<std::vector<Finding>(const Patient&)> checks[] = {
      CheckDaemon, CheckSocketFolder, CheckDriver, CheckMig, CheckLimits,
      CheckPages,  CheckSharedMemory, CheckCgroup, CheckNuma};
  std::vector<Finding> all;
  for (const auto& check : checks) {
    std::vector<Finding> found = check(patient);
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  return all;
}

bool IsAnyBad(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& each) { return each.level == Level::kBad; });
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppendFormat(&text, "%-7s  %-13s  %s\n", NameOf(finding.level), finding.check,
                          finding.text);
    if (!finding.advice.empty()) {
      absl::StrAppendFormat(&text, "%-7s  %-13s  -> %s\n", "", "", finding.advice);
    }
  }
  return text;
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  google::protobuf::Struct report;
  auto* const list = (*report.mutable_fields())["findings"].mutable_list_value();
  for (const Finding& finding : findings) {
    auto* const fields = list->add_values()->mutable_struct_value()->mutable_fields();
    (*fields)["level"].set_string_value(NameOf(finding.level));
    (*fields)["check"].set_string_value(finding.check);
    (*fields)["text"].set_string_value(finding.text);
    (*fields)["advice"].set_string_value(finding.advice);
  }
  return ToJson(report, /*lines=*/true);
}

}  // namespace kvtier::cli
