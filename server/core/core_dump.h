// What a core of the process would hold.
#pragma once

#include <cstddef>

namespace kvtier {

// Users' rows are neither for a core nor would a disk have room for them: the mapping of `bytes` at
// `data`, a page's start, is left out. Where the system cannot do that, the process leaves no core
// at all from now on.
void LeaveOutOfCores(void* data, size_t bytes);

}  // namespace kvtier
