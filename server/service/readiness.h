// Whether the daemon takes work, and why not.
#pragma once

#include <atomic>
#include <string>

#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"
#include "server/service/connection_counts.h"
#include "server/service/log.h"
#include "server/session/node.h"

namespace kvtier {

// Thread-safe. Takes no lock that is held while a device is waited for.
class Readiness {
 public:
  // All must outlive it.
  Readiness(const Node* node, const HostPool* pool, const DeviceBackend* backend,
            const ConnectionCounts* connections, const Log* log)
      : node_(node), pool_(pool), backend_(backend), connections_(connections), log_(log) {}

  // Not ready from now on.
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  // Empty: ready.
  std::string Reason() const;
  // What sessions are told that end with the daemon.
  std::string StoppingMessage() const;
  // The same; that a device is lost is logged.
  std::string ReasonLogged() KVTIER_EXCLUDES(mutex_);

 private:
  const Node* const node_;
  const HostPool* const pool_;
  const DeviceBackend* const backend_;
  const ConnectionCounts* const connections_;
  const Log* const log_;
  std::atomic<bool> closed_{false};

  Mutex mutex_;  // rank: a leaf
  std::string last_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
