// The daemon's own backends, broken on demand, in the place of its choice of one: what a GPU that
// is lost, or that never comes to an end, does to the real process.
//
// Commands are lines of the FIFO that KVTIER_TEST_BREAK names:
//   illegal   on a GPU a kernel of the daemon's writes where nothing is; else the device is lost
//   wedge     on a GPU a kernel keeps every multiprocessor; else the next swap-in stands still
//   release   that ends
// How many have been obeyed is in the file of that name with ".obeyed" behind it.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "server/core/status_macros.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/device/fault/fault_backend.h"
#include "server/device/make_backend.h"
#if defined(KVTIER_TEST_CUDA)
#include "server/device/cuda/cuda_backend.h"
#include "tests/gpu/broken_gpu.h"
#endif

namespace kvtier {
namespace {

class Breaker {
 public:
  virtual ~Breaker() = default;
  virtual void MakeIllegalAccess() = 0;
  virtual void Wedge() = 0;
  virtual void Release() = 0;
};

class BrokenCpu final : public Breaker {
 public:
  explicit BrokenCpu(std::shared_ptr<FaultPlan> plan) : plan_(std::move(plan)) {}
  void MakeIllegalAccess() override {
    plan_->LoseDevice("an illegal memory access was encountered");
  }
  void Wedge() override { held_ = plan_->DelayNth(DeviceOperation::kSwapIn, 1); }
  void Release() override { held_.reset(); }

 private:
  const std::shared_ptr<FaultPlan> plan_;
  std::unique_ptr<Delay> held_;
};

#if defined(KVTIER_TEST_CUDA)
class BrokenGpu final : public Breaker {
 public:
  void MakeIllegalAccess() override { Report(testing::WriteNowhere()); }
  void Wedge() override { Report(greedy_.Start()); }
  void Release() override { greedy_.LetGo(); }

 private:
  static void Report(const char* error) {
    if (error != nullptr) std::fprintf(stderr, "broken_kvtierd: %s\n", error);
  }

  testing::GreedyKernel greedy_;
};
#endif

void Obey(const std::string& path, Breaker* breaker) {
  // Open for writing, too: so it does not end when a writer closes.
  std::fstream commands(path, std::ios::in | std::ios::out);
  std::string line;
  for (int obeyed = 1; std::getline(commands, line); ++obeyed) {
    if (line == "illegal") breaker->MakeIllegalAccess();
    if (line == "wedge") breaker->Wedge();
    if (line == "release") breaker->Release();
    std::ofstream(path + ".obeyed") << obeyed;
  }
}

void ObeyFromNowOn(std::unique_ptr<Breaker> breaker) {
  const char* const path = std::getenv("KVTIER_TEST_BREAK");
  if (path == nullptr) return;
  // It ends with the process.
  std::thread([path = std::string(path), breaker = std::move(breaker)] {
    Obey(path, breaker.get());
  }).detach();
}

}  // namespace

absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view name, const BackendOptions& options) {
#if defined(KVTIER_TEST_CUDA)
  if (name == "cuda") {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> gpu,
                            MakeCudaBackend({.transport = options.gpu_memory}));
    ObeyFromNowOn(std::make_unique<BrokenGpu>());
    return ChosenBackend{.backend = std::move(gpu), .note = "cuda, broken on demand"};
  }
#endif
  if (name != "cpu") return absl::FailedPreconditionError("cpu, or cuda where it was built in");
  const auto plan = std::make_shared<FaultPlan>();
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBackend> cpu,
                          MakeCpuBackend({.threads = options.cpu_threads}));
  ObeyFromNowOn(std::make_unique<BrokenCpu>(plan));
  return ChosenBackend{.backend = MakeFaultInjectingBackend(std::move(cpu), plan),
                       .note = "cpu, broken on demand"};
}

}  // namespace kvtier
