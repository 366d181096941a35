// Makes allocations of the C++ runtime fail, one by one, and looks at their sizes. For tests.
//
// Linked into a program it replaces operator new, for all that is in the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier::faults {

// The `nth` (from 1) allocation of any thread from now on fails, once; 0: none does.
void FailAllocation(int64_t nth);
// Did the one that shall fail come? For where the process does not end with it.
bool AllocationFailed();

// The largest allocation since the last call.
size_t TakeLargestAllocation();

}  // namespace kvtier::faults
