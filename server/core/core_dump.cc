#include "server/core/core_dump.h"

#include <sys/mman.h>
#include <sys/prctl.h>

namespace kvtier {

void LeaveOutOfCores(void* data, size_t bytes) {
  if (madvise(data, bytes, MADV_DONTDUMP) == 0) return;
  // Fails for numbers alone that it does not know.
  (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace kvtier
