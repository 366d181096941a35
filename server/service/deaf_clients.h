// Ends sessions and connections of clients that do not read their answers.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/core/clock.h"
#include "server/service/connections.h"
#include "server/service/log.h"
#include "server/service/unread_answers.h"
#include "server/session/node.h"

namespace kvtier {

// For one thread.
class DeafClients {
 public:
  // All must outlive it.
  DeafClients(UnreadAnswers* answers, Connections* connections, Node* node, const Clock* clock,
              const Log* log)
      : answers_(answers), connections_(connections), node_(node), clock_(clock), log_(log) {}

  // To be called every now and then; never waits. The session ends first, so that whoever still
  // reads its events is told why, and a second later the connection.
  void End();

 private:
  UnreadAnswers* const answers_;
  Connections* const connections_;
  Node* const node_;
  const Clock* const clock_;
  const Log* const log_;
  std::vector<std::pair<absl::Time, int64_t>> ending_;  // connections, and when
};

}  // namespace kvtier
