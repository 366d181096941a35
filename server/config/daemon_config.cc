#include "server/config/daemon_config.h"

#include <charconv>

#include "absl/strings/numbers.h"
#include "server/config/byte_size.h"

namespace kvtier {
namespace {

// Reads values that CheckTexts has let through; what it would have refused reads as zero.
class Reader {
 public:
  explicit Reader(const SettingValues& values) : values_(values) {}

  const std::vector<std::string>& Texts(absl::string_view name) const {
    return values_.Get(name).texts;
  }
  const std::string& Text(absl::string_view name) const { return Texts(name).front(); }
  bool Switch(absl::string_view name) const { return Text(name) == "true"; }
  int32_t Number(absl::string_view name) const { return NumberIn(Text(name)); }
  std::vector<int32_t> Numbers(absl::string_view name) const {
    std::vector<int32_t> numbers;
    for (const std::string& text : Texts(name)) numbers.push_back(NumberIn(text));
    return numbers;
  }
  int32_t Octal(absl::string_view name) const {
    const std::string& text = Text(name);
    int32_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number, 8);
    return number;
  }
  int64_t Bytes(absl::string_view name) const { return ParseByteSize(Text(name)).value_or(0); }
  absl::Duration Duration(absl::string_view name) const {
    absl::Duration duration;
    return absl::ParseDuration(Text(name), &duration) ? duration : absl::ZeroDuration();
  }

 private:
  static int32_t NumberIn(const std::string& text) {
    int32_t number = 0;
    return absl::SimpleAtoi(text, &number) ? number : 0;
  }

  const SettingValues& values_;
};

}  // namespace

DaemonConfig DaemonConfigOf(const SettingValues& values) {
  const Reader read(values);
  return {
      .socket = read.Text("socket"),
      .socket_mode = read.Octal("socket_mode"),
      .socket_gid = read.Number("socket_gid"),
      .allow_world_writable_socket = read.Switch("allow_world_writable_socket"),
      .allowed_uids = read.Numbers("allowed_uids"),
      .viewer_uids = read.Numbers("viewer_uids"),
      .operator_uids = read.Numbers("operator_uids"),
      .tcp = read.Texts("tcp"),
      .tls_certificate = read.Text("tls_certificate"),
      .tls_key = read.Text("tls_key"),
      .tls_client_ca = read.Text("tls_client_ca"),
      .tls_viewers = read.Texts("tls_viewers"),
      .tls_operators = read.Texts("tls_operators"),
      .allow_insecure_tcp = read.Switch("allow_insecure_tcp"),
      .tcp_connections_per_address_max = read.Number("tcp_connections_per_address_max"),
      .metrics_address = read.Text("metrics_address"),
      .allow_insecure_metrics = read.Switch("allow_insecure_metrics"),
      .backend = read.Text("backend"),
      .cpu_threads = read.Number("cpu_threads"),
      .device_memory = read.Text("device_memory"),
      .pool_bytes = read.Bytes("pool_bytes"),
      .huge_pages = read.Text("huge_pages"),
      .numa_node = read.Number("numa_node"),
      .pin_threads = read.Number("pin_threads"),
      .pool_path = read.Text("pool_path"),
      .pool_mismatch = read.Text("pool_mismatch"),
      .reattach_duration = read.Duration("reattach_duration"),
      .retain_duration_max = read.Duration("retain_duration_max"),
      .sessions_max = read.Number("sessions_max"),
      .caches_max = read.Number("caches_max"),
      .sessions_per_uid_max = read.Number("sessions_per_uid_max"),
      .caches_per_uid_max = read.Number("caches_per_uid_max"),
      .pool_bytes_per_uid_max = read.Bytes("pool_bytes_per_uid_max"),
      .operations_in_flight_max = read.Number("operations_in_flight_max"),
      .control_threads = read.Number("control_threads"),
      .control_queue_max = read.Number("control_queue_max"),
      .shutdown_grace = read.Duration("shutdown_grace"),
      .log_level = read.Text("log_level"),
      .log_format = read.Text("log_format"),
  };
}

}  // namespace kvtier
