// The pool folder of a simulation, and what it holds at one moment: what a daemon that is killed
// then leaves.
//
// One a process, in memory. Whoever has a file mapped keeps it: images are put back into the files
// that are there.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace kvtier::simulation {

// By name. Of the rows only what caches of a simulation use: the beginning of each 2 MiB.
using PoolImage = std::map<std::string, std::string>;

class PoolDisk {
 public:
  PoolDisk();
  ~PoolDisk();
  PoolDisk(const PoolDisk&) = delete;
  PoolDisk& operator=(const PoolDisk&) = delete;

  // For HostPoolOptions::folder.
  std::string path() const { return root_ + "/pool"; }
  // For HostPoolOptions::system_root: a machine without limits, whose start has a number.
  const std::string& system_root() const { return root_; }
  void StartMachine(int64_t number) const;
  // A pool that is well serves the next program: its pages need not be had again.
  void RemoveCaches() const;
  void RemoveAll() const;
  PoolImage Read() const;
  void PutBack(const PoolImage& image) const;

 private:
  const std::string root_;
};

// The one of this process.
const PoolDisk& Disk();

// Of a cache's file: bytes [0, length) are what its checksum is for, and that itself. 0: none.
struct ManifestOf {
  std::string cache;
  int64_t length = 0;
};
ManifestOf FindManifest(absl::string_view file);

}  // namespace kvtier::simulation
