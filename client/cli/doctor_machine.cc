// The checks of the machine: driver, limits, pages, cgroup, NUMA.
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/doctor.h"
#include "client/cli/format.h"
#include "client/cli/system_files.h"

namespace kvtier::cli {
namespace {

using Level = Finding::Level;

constexpr char kDriver[] = "/proc/driver/nvidia";
constexpr int64_t kOpenFilesMin = 4096;
// What the daemon needs beside its pool: its own code, gRPC, tables of blocks.
constexpr int64_t kBesidePoolBytes = int64_t{512} << 20;

int64_t PoolBytes(const Patient& patient) {
  return patient.info.has_value() ? patient.info->pool().total_bytes() : 0;
}

// Whether the daemon serves one.
bool HasGpu(const Patient& patient) {
  return patient.info.has_value() &&
         std::any_of(patient.info->devices().begin(), patient.info->devices().end(),
                     [](const v1::DeviceInfo& device) { return device.backend() == "cuda"; });
}

// The daemon's folder in /proc, if it is in our PID namespace; else our own.
std::string ProcessFolder(const Patient& patient, const SystemFiles& files) {
  if (patient.info.has_value()) {
    std::string folder = absl::StrCat("/proc/", patient.info->pid());
    if (files.Read(folder + "/comm") == "kvtierd") return folder;
  }
  return "/proc/self";
}

std::string WhoseProcess(const std::string& folder) {
  return folder == "/proc/self" ? "of this process" : "of kvtierd";
}

struct Gpu {
  std::string bus_id, uuid, model;
};

std::vector<Gpu> GpusOf(const SystemFiles& files) {
  std::vector<Gpu> gpus;
  for (const std::string& id : files.List(absl::StrCat(kDriver, "/gpus"))) {
    const std::string text =
        files.Read(absl::StrCat(kDriver, "/gpus/", id, "/information")).value_or("");
    gpus.push_back({id, LineValue(text, "GPU UUID:"), LineValue(text, "Model:")});
  }
  return gpus;
}

// The soft limit in /proc/PID/limits; nothing if it is unlimited or not there.
std::optional<int64_t> LimitOf(const std::string& limits, absl::string_view name) {
  const std::vector<std::string> words =
      absl::StrSplit(LineValue(limits, name), ' ', absl::SkipEmpty());
  int64_t value = 0;
  if (words.empty() || !absl::SimpleAtoi(words[0], &value)) return std::nullopt;
  return value;
}

// The choice in "always [madvise] never".
std::string ChosenOf(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return text;
  return text.substr(begin + 1, end - begin - 1);
}

bool IsKernelAtLeast(const std::string& release, int major, int minor) {
  const std::vector<std::string> parts = absl::StrSplit(release, absl::MaxSplits('.', 2));
  int found_major = 0, found_minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &found_major)) return false;
  (void)absl::SimpleAtoi(parts[1].substr(0, parts[1].find_first_not_of("0123456789")),
                         &found_minor);
  return std::make_pair(found_major, found_minor) >= std::make_pair(major, minor);
}

// The tightest limit from `group` up to the root, and where it is.
std::optional<std::pair<int64_t, std::string>> TightestLimit(const SystemFiles& files,
                                                             std::string group,
                                                             absl::string_view name) {
  std::optional<std::pair<int64_t, std::string>> tightest;
  while (true) {
    const std::string path = absl::StrCat("/sys/fs/cgroup", group == "/" ? "" : group, "/", name);
    const std::optional<int64_t> limit = files.ReadNumber(path);
    if (limit.has_value() && (!tightest.has_value() || *limit < tightest->first)) {
      tightest = {*limit, path};
    }
    if (group.empty() || group == "/") return tightest;
    group = group.substr(0, group.rfind('/'));
  }
}

}  // namespace

std::vector<Finding> CheckDriver(const Patient& patient) {
  const SystemFiles files(patient.root);
  const std::optional<std::string> version = files.Read(absl::StrCat(kDriver, "/version"));
  if (!version.has_value()) {
    return {{Level::kNote, "driver", "no NVIDIA driver here: only the CPU backend works",
             "for GPUs: load the driver, and in a container use the nvidia runtime class"}};
  }
  std::vector<Finding> findings = {
      {Level::kGood, "driver", LineValue(*version, "NVRM version:"), ""}};
  for (const char* device : {"/dev/nvidiactl", "/dev/nvidia-uvm"}) {
    if (files.Exists(device)) continue;
    findings.push_back({Level::kBad, "driver", absl::StrCat(device, " is not there"),
                        "run nvidia-modprobe -u -c 0, or give the container its GPUs"});
  }
  const std::vector<Gpu> gpus = GpusOf(files);
  if (gpus.empty()) {
    findings.push_back({Level::kBad, "gpus", "the driver sees no GPU", "dmesg says why"});
  }
  for (const Gpu& gpu : gpus) {
    bool served = !patient.info.has_value();
    if (patient.info.has_value()) {
      for (const v1::DeviceInfo& device : patient.info->devices()) {
        served = served || device.uuid() == gpu.uuid;
      }
    }
    findings.push_back({served ? Level::kGood : Level::kWarning, "gpus",
                        absl::StrCat(gpu.uuid, " (", gpu.model, ", ", gpu.bus_id, ")",
                                     served ? "" : ": the daemon does not serve it"),
                        served ? ""
                               : "NVIDIA_VISIBLE_DEVICES=all and --backend=cuda; its log says "
                                 "which backend it chose, and why"});
  }
  return findings;
}

std::vector<Finding> CheckMig(const Patient& patient) {
  const SystemFiles files(patient.root);
  int instances = 0;
  const std::string capabilities = absl::StrCat(kDriver, "/capabilities");
  for (const std::string& gpu : files.List(capabilities)) {
    for (const std::string& entry : files.List(absl::StrCat(capabilities, "/", gpu, "/mig"))) {
      instances += absl::StartsWith(entry, "gi") ? 1 : 0;
    }
  }
  if (instances == 0) return {{Level::kGood, "mig", "no GPU is divided", ""}};
  return {{Level::kWarning, "mig",
           absl::StrCat(instances, " MIG instances: kvtierd serves whole GPUs"),
           "disable MIG on the GPUs that kvtierd serves (nvidia-smi -i N -mig 0)"}};
}

std::vector<Finding> CheckLimits(const Patient& patient) {
  const SystemFiles files(patient.root);
  const std::string folder = ProcessFolder(patient, files);
  const std::string limits = files.Read(folder + "/limits").value_or("");
  std::vector<Finding> findings;
  const std::optional<int64_t> locked = LimitOf(limits, "Max locked memory");
  if (locked.has_value() && *locked < PoolBytes(patient)) {
    // Nothing is pinned for a CPU.
    findings.push_back({HasGpu(patient) ? Level::kWarning : Level::kNote, "memlock",
                        absl::StrCat("locked memory ", WhoseProcess(folder), " is limited to ",
                                     Bytes(*locked), ", the pool has ", Bytes(PoolBytes(patient)),
                                     ": a driver that counts what it pins refuses"),
                        "LimitMEMLOCK=infinity in the unit, or --ulimit memlock=-1"});
  } else {
    findings.push_back({Level::kGood, "memlock",
                        locked.has_value() ? absl::StrCat("limited to ", Bytes(*locked))
                                           : std::string("unlimited"),
                        ""});
  }
  const std::optional<int64_t> open_files = LimitOf(limits, "Max open files");
  if (open_files.has_value() && *open_files < kOpenFilesMin) {
    findings.push_back({Level::kWarning, "open files",
                        absl::StrCat("limit ", WhoseProcess(folder), ": ", *open_files),
                        absl::StrCat("LimitNOFILE=", kOpenFilesMin, " or more")});
  } else {
    findings.push_back(
        {Level::kGood, "open files",
         open_files.has_value() ? absl::StrCat("limit ", *open_files) : std::string("unlimited"),
         ""});
  }
  return findings;
}

std::vector<Finding> CheckPages(const Patient& patient) {
  const SystemFiles files(patient.root);
  const char* const reserved = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const int64_t free = files.ReadNumber(absl::StrCat(reserved, "free_hugepages")).value_or(0);
  const int64_t total = files.ReadNumber(absl::StrCat(reserved, "nr_hugepages")).value_or(0);
  const std::string shmem =
      ChosenOf(files.Read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").value_or("none"));
  const std::string release = files.Read("/proc/sys/kernel/osrelease").value_or("");
  const std::string what = absl::StrCat("2 MiB pages: ", free, " of ", total,
                                        " reserved ones free; shmem_enabled is ", shmem);
  const bool gives =
      shmem == "advise" || shmem == "always" || shmem == "within_size" || shmem == "force";
  const int64_t pool = PoolBytes(patient);
  if (pool > 0 && patient.info->pool().page_bytes() == (int64_t{2} << 20)) {
    return {{Level::kGood, "pages", absl::StrCat("the pool lies in 2 MiB pages (", what, ")"), ""}};
  }
  if (gives || (free > 0 && free * (int64_t{2} << 20) >= pool)) {
    return {{Level::kGood, "pages", what, ""}};
  }
  const std::string advice =
      "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled, or reserve pages "
      "(sysctl vm.nr_hugepages=N) and --huge_pages=require";
  if (shmem != "deny" && shmem != "none" && IsKernelAtLeast(release, 6, 1)) {
    return {{Level::kNote, "pages",
             absl::StrCat(what, ": Linux ", release, " can still collapse small ones"), advice}};
  }
  return {
      {Level::kWarning, "pages",
       absl::StrCat(what, ": the pool gets small pages, of which GPUs gather at half the speed"),
       advice}};
}

std::vector<Finding> CheckSharedMemory(const Patient& patient) {
  struct statvfs status = {};
  if (statvfs(SystemFiles(patient.root).PathOf("/dev/shm").c_str(), &status) != 0) {
    return {{Level::kNote, "shared memory",
             "no /dev/shm; only a pool that is kept there would need it", ""}};
  }
  const auto size = static_cast<int64_t>(status.f_blocks * status.f_frsize);
  return {{Level::kGood, "shared memory",
           absl::StrCat("/dev/shm holds ", Bytes(size),
                        "; memory without a name (memfd) is not limited by it"),
           ""}};
}

std::vector<Finding> CheckCgroup(const Patient& patient) {
  const SystemFiles files(patient.root);
  const std::string folder = ProcessFolder(patient, files);
  const std::string group = LineValue(files.Read(folder + "/cgroup").value_or(""), "0::");
  const auto limit = TightestLimit(files, group, "memory.max");
  if (!limit.has_value()) {
    return {{Level::kGood, "cgroup", absl::StrCat("no memory limit ", WhoseProcess(folder)), ""}};
  }
  const std::string what =
      absl::StrCat("memory ", WhoseProcess(folder), " is limited to ", Bytes(limit->first));
  const int64_t needed = PoolBytes(patient) + kBesidePoolBytes;
  if (PoolBytes(patient) > 0 && limit->first < needed) {
    return {{Level::kBad, "cgroup",
             absl::StrCat(what, " (", limit->second, "), the pool has ", Bytes(PoolBytes(patient)),
                          ": the kernel will kill the daemon"),
             absl::StrCat("a limit of ", Bytes(needed), " or more, or a smaller pool_bytes")}};
  }
  return {{Level::kGood, "cgroup", what, ""}};
}

std::vector<Finding> CheckNuma(const Patient& patient) {
  const SystemFiles files(patient.root);
  std::vector<std::string> nodes;
  for (const std::string& entry : files.List("/sys/devices/system/node")) {
    int number = 0;
    if (absl::StartsWith(entry, "node") && absl::SimpleAtoi(entry.substr(4), &number)) {
      nodes.push_back(entry.substr(4));
    }
  }
  if (nodes.size() < 2) return {{Level::kGood, "numa", "one node", ""}};
  std::vector<std::string> places;
  for (const Gpu& gpu : GpusOf(files)) {
    const std::string node =
        files.Read(absl::StrCat("/sys/bus/pci/devices/", gpu.bus_id, "/numa_node")).value_or("-1");
    places.push_back(absl::StrCat(gpu.uuid, " on ", node));
  }
  return {{Level::kNote, "numa",
           absl::StrCat("nodes ", absl::StrJoin(nodes, ","), "; ",
                        places.empty() ? "no GPU" : absl::StrJoin(places, ", ")),
           "bind the pool to the node of the GPUs with numa_node, or to none if they are on "
           "several"}};
}

}  // namespace kvtier::cli
