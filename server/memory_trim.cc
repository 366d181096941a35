#include "server/memory_trim.h"

#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdint>

namespace kvtier {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(5);
// So much is left: a daemon under load uses it again at once.
constexpr int64_t kFreeBytesMax = int64_t{64} << 20;

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

}  // namespace

void MemoryTrimmer::Tick(absl::Time now) {
  if (now < next_) return;
  next_ = now + kInterval;
  const struct mallinfo2 heap = mallinfo2();
  const auto freed = static_cast<int64_t>(heap.fordblks);
  const auto used = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  // What was given back counts as freed still; that it is not resident shows in the second.
  if (freed > kFreeBytesMax && OwnBytes() - used > kFreeBytesMax) malloc_trim(0);
}

}  // namespace kvtier
