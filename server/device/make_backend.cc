#include "server/device/make_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_backend.h"

namespace kvtier {

absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view name, int cpu_threads) {
  if (name == "cuda") {
    return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                     "the CUDA backend is not part of this build; use --backend=cpu",
                     {{"feature", "--backend=cuda"}});
  }
  if (name != "auto" && name != "cpu") return FieldInvalid("backend", name, "auto, cpu or cuda");
  ChosenBackend chosen;
  KVTIER_ASSIGN_OR_RETURN(chosen.backend, MakeCpuBackend({.threads = cpu_threads}));
  chosen.note = name == "cpu" ? "cpu: as asked for" : "cpu: this build has no CUDA backend";
  return chosen;
}

}  // namespace kvtier
