// 2 MiB pages for a test: reserved and mounted as root can, and given back.
#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

namespace kvtier::testing {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

class HugePages {
 public:
  // `count` of them, to be had through files in `folder`. If that cannot be, why_not() says why.
  HugePages(std::string folder, int64_t count) : folder_(std::move(folder)) {
    before_ = Read("/proc/sys/vm/nr_hugepages");
    std::ofstream("/proc/sys/vm/nr_hugepages") << before_ + count;
    const int64_t now = Read("/proc/sys/vm/nr_hugepages");
    if (now < before_ + count) {
      why_not_ = "the kernel reserves " + std::to_string(now - before_) + " of " +
                 std::to_string(count) + " pages";
    } else if (mount("none", folder_.c_str(), "hugetlbfs", 0, "pagesize=2M,mode=0700") != 0) {
      why_not_ = std::string("mount: ") + std::strerror(errno);
    } else {
      mounted_ = true;
    }
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  // What is mapped still goes with its mappings.
  ~HugePages() {
    if (mounted_) (void)umount2(folder_.c_str(), MNT_DETACH);
    std::ofstream("/proc/sys/vm/nr_hugepages") << before_;
  }

  const std::string& why_not() const { return why_not_; }

 private:
  static int64_t Read(const char* path) {
    int64_t value = 0;
    std::ifstream(path) >> value;
    return value;
  }

  const std::string folder_;
  int64_t before_ = 0;
  bool mounted_ = false;
  std::string why_not_;
};

}  // namespace kvtier::testing
