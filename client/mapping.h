// Memory that this process has mapped. Internal to client/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// Redeems a token for a descriptor, which the caller closes.
using RedeemToken = std::function<absl::StatusOr<int>(const std::string& token)>;

// One mapping; its end unmaps.
class Mapping {
 public:
  virtual ~Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // An address for the kernels of the device that mapped it.
  uint8_t* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 protected:
  Mapping(uint8_t* data, int64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

 private:
  uint8_t* const data_;
  const int64_t size_bytes_;
};

// Maps host memory: a sealed file behind the token of `segment`. Nothing that the segment says is
// trusted. Errors: INTERNAL / INTERNAL for a descriptor that is not what the segment says,
// RESOURCE_EXHAUSTED where the system has no room, and those of `redeem`.
absl::StatusOr<std::unique_ptr<Mapping>> MapFile(const v1::Segment& segment,
                                                 const RedeemToken& redeem);

// UNIMPLEMENTED / NOT_IMPLEMENTED: `segment` is passed in a way that is not for this device.
absl::Status TransportError(const v1::Segment& segment);

}  // namespace kvtier::client
