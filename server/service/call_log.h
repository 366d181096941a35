// What came of calls: counted by method and code; those that fail are in the log at level debug.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "server/service/log.h"

namespace kvtier {

// Metadata by which a client names a call, if it wants to; what it is called in the log. A call
// that fails answers with it: with the client's own, or with one of the daemon's.
inline constexpr char kRequestIdKey[] = "x-request-id";

// Thread-safe.
class CallLog {
 public:
  static constexpr int kCodeCount = 17;  // OK..UNAUTHENTICATED

  struct Row {
    absl::string_view method;
    absl::string_view code;  // "RESOURCE_EXHAUSTED"
    int64_t count = 0;
  };

  // `log` must outlive it.
  explicit CallLog(const Log* log);

  // Once for each call, in front of its Finish with that status: `context` is its own. `method` is
  // one of kvtier.v1.
  void Ended(absl::string_view method, const grpc::Status& status,
             grpc::CallbackServerContext* context);

  // Every method with OK, and with every code that it ever ended with; by method and code. Views
  // live as long as this.
  std::vector<Row> Rows() const;

 private:
  using Counts = std::array<std::atomic<int64_t>, kCodeCount>;

  std::string RequestIdOf(const grpc::CallbackServerContext& context);

  const Log* const log_;
  const std::string id_prefix_;
  const std::vector<std::string> code_names_;  // by code
  std::atomic<int64_t> last_id_{0};
  std::map<std::string, Counts, std::less<>> counts_;  // by method; no entry is ever added
};

// One call, to be told what comes of it.
struct CallRecord {
  CallLog* log = nullptr;
  grpc::CallbackServerContext* context = nullptr;
  const char* method = "";  // a literal

  // Once, in front of the call's Finish.
  void End(const grpc::Status& status) const { log->Ended(method, status, context); }
};

}  // namespace kvtier
