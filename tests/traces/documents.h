// The recorded traces of this folder, and what a replay of all of them must count.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/trace/trace_file.h"

namespace kvtier::traces {

inline constexpr std::array<const char*, 6> kDocuments = {"novel",         "essay",  "c_source",
                                                          "python_source", "manual", "java_source"};

// How the totals below were counted; README.md says the rest.
inline constexpr int32_t kTopK = 256;
inline constexpr int32_t kHotSize = 512;
inline constexpr int32_t kLayers = 4;
inline constexpr int32_t kSteps = 256;
inline constexpr int32_t kPositions = 16384;

inline constexpr int64_t kHits = 1354638;
inline constexpr int64_t kMisses = 212235;
inline constexpr int64_t kNewest = 5991;

// The same under EvictionPolicy::kAged.
inline constexpr int64_t kAgedHits = 1375258;
inline constexpr int64_t kAgedMisses = 191615;
// Misses that had stayed on the device, where each step's newest row is backed up after it.
inline constexpr int64_t kAgedKept = 5943;

// One trace a document, in the order of kDocuments, from the runfiles of a test.
absl::StatusOr<std::vector<client::Trace>> LoadDocuments();

}  // namespace kvtier::traces
