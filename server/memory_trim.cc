#include "server/memory_trim.h"

#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdint>

namespace kvtier {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(5);
// What is given back in between is taken again by page faults, some thousands: nothing in a minute.
constexpr absl::Duration kTrimInterval = absl::Minutes(1);
// So much is left until then: a daemon under load uses it again at once.
constexpr int64_t kFreeBytesMax = int64_t{32} << 20;

// Resident and not shared with others: heaps, stacks, and what libraries have mapped for
// themselves.
int64_t OwnBytes() {
  FILE* file = fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long long size = 0, resident = 0, shared = 0;
  const int fields = fscanf(file, "%lld %lld %lld", &size, &resident, &shared);
  fclose(file);
  return fields == 3 ? (resident - shared) * sysconf(_SC_PAGESIZE) : 0;
}

// Is so much free, and resident still, that it should not wait?
bool IsMuchFree() {
  const struct mallinfo2 heap = mallinfo2();
  const auto freed = static_cast<int64_t>(heap.fordblks);
  const auto used = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  // What was given back counts as freed still; that it is not resident shows in the second.
  return freed > kFreeBytesMax && OwnBytes() - used > kFreeBytesMax;
}

}  // namespace

void LimitHeaps() {
  // Cannot fail for a number above 0.
  mallopt(M_ARENA_MAX, kHeapsMax);
}

void MemoryTrimmer::Tick(absl::Time now) {
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (now < next_trim_ && !IsMuchFree()) return;
  next_trim_ = now + kTrimInterval;
  malloc_trim(0);
}

}  // namespace kvtier
