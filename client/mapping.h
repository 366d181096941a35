// Memory that this process has mapped. Internal to client/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/data_plane/device.h"

namespace kvtier::client {

// Redeems a token for a descriptor, which the caller closes.
using RedeemToken = std::function<absl::StatusOr<int>(const std::string& token)>;

// One mapping; its end unmaps.
class Mapping {
 public:
  Mapping(std::unique_ptr<data_plane::Mapping> mapping, int64_t size_bytes)
      : mapping_(std::move(mapping)), size_bytes_(size_bytes) {}

  // An address for the kernels of the device that mapped it.
  uint8_t* data() const { return mapping_->data(); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::unique_ptr<data_plane::Mapping> mapping_;
  int64_t size_bytes_;
};

}  // namespace kvtier::client
