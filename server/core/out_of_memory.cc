#include "server/core/out_of_memory.h"

#include <stdlib.h>
#include <unistd.h>

#include <new>

namespace kvtier {
namespace {

[[noreturn]] void OnOutOfMemory() {
  constexpr char kText[] =
      "level=error event=out_of_memory message=\"an allocation failed: the process ends\"\n";
  static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
  abort();
}

}  // namespace

void AbortWhenOutOfMemory() { std::set_new_handler(OnOutOfMemory); }

}  // namespace kvtier
