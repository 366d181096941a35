#include "server/device/make_backend.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/cuda/cuda_backend.h"

namespace kvtier {
namespace {

std::string NamesOf(const DeviceBackend& backend) {
  return absl::StrJoin(backend.Devices(), ", ", [](std::string* text, const DeviceInfo& device) {
    absl::StrAppend(text, device.name, " (", device.uuid, ")");
  });
}

}  // namespace

absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view name, const BackendOptions& options) {
  if (name != "auto" && name != "cpu" && name != "cuda") {
    return FieldInvalid("backend", name, "auto, cpu or cuda");
  }
  ChosenBackend chosen;
  std::string why_cpu = "as asked for";
  if (name != "cpu") {
    absl::StatusOr<std::unique_ptr<DeviceBackend>> cuda =
        MakeCudaBackend({.transport = options.gpu_memory});
    if (cuda.ok()) {
      chosen.backend = *std::move(cuda);
      chosen.note = absl::StrCat("cuda: ", NamesOf(*chosen.backend));
      return chosen;
    }
    if (name == "cuda") return cuda.status();
    why_cpu = std::string(cuda.status().message());
  }
  KVTIER_ASSIGN_OR_RETURN(chosen.backend, MakeCpuBackend({.threads = options.cpu_threads}));
  chosen.note = absl::StrCat("cpu: ", why_cpu);
  return chosen;
}

}  // namespace kvtier
