#include "client/session.h"

#include <utility>

#include "client/connection.h"

namespace kvtier::client {

absl::StatusOr<Session> Session::Open(SessionOptions options) {
  absl::StatusOr<std::shared_ptr<Connection>> connection = Connection::Open(std::move(options));
  if (!connection.ok()) return connection.status();
  return Session(*std::move(connection));
}

Session::Session(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

Session::Session(Session&& other) noexcept = default;

Session& Session::operator=(Session&& other) noexcept {
  if (this == &other) return *this;
  if (connection_ != nullptr) connection_->Close();
  connection_ = std::move(other.connection_);
  return *this;
}

Session::~Session() {
  if (connection_ != nullptr) connection_->Close();
}

const std::string& Session::id() const { return connection_->opened().session_id(); }
const std::string& Session::boot_id() const { return connection_->opened().boot_id(); }
const std::string& Session::daemon_version() const {
  return connection_->opened().daemon_version();
}
const std::vector<v1::Device>& Session::devices() const { return connection_->devices(); }
SessionState Session::state() const { return connection_->state(); }
absl::Status Session::status() const { return connection_->CheckCall(); }

bool Session::WaitUntilEnded(absl::Duration timeout) const {
  return connection_->WaitUntilEnded(timeout);
}

}  // namespace kvtier::client
