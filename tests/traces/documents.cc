#include "tests/traces/documents.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvtier::traces {

absl::StatusOr<std::vector<client::Trace>> LoadDocuments() {
  std::vector<client::Trace> traces;
  for (const char* name : kDocuments) {
    absl::StatusOr<client::Trace> trace =
        client::ReadTrace(absl::StrCat("tests/traces/", name, ".kvtrace"));
    if (!trace.ok()) return trace.status();
    traces.push_back(*std::move(trace));
  }
  return traces;
}

}  // namespace kvtier::traces
