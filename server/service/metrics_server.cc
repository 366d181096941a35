#include "server/service/metrics_server.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "civetweb.h"
#include "prometheus/text_serializer.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

constexpr char kPath[] = "/metrics";

// Answers a request; `data` is the MetricsServer.
int OnRequest(mg_connection* connection, void* data) {
  const mg_request_info* request = mg_get_request_info(connection);
  const absl::string_view method = request->request_method;
  const bool head = method == "HEAD";
  // The library hands on what begins with the path, too.
  if (absl::string_view(request->local_uri) != kPath) return 0;
  if (method != "GET" && !head) {
    mg_send_http_error(connection, 405, "only GET");
    return 405;
  }
  const std::string text = static_cast<const MetricsServer*>(data)->Text();
  mg_printf(connection,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: %zu\r\nConnection: close\r\n\r\n",
            text.size());
  if (!head) mg_write(connection, text.data(), text.size());
  return 200;
}

// The library would write it to a log of its own; whoever starts the server hears what matters.
int OnMessage(const mg_connection* /*connection*/, const char* /*message*/) { return 1; }

}  // namespace

absl::Status CheckMetricsAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != absl::string_view::npos && colon > 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= 65535 &&
      // The HTTP server's own syntax for several addresses and both families.
      address.find_first_of(", +") == absl::string_view::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", address, "' is no address: write host:port"));
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    absl::string_view address, std::function<MetricsInput()> read) {
  KVTIER_RETURN_IF_ERROR(CheckMetricsAddress(address));
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(read)));
  const std::string where(address);
  // Two scrapes at a time; a peer that says nothing for seconds is cut off.
  const char* options[] = {
      "listening_ports",   where.c_str(), "num_threads", "2", "request_timeout_ms", "5000",
      "enable_keep_alive", "no",          nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = OnMessage;
  server->context_ = mg_start(&callbacks, nullptr, options);
  if (server->context_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot serve metrics at ", address, ": it must be host:port of this machine, and free"));
  }
  mg_set_request_handler(server->context_, kPath, OnRequest, server.get());
  mg_server_port port = {};
  if (mg_get_server_ports(server->context_, 1, &port) != 1) {
    return absl::InternalError("the metrics server does not know its port");
  }
  server->url_ =
      absl::StrCat("http://", address.substr(0, address.rfind(':')), ":", port.port, kPath);
  return server;
}

MetricsServer::~MetricsServer() {
  if (context_ != nullptr) mg_stop(context_);
}

std::string MetricsServer::Text() const {
  return prometheus::TextSerializer().Serialize(MetricsOf(read_()));
}

}  // namespace kvtier
