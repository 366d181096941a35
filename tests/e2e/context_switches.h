// How often a process had to wait or to give way: unlike microseconds, nearly the same on a machine
// that others use as well.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace kvtier::e2e {

// Of all its threads, as the kernel counts them: voluntary and involuntary ones. Of threads that
// have ended none.
int64_t ContextSwitchesOf(pid_t pid);

}  // namespace kvtier::e2e
