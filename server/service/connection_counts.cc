#include "server/service/connection_counts.h"

namespace kvtier {

absl::string_view RefusalName(Refusal why) {
  switch (why) {
    case Refusal::kNotAllowed:
      return "not_allowed";
    case Refusal::kSilent:
      return "silent";
    case Refusal::kCrowded:
      return "crowded";
    case Refusal::kNotHttp2:
      return "not_http2";
    case Refusal::kFull:
      return "full";
    case Refusal::kProcessFull:
      return "process_full";
    case Refusal::kAddressFull:
      return "address_full";
    case Refusal::kNoDescriptors:
      return "no_descriptors";
    case Refusal::kUnread:
      break;
  }
  return "unread";
}

}  // namespace kvtier
