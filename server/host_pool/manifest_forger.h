// Manifests with bytes that nobody wrote and a checksum that fits all the same. For tests.
#pragma once

#include <cstddef>
#include <string>

namespace kvtier {

// Magic number, version, bytes of the body, checksum: a word of 8 bytes each.
inline constexpr size_t kManifestHeaderBytes = 32;

// Writes the checksum of the body that `bytes` begins with; nothing if it says no possible size.
// Apart from the daemon's own on purpose: what is checked is not to check itself.
void ForgeChecksum(std::string* bytes);

}  // namespace kvtier
