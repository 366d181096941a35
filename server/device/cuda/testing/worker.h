// What a worker process does with the memory and the events of a daemon, in CUDA alone.
#pragma once

#include <string>
#include <vector>

namespace kvtier::testing {

// Roles, each with the device's memory in descriptor 3, or under an IPC handle (see worker.cc):
//
//   read BYTES fd|HANDLE OFFSET   prints the first and the last byte, and writes 0x77 to the last
//   order EVENT                   prints its own event; on a line, orders its work by EVENT
//   hang                          prints an event that comes after 30 s of work
//
// Returns the exit status: 0, or 1 after a line about what failed.
int RunWorker(const std::vector<std::string>& arguments);

}  // namespace kvtier::testing
