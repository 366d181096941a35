// Makes allocations of the C++ runtime fail, one by one, looks at their sizes, and counts those
// that live. For tests.
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

// Allocations that were not given back, of all threads.
int64_t LiveAllocations();

}  // namespace kvtier::faults
