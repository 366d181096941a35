#include "tests/gpu/ceilings.h"

#include <algorithm>
#include <cstdio>

#include "tests/gpu/device_array.h"
#include "tests/gpu/graph_timer.h"
#include "tests/gpu/row_copies.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kLaunches = 48;

// GB/s of one copy, the best of five.
double CopyEngine(const PinnedPool& pool, cudaMemcpyKind kind, cudaStream_t stream) {
  const int64_t bytes = std::min(int64_t{1} << 30, pool.size_bytes());
  const DeviceArray<uint8_t> device(bytes);
  void* const to = kind == cudaMemcpyHostToDevice ? device.data() : pool.data();
  const void* const from = kind == cudaMemcpyHostToDevice ? pool.data() : device.data();
  // What is in the pool stays there: it is copied out first.
  RequireCuda(cudaMemcpyAsync(device.data(), pool.data(), static_cast<size_t>(bytes),
                              cudaMemcpyHostToDevice, stream),
              "copy");
  GraphTimer timer(stream, 1, [&](int32_t) {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
  });
  double best = timer.Microseconds();
  for (int i = 0; i < 4; ++i) best = std::min(best, timer.Microseconds());
  return static_cast<double>(bytes) / best / 1e3;
}

double GigabytesPerSecond(int64_t rows, int32_t row_bytes, double us) {
  return static_cast<double>(rows * row_bytes) / us / 1e3;
}

}  // namespace

double CopyEngineToDevice(const PinnedPool& pool, cudaStream_t stream) {
  return CopyEngine(pool, cudaMemcpyHostToDevice, stream);
}

double CopyEngineToHost(const PinnedPool& pool, cudaStream_t stream) {
  return CopyEngine(pool, cudaMemcpyDeviceToHost, stream);
}

double RowCopyMicroseconds(const PinnedPool& pool, const std::vector<int32_t>& slots, int32_t rows,
                           int32_t row_bytes, RowDirection direction, cudaStream_t stream) {
  if (rows == 0) return 0;
  std::vector<int32_t> all(static_cast<size_t>(rows) * kLaunches);
  for (size_t i = 0; i < all.size(); ++i) all[i] = slots[i % slots.size()];
  const DeviceArray<int32_t> device_slots(std::ssize(all));
  device_slots.Write(all, stream);
  const DeviceArray<uint8_t> dense(int64_t{rows} * row_bytes);
  dense.Clear(stream);
  double best = 1e30;
  for (const int32_t blocks : {16, 32, 64, 132, 264}) {
    GraphTimer timer(stream, kLaunches, [&](int32_t launch) {
      const RowCopy copy = {dense.data(), pool.data(), device_slots.data() + int64_t{launch} * rows,
                            rows, row_bytes};
      return direction == RowDirection::kToDevice ? GatherRows(copy, blocks, stream)
                                                  : ScatterRows(copy, blocks, stream);
    });
    std::vector<double> us;
    for (int i = 0; i < 3; ++i) us.push_back(timer.Microseconds() / kLaunches);
    best = std::min(best, Percentile(us, 0.5));
  }
  return best;
}

EmptyKernel MeasureEmptyKernel(cudaStream_t stream) {
  GraphTimer timer(stream, kLaunches, [&](int32_t) { return DoNothing(stream); });
  std::vector<double> us, each;
  for (int i = 0; i < 9; ++i) {
    us.push_back(timer.Microseconds() / kLaunches);
    for (const double value : timer.MicrosecondsOfEach()) each.push_back(value);
  }
  return {Percentile(us, 0.5), Percentile(each, 0.5)};
}

JsonObject MeasureCeilings(const PinnedPool& pool, const std::vector<int32_t>& slots,
                           int32_t row_bytes, cudaStream_t stream) {
  constexpr int32_t kRows = 65536;
  const EmptyKernel empty = MeasureEmptyKernel(stream);
  const double to_device = CopyEngineToDevice(pool, stream);
  const double to_host = CopyEngineToHost(pool, stream);
  const double gather_us =
      RowCopyMicroseconds(pool, slots, kRows, row_bytes, RowDirection::kToDevice, stream);
  const double gather = GigabytesPerSecond(kRows, row_bytes, gather_us);
  std::printf("pool: %s, %.2f GiB, pinned in %.2f s", pool.kind().c_str(),
              static_cast<double>(pool.size_bytes()) / (int64_t{1} << 30), pool.seconds_to_pin());
  const int64_t huge = pool.huge_bytes();
  if (huge >= 0) std::printf(", %lld MiB of it in 2 MiB pages", static_cast<long long>(huge >> 20));
  std::printf(
      "\nceilings: copy engine %.1f GB/s to the device, %.1f to the host; gather of %d "
      "random rows of %d B %.1f GB/s; empty kernel in a graph %.2f us, with an event behind "
      "it %.2f us\n\n",
      to_device, to_host, kRows, row_bytes, gather, empty.us, empty.us_with_event);
  JsonObject ceilings;
  ceilings.Add("pool_kind", pool.kind())
      .Add("pool_bytes", pool.size_bytes())
      .Add("pool_huge_bytes", huge)
      .Add("pool_seconds_to_pin", pool.seconds_to_pin())
      .Add("copy_engine_to_device_gb_per_s", to_device)
      .Add("copy_engine_to_host_gb_per_s", to_host)
      .Add("gather_rows", kRows)
      .Add("gather_us", gather_us)
      .Add("gather_gb_per_s", gather)
      .Add("empty_kernel_us", empty.us)
      .Add("empty_kernel_with_event_us", empty.us_with_event);
  return ceilings;
}

}  // namespace kvtier::testing
