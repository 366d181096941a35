// GET /metrics, plain HTTP, for Prometheus.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/service/metrics.h"

struct mg_connection;
struct mg_context;

namespace kvtier {

// "host:port", port 0..65535. Errors: INVALID_ARGUMENT.
absl::Status CheckMetricsAddress(absl::string_view address);

// Two threads of its own, so that neither a slow scraper nor many of them keep anybody else
// waiting: what does not send its request within seconds is cut off.
class MetricsServer {
 public:
  // `read` must be callable until this is destroyed. Errors: INVALID_ARGUMENT, FAILED_PRECONDITION
  // where the address cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(absl::string_view address,
                                                              std::function<MetricsInput()> read);
  // Waits for scrapes under way.
  ~MetricsServer();

  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // "http://127.0.0.1:9400/metrics", with the port that it really has.
  const std::string& url() const { return url_; }
  // The exposition: what a scraper gets.
  std::string Text() const;

 private:
  explicit MetricsServer(std::function<MetricsInput()> read) : read_(std::move(read)) {}

  const std::function<MetricsInput()> read_;
  std::string url_;
  mg_context* context_ = nullptr;
};

}  // namespace kvtier
