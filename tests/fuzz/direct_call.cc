#include "tests/fuzz/direct_call.h"

#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "absl/time/clock.h"
#include "server/service/call_log.h"

// A friend of contexts that gRPC declares for tests of its own: what only a transport sets.
namespace grpc::testing {
class InteropServerContextInspector {
 public:
  static void SetDeadline(ServerContextBase* context, absl::Time deadline) {
    if (deadline == absl::InfiniteFuture()) return;
    context->deadline_ = gpr_time_from_nanos(absl::ToUnixNanos(deadline), GPR_CLOCK_REALTIME);
  }
  static void SetAuthContext(ServerContextBase* context,
                             std::shared_ptr<const AuthContext> auth_context) {
    context->auth_context_ = std::move(auth_context);
  }
  static void AddMetadata(ServerContextBase* context, const char* key, const std::string& value) {
    context->client_metadata_.map()->emplace(key, grpc::string_ref(value.data(), value.size()));
  }
};
}  // namespace grpc::testing

namespace kvtier::fuzz {

namespace {

// Of a client that has shown a certificate with one name, or none at all.
class Certificate final : public grpc::AuthContext {
 public:
  explicit Certificate(std::string name) : name_(std::move(name)) {}

  bool IsPeerAuthenticated() const override { return !name_.empty(); }
  std::vector<grpc::string_ref> GetPeerIdentity() const override {
    return FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME);
  }
  std::string GetPeerIdentityPropertyName() const override { return GRPC_X509_SAN_PROPERTY_NAME; }
  std::vector<grpc::string_ref> FindPropertyValues(const std::string& name) const override {
    if (name_.empty() || name != GRPC_X509_SAN_PROPERTY_NAME) return {};
    return {grpc::string_ref(name_.data(), name_.size())};
  }
  grpc::AuthPropertyIterator begin() const override { return Nothing(); }
  grpc::AuthPropertyIterator end() const override { return Nothing(); }
  void AddProperty(const std::string&, const grpc::string_ref&) override {}
  bool SetPeerIdentityPropertyName(const std::string&) override { return false; }

 private:
  struct Nothing : grpc::AuthPropertyIterator {};
  const std::string name_;
};

}  // namespace

DirectContext::DirectContext(Arrival arrival) : arrival_(std::move(arrival)) {
  using Inspector = grpc::testing::InteropServerContextInspector;
  Inspector::SetDeadline(this, arrival_.deadline);
  Inspector::SetAuthContext(this, std::make_shared<Certificate>(arrival_.certificate));
  if (!arrival_.request_id.empty()) {
    Inspector::AddMetadata(this, kRequestIdKey, arrival_.request_id);
  }
}

void Exchange::Cancel() {
  if (!done_ && reactor_ != nullptr) reactor_->OnCancel();
}

bool Exchange::finished() const {
  MutexLock lock(&mutex_);
  return finished_;
}

bool Exchange::WaitUntilFinished(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  MutexLock lock(&mutex_);
  while (!finished_) {
    if (absl::Now() >= deadline) return false;
    changed_.WaitFor(&mutex_, deadline - absl::Now());
  }
  return true;
}

grpc::Status Exchange::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

void Exchange::SetFinished(grpc::Status status) {
  MutexLock lock(&mutex_);
  if (finished_) {
    fprintf(stderr, "a call is finished twice\n");
    abort();
  }
  finished_ = true;
  status_ = std::move(status);
  changed_.NotifyAll();
}

void Exchange::Unused() {
  fprintf(stderr, "WriteAndFinish is not played\n");
  abort();
}

bool Exchange::ReactToEnd() {
  if (done_) return false;
  done_ = true;
  // Deletes itself, or is the context's own.
  std::exchange(reactor_, nullptr)->OnDone();
  return true;
}

}  // namespace kvtier::fuzz
