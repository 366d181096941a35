// What a worker process does with the memory of a daemon, in CUDA alone.
#pragma once

#include <string>
#include <vector>

namespace kvtier::testing {

// Roles, each followed by "fd" (the memory is descriptor 3) or an IPC handle, and an offset:
//
//   read BYTES            prints the first and the last byte, and writes 0x77 to the last
//   order BYTES ROUNDS    in each round writes 2 * round to the first half and its number, waits
//                         for the daemon's number, and expects 2 * round + 1
//   hang BYTES            would write its number in 30 s
//
// `order` and `hang` print "ready" first; `order` begins after a line. The numbers are the first
// two of the second half: the worker's, the daemon's. Returns the exit status: 0, or 1 after a line
// about what failed.
int RunWorker(const std::vector<std::string>& arguments);

}  // namespace kvtier::testing
