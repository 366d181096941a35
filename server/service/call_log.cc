#include "server/service/call_log.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/support/status.h"
#include "server/core/random.h"

namespace kvtier {
namespace {

constexpr int kIdPrefixBytes = 4;
// A client's name for a call is for the log; a longer one is cut.
constexpr size_t kRequestIdBytesMax = 64;

std::vector<std::string> CodeNames() {
  std::vector<std::string> names;
  for (int code = 0; code < CallLog::kCodeCount; ++code) {
    names.push_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
  return names;
}

bool IsNameByte(char c) { return c > ' ' && c <= '~'; }

}  // namespace

CallLog::CallLog(const Log* log)
    : log_(log), id_prefix_(RandomHex(kIdPrefixBytes)), code_names_(CodeNames()) {
  for (const google::protobuf::FileDescriptor* file :
       {v1::OpenSessionRequest::descriptor()->file(), v1::GetStatsRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        counts_[file->service(s)->method(m)->name()];
      }
    }
  }
}

std::string CallLog::RequestIdOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find(kRequestIdKey);
  if (found != context.client_metadata().end()) {
    const absl::string_view named(found->second.data(), found->second.size());
    std::string kept(named.substr(0, kRequestIdBytesMax));
    kept.erase(std::remove_if(kept.begin(), kept.end(), [](char c) { return !IsNameByte(c); }),
               kept.end());
    if (!kept.empty()) return kept;
  }
  return absl::StrCat(id_prefix_, "-", last_id_.fetch_add(1, std::memory_order_relaxed) + 1);
}

void CallLog::Ended(absl::string_view method, const grpc::Status& status,
                    grpc::CallbackServerContext* context) {
  const auto counts = counts_.find(method);
  const int code = status.error_code();
  if (counts != counts_.end() && code >= 0 && code < kCodeCount) {
    counts->second[code].fetch_add(1, std::memory_order_relaxed);
  }
  if (status.ok()) return;
  const std::string request_id = RequestIdOf(*context);
  context->AddTrailingMetadata(kRequestIdKey, request_id);
  if (!log_->Writes(LogLevel::kDebug)) return;
  const DecodedStatus decoded = FromGrpcStatus(status);
  log_->Event(LogLevel::kDebug, "call_failed",
              {{"request_id", request_id},
               {"method", method},
               {"code", absl::StatusCodeToString(decoded.status.code())},
               {"reason", decoded.details.reason},
               {"peer", context->peer()},
               {"message", std::string(decoded.status.message())}});
}

std::vector<CallLog::Row> CallLog::Rows() const {
  std::vector<Row> rows;
  for (const auto& [method, counts] : counts_) {
    for (int code = 0; code < kCodeCount; ++code) {
      const int64_t count = counts[code].load(std::memory_order_relaxed);
      if (count > 0 || code == 0) rows.push_back({method, code_names_[code], count});
    }
  }
  return rows;
}

}  // namespace kvtier
