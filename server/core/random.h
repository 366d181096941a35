// Unguessable names: session ids, boot ids, tokens.
#pragma once

#include <string>

namespace kvtier {

// 2 * `bytes` lower-case hexadecimal digits from the kernel's generator. Waits for no entropy
// after the machine has booted. Stops the process if the kernel refuses: a token that can be
// guessed is worse than no daemon.
std::string RandomHex(int bytes);

}  // namespace kvtier
