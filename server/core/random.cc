#include "server/core/random.h"

#include <errno.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace kvtier {

std::string RandomHex(int bytes) {
  std::string random(std::max(bytes, 0), '\0');
  size_t filled = 0;
  while (filled < random.size()) {
    const ssize_t got = getrandom(random.data() + filled, random.size() - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      std::perror("getrandom");
      std::abort();
    }
    filled += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace kvtier
