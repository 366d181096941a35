// Who is there, as a Node notes it. Guarded by the node's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "server/core/cache_layout.h"
#include "server/session/attachment.h"
#include "server/session/cache.h"
#include "server/session/observer_queue.h"
#include "server/session/types.h"

namespace kvtier {

// A cache by name, or its place while it is being made.
struct CacheSlot {
  std::string name;
  CacheLayout layout;
  std::shared_ptr<Cache> cache;  // null: being made
  int users = 0;                 // sessions attached, or about to be
  int reaping = 0;               // attachments that left and hold memory still
  bool ended = false;            // not in caches_ any more
  bool freeing = false;          // somebody frees the ended cache
  bool adopted = false;          // an earlier daemon made it
  CacheAccess access;            // constant
  int64_t pool_bytes = 0;        // that count as its owner's
  Retention retention;
  // It stays so long without sessions: as an adopted one, and as of the last one's leaving.
  absl::Time reattach_until = absl::InfinitePast(), expires = absl::InfinitePast();
};

// A session's place in a cache.
struct AttachmentSlot {
  std::shared_ptr<CacheSlot> cache_slot;
  std::string device_uuid;
  std::shared_ptr<Attachment> attachment;  // null: being made
};

struct NodeSession {
  std::string client_name;
  Peer peer;
  absl::Time opened_time;
  int64_t number = 0;  // rises with each session
  std::shared_ptr<ObserverQueue> observer;
  absl::btree_map<std::string, AttachmentSlot> attachments;  // by cache
};

struct Place {  // what AttachCache found or took
  std::shared_ptr<Attachment> existing;
  std::shared_ptr<CacheSlot> slot;
  bool creator = false;  // has to make the cache
};

struct Leaving {
  std::shared_ptr<Attachment> attachment;
  std::shared_ptr<CacheSlot> slot;
  bool cache_ended = false;
};

}  // namespace kvtier
