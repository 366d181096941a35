// What a row of the demo holds: bytes that follow from who wrote it, and from nothing stored.
//
// Two rows that differ in anything (tenant, position, layer, or the generation of the block)
// differ in every 8 bytes, so that a row of another place or of an earlier tenant never passes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvtier::demo {

// The seed of a row. `layer` counts through all groups; `generation` is that of its block.
uint64_t RowSeed(uint64_t tenant, int32_t position, int32_t layer, int32_t generation);

// The number of a tenant: of one request of one cache.
uint64_t TenantOf(const std::string& cache, const std::string& request);

// Writes the row of `seed`. The size is a multiple of 8.
void FillRow(uint64_t seed, std::span<uint8_t> row);

// Does `row` hold exactly that?
bool RowIs(uint64_t seed, std::span<const uint8_t> row);

}  // namespace kvtier::demo
