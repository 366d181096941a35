#include "server/config/setting.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/config/byte_size.h"
#include "server/core/limits.h"

namespace kvtier {
namespace {

using Kind = SettingKind;

constexpr int64_t kHourSeconds = 3600;
constexpr int64_t kDaySeconds = 24 * kHourSeconds;

constexpr Setting kSettings[] = {
    {.name = "socket",
     .kind = Kind::kText,
     .default_text = "/run/kvtierd/kvtierd.sock",
     .help = "Unix socket that workers connect to. Its folder must exist. <socket>.fd and "
             "<socket>.lock lie beside it."},
    {.name = "socket_mode",
     .kind = Kind::kOctal,
     .default_text = "0660",
     .help = "Mode of the sockets, octal, whatever the umask."},
    {.name = "socket_gid",
     .kind = Kind::kNumber,
     .default_text = "-1",
     .minimum = -1,
     .maximum = INT32_MAX,
     .help = "Group of the sockets, a number. -1: the process's own."},
    {.name = "allow_world_writable_socket",
     .kind = Kind::kSwitch,
     .default_text = "false",
     .help = "Accept a socket_mode with which every user of the machine may connect."},
    {.name = "allowed_uids",
     .kind = Kind::kNumbers,
     .default_text = "",
     .minimum = 0,
     .maximum = INT32_MAX,
     .reloadable = true,
     .help = "Users, by number, who may connect to the Unix socket. None: all whom its mode lets "
             "in. Who is connected already stays."},
    {.name = "viewer_uids",
     .kind = Kind::kNumbers,
     .default_text = "",
     .minimum = 0,
     .maximum = INT32_MAX,
     .reloadable = true,
     .help = "Users, by number, who may look at caches, sessions and statistics over the Unix "
             "socket."},
    {.name = "operator_uids",
     .kind = Kind::kNumbers,
     .default_text = "0",
     .minimum = 0,
     .maximum = INT32_MAX,
     .reloadable = true,
     .help =
         "Users, by number, who may drain and evict as well. The daemon's own user always may."},
    {.name = "tcp",
     .kind = Kind::kTexts,
     .default_text = "",
     .help =
         "host:port where operators connect; port 0: any. With mutual TLS, see tls_certificate; "
         "without, on loopback alone, and to look."},
    {.name = "tls_certificate",
     .kind = Kind::kText,
     .default_text = "",
     .help =
         "PEM file with the certificate, and its chain, for the tcp addresses. This file and the "
         "next two go together, and are read again when they change."},
    {.name = "tls_key",
     .kind = Kind::kText,
     .default_text = "",
     .help = "PEM file with its private key, for the daemon's user alone."},
    {.name = "tls_client_ca",
     .kind = Kind::kText,
     .default_text = "",
     .help = "PEM file with the authorities of clients' certificates. A client without one is "
             "turned away."},
    {.name = "tls_viewers",
     .kind = Kind::kTexts,
     .default_text = "",
     .reloadable = true,
     .help =
         "Names (subject alternative names; the common name where there are none) of clients who "
         "may look."},
    {.name = "tls_operators",
     .kind = Kind::kTexts,
     .default_text = "",
     .reloadable = true,
     .help = "Names of clients who may drain and evict as well."},
    {.name = "allow_insecure_tcp",
     .kind = Kind::kSwitch,
     .default_text = "false",
     .help = "Accept tcp addresses without TLS that other machines reach, where anybody may look."},
    {.name = "tcp_connections_per_address_max",
     .kind = Kind::kNumber,
     .default_text = "32",
     .minimum = 1,
     .maximum = kTcpConnectionsMax,
     .help = "Connections over TCP, of 128, that one address may have; of IPv6 the first 64 bits "
             "count, and loopback is one."},
    {.name = "metrics_address",
     .kind = Kind::kText,
     .default_text = "",
     .help = "host:port where Prometheus scrapes /metrics; port 0: any. Empty: nowhere. There is "
             "no authentication; it only reads."},
    {.name = "allow_insecure_metrics",
     .kind = Kind::kSwitch,
     .default_text = "false",
     .help = "Accept a metrics_address that other machines reach."},
    {.name = "backend",
     .kind = Kind::kChoice,
     .default_text = "auto",
     .choices = "auto|cpu|cuda",
     .help = "Devices. auto: the GPUs where there are a driver and one, else the CPU."},
    {.name = "cpu_threads",
     .kind = Kind::kNumber,
     .default_text = "1",
     .minimum = 1,
     .maximum = 256,
     .help = "Threads of each device stream of the CPU backend."},
    {.name = "device_memory",
     .kind = Kind::kChoice,
     .default_text = "fd",
     .choices = "fd|ipc",
     .help = "How workers map the memory of a GPU: fd (descriptors; works across namespaces), or "
             "ipc (legacy CUDA IPC handles)."},
    {.name = "pool_bytes",
     .kind = Kind::kBytes,
     .default_text = "1GiB",
     .minimum = 1,
     .maximum = INT64_MAX,
     .help = "Size of the host pool."},
    {.name = "huge_pages",
     .kind = Kind::kChoice,
     .default_text = "auto",
     .choices = "auto|never|require",
     .help = "Pages of 2 MiB for the host pool: auto (where the system gives them), never, or "
             "require (reserved ones, or an error)."},
    {.name = "numa_node",
     .kind = Kind::kNumber,
     .default_text = "-1",
     .minimum = -1,
     .maximum = 1023,
     .help = "NUMA node of the host pool. -1: any."},
    {.name = "pin_threads",
     .kind = Kind::kNumber,
     .default_text = "16",
     .minimum = 1,
     .maximum = 256,
     .help = "Threads that touch the host pool's memory at the start; no more than processors."},
    {.name = "pool_path",
     .kind = Kind::kText,
     .default_text = "",
     .help = "Folder on tmpfs or hugetlbfs in which the host pool and the blocks in it outlive the "
             "daemon; made if it is not there. Empty: nothing does."},
    {.name = "pool_mismatch",
     .kind = Kind::kChoice,
     .default_text = "refuse",
     .choices = "refuse|drop",
     .help = "If pool_path holds a pool of another pool_bytes or format: refuse (exit), or drop."},
    {.name = "reattach_duration",
     .kind = Kind::kDuration,
     .default_text = "5m",
     .minimum = 0,
     .maximum = kDaySeconds,
     .help = "How long the caches in pool_path wait for their workers after a start."},
    {.name = "retain_duration_max",
     .kind = Kind::kDuration,
     .default_text = "1h",
     .minimum = 0,
     .maximum = kDaySeconds,
     .help = "The longest time that workers may have a cache stay without sessions. 0: none."},
    {.name = "sessions_max",
     .kind = Kind::kNumber,
     .default_text = "256",
     .minimum = 1,
     .maximum = kSessionsMax,
     .reloadable = true,
     .help = "Open sessions. Lowered, it ends none."},
    {.name = "caches_max",
     .kind = Kind::kNumber,
     .default_text = "64",
     .minimum = 1,
     .maximum = kCachesMax,
     .reloadable = true,
     .help = "Caches. Lowered, it ends none."},
    {.name = "sessions_per_uid_max",
     .kind = Kind::kNumber,
     .default_text = "0",
     .minimum = 0,
     .maximum = kSessionsMax,
     .reloadable = true,
     .help = "Open sessions of one user. 0: as many as there are. Lowered, it ends none."},
    {.name = "caches_per_uid_max",
     .kind = Kind::kNumber,
     .default_text = "0",
     .minimum = 0,
     .maximum = kCachesMax,
     .reloadable = true,
     .help = "Caches of one user: of those who made them. 0: as many as there are. Lowered, it "
             "ends none."},
    {.name = "pool_bytes_per_uid_max",
     .kind = Kind::kBytes,
     .default_text = "0",
     .minimum = 0,
     .maximum = INT64_MAX,
     .reloadable = true,
     .help = "Of the host pool: what the caches of one user may take. 0: all of it. Lowered, it "
             "ends none."},
    {.name = "operations_in_flight_max",
     .kind = Kind::kNumber,
     .default_text = "1024",
     .minimum = 1,
     .maximum = kOperationsInFlightMax,
     .help = "Operations that a session may have enqueued on a cache and not answered."},
    {.name = "control_threads",
     .kind = Kind::kNumber,
     .default_text = "8",
     .minimum = 1,
     .maximum = 64,
     .help = "Calls that have to wait (attach, admit, assign, free, release) at a time; of one "
             "cache at most three quarters, of one process seven eighths."},
    {.name = "control_queue_max",
     .kind = Kind::kNumber,
     .default_text = "256",
     .minimum = 1,
     .maximum = 65536,
     .help = "Such calls that wait for a thread; more are refused at once, as are more than three "
             "quarters of one cache, or seven eighths of one process."},
    {.name = "shutdown_grace",
     .kind = Kind::kDuration,
     .default_text = "5s",
     .minimum = 0,
     .maximum = kHourSeconds,
     .reloadable = true,
     .help = "How long running calls may take to end after SIGTERM or SIGINT."},
    {.name = "log_level",
     .kind = Kind::kChoice,
     .default_text = "info",
     .choices = "debug|info|warning|error",
     .reloadable = true,
     .help = "The least important events that are logged. debug: every call that fails."},
    {.name = "log_format",
     .kind = Kind::kChoice,
     .default_text = "text",
     .choices = "text|json",
     .reloadable = true,
     .help = "One event a line on standard error: name=value pairs, or a JSON object."},
};

absl::Status Refuse(const Setting& setting, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(setting.name, ": '", text, "' is not ", RangeOf(setting)));
}

bool IsInRange(const Setting& setting, int64_t value) {
  return value >= setting.minimum && value <= setting.maximum;
}

absl::Status CheckText(const Setting& setting, const std::string& text) {
  bool good = true;
  switch (setting.kind) {
    case Kind::kText:
      break;
    case Kind::kTexts:
      // An address or a name: an empty one is a mistake, and no certificate may match it.
      if (absl::StripAsciiWhitespace(text).empty()) {
        return absl::InvalidArgumentError(absl::StrCat(setting.name, ": an item is empty"));
      }
      break;
    case Kind::kSwitch:
      good = text == "true" || text == "false";
      break;
    case Kind::kNumber:
    case Kind::kNumbers: {
      int64_t number = 0;
      good = absl::SimpleAtoi(text, &number) && IsInRange(setting, number);
      break;
    }
    case Kind::kOctal:
      good = !text.empty() && text.size() <= 4 &&
             text.find_first_not_of("01234567") == std::string::npos &&
             (text.size() < 4 || text[0] == '0');
      break;
    case Kind::kBytes: {
      if (text == "0" && setting.minimum == 0) break;  // none, which is no size
      const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
      if (!bytes.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(setting.name, ": ", bytes.status().message()));
      }
      good = IsInRange(setting, *bytes);
      break;
    }
    case Kind::kDuration: {
      absl::Duration duration;
      good = absl::ParseDuration(text, &duration) && duration >= absl::Seconds(setting.minimum) &&
             duration <= absl::Seconds(setting.maximum);
      break;
    }
    case Kind::kChoice: {
      const std::vector<absl::string_view> choices = absl::StrSplit(setting.choices, '|');
      good = std::find(choices.begin(), choices.end(), absl::string_view(text)) != choices.end();
      break;
    }
  }
  return good ? absl::OkStatus() : Refuse(setting, text);
}

std::string Alternatives(std::vector<absl::string_view> choices) {
  const absl::string_view last = choices.back();
  choices.pop_back();
  return absl::StrCat(absl::StrJoin(choices, ", "), " or ", last);
}

std::string Bounds(const Setting& setting) {
  if (setting.maximum == INT32_MAX || setting.maximum == INT64_MAX) {
    return absl::StrCat(setting.minimum, " or more");
  }
  return absl::StrCat(setting.minimum, "..", setting.maximum);
}

}  // namespace

absl::Span<const Setting> Settings() { return kSettings; }

const Setting* FindSetting(absl::string_view name) {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

bool IsList(SettingKind kind) { return kind == Kind::kTexts || kind == Kind::kNumbers; }

absl::Status CheckTexts(const Setting& setting, const std::vector<std::string>& texts) {
  if (!IsList(setting.kind) && texts.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting.name, ": a list, where ", RangeOf(setting), " is expected"));
  }
  for (const std::string& text : texts) {
    if (absl::Status status = CheckText(setting, text); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string RangeOf(const Setting& setting) {
  switch (setting.kind) {
    case Kind::kText:
      return "a text";
    case Kind::kTexts:
      return "a list of texts";
    case Kind::kSwitch:
      return "true or false";
    case Kind::kNumber:
      return Bounds(setting);
    case Kind::kNumbers:
      return absl::StrCat("a list of ", Bounds(setting));
    case Kind::kOctal:
      return "an octal number in 0..0777";
    case Kind::kBytes:
      return absl::StrCat(setting.minimum == 0 ? "0 or " : "",
                          "a size: bytes, or a number with KiB, MiB, GiB or TiB");
    case Kind::kDuration:
      return absl::StrCat("a duration like 5s, ",
                          absl::FormatDuration(absl::Seconds(setting.minimum)), "..",
                          absl::FormatDuration(absl::Seconds(setting.maximum)));
    case Kind::kChoice:
      return Alternatives(absl::StrSplit(setting.choices, '|'));
  }
  return "";
}

std::string VariableOf(absl::string_view name) {
  return absl::StrCat("KVTIERD_", absl::AsciiStrToUpper(name));
}

}  // namespace kvtier
