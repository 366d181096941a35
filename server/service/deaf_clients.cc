#include "server/service/deaf_clients.h"

#include "absl/strings/str_cat.h"

namespace kvtier {
namespace {

// From a session's end to that of its connection.
constexpr absl::Duration kGrace = absl::Seconds(1);

}  // namespace

void DeafClients::End() {
  const absl::Time now = clock_->Now();
  for (const UnreadAnswers::Deaf& deaf : answers_->FindDeaf()) {
    const Peer peer = connections_->peers().FindById(deaf.connection);
    log_->Event(LogLevel::kWarning, "answers_unread",
                {{"session_id", deaf.session_id},
                 {"bytes", deaf.bytes},
                 {"pid", peer.pid},
                 {"uid", peer.uid}});
    connections_->counts().Refused(Refusal::kUnread);
    // NOT_FOUND: it has ended already.
    node_
        ->EvictSession(
            deaf.session_id,
            absl::StrCat("answers of ", deaf.bytes, " bytes were not read for ",
                         absl::FormatDuration(kUnreadMax), "; session and connection end"))
        .IgnoreError();
    ending_.emplace_back(now + kGrace, deaf.connection);
  }
  std::erase_if(ending_, [&](const auto& one) {
    if (one.first > now) return false;
    connections_->peers().End(one.second);
    return true;
  });
}

}  // namespace kvtier
