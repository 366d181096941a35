#include "server/session/inline_bytes.h"

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/session/errors.h"

namespace kvtier {

absl::StatusOr<InlineBytes::Place> InlineBytes::Take(int64_t bytes) {
  // What is refused never counts, not even for a moment: it would refuse others that fit.
  int64_t used = used_->load();
  do {
    if (used > 0 && used + bytes > limit_) {
      return MakeRetryableError(
          absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
          absl::StrCat("rows of ", used, " bytes that came in messages of this session wait for ",
                       "the device, at most ", limit_, "; the step buffers have room of their own"),
          kBusyRetryDelay, {{"limit", absl::StrCat(limit_)}, {"used", absl::StrCat(used)}});
    }
  } while (!used_->compare_exchange_weak(used, used + bytes));
  return Place(used_.get(), [used = used_, bytes](void*) { used->fetch_sub(bytes); });
}

}  // namespace kvtier
