// What happens where the C++ runtime has no memory left.
#pragma once

namespace kvtier {

// From now on the process ends (SIGABRT, and a line on standard error) where an allocation fails,
// whatever it was doing. As an exception the failure would be caught by gRPC, with a verb half done
// and a lock's owner gone. What others have mapped stays theirs, and the files of a pool's folder
// make sense after any store, so that nothing that was complete is lost. For main() alone: the
// handler is the process's.
//
// What a caller's numbers make large is not left to this: it is checked against the machine's
// headroom first, and refused with RESOURCE_EXHAUSTED.
void AbortWhenOutOfMemory();

}  // namespace kvtier
