#include "client/trace/trace_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvtier::client {
namespace {

constexpr char kMagic[] = "KVTTRACE";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr uint32_t kVersion = 1;
constexpr size_t kFieldCount = 6;
constexpr size_t kHeaderBytes = kMagicBytes + kFieldCount * sizeof(uint32_t);
// Positions are int32.
constexpr uint32_t kPositionBitsMax = 31;

// The numbers of the header, in file order.
struct Header {
  uint32_t version = kVersion;
  uint32_t layer_count = 0;
  uint32_t step_count = 0;
  uint32_t top_k = 0;
  uint32_t position_bits = 0;
  uint32_t first_position = 0;

  // At most 2^32 * 31 / 8 bytes: no overflow.
  uint64_t row_bytes() const { return (uint64_t{top_k} * position_bits + 7) / 8; }
};

uint32_t LoadLittleEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}

void AppendLittleEndian(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

// In a trace without positions: 32 bytes must not make a reader walk through 2^62 empty rows.
bool CountsOfNothingFit(uint64_t layer_count, uint64_t step_count) {
  constexpr uint64_t kMax = 1 << 12;
  return layer_count <= kMax && step_count <= kMax && layer_count * step_count <= kMax;
}

absl::Status CheckHeader(const Header& header, uint64_t file_bytes) {
  if (header.version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("trace file of version ", header.version,
                                                   ", and this reader knows version ", kVersion));
  }
  if (header.position_bits < 1 || header.position_bits > kPositionBitsMax) {
    return absl::InvalidArgumentError(absl::StrCat("trace file with ", header.position_bits,
                                                   " bits a position, not 1..", kPositionBitsMax));
  }
  constexpr uint32_t kIntMax = std::numeric_limits<int32_t>::max();
  const uint64_t positions_end = uint64_t{header.first_position} + header.step_count;
  if (header.layer_count > kIntMax || header.step_count > kIntMax || header.top_k > kIntMax ||
      positions_end > kIntMax) {
    return absl::InvalidArgumentError("trace file with a number past int32 in its header");
  }
  // Both factors fit 62 and 34 bits, so divide instead of multiplying.
  const uint64_t rows = uint64_t{header.layer_count} * header.step_count;
  const uint64_t row_bytes = header.row_bytes();
  const uint64_t body_bytes = file_bytes - kHeaderBytes;
  const bool empty = rows == 0 || row_bytes == 0;
  // Then the size of the file bounds neither.
  if (empty && !CountsOfNothingFit(header.layer_count, header.step_count)) {
    return absl::InvalidArgumentError(absl::StrCat("trace file without a position that has ",
                                                   header.layer_count, " layers x ",
                                                   header.step_count, " steps"));
  }
  const bool fits =
      empty ? body_bytes == 0 : body_bytes % row_bytes == 0 && body_bytes / row_bytes == rows;
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace file of ", file_bytes, " bytes: ", header.layer_count, " layers x ",
                     header.step_count, " steps x ", row_bytes, " bytes and a header of ",
                     kHeaderBytes, " do not give that; it is truncated or no trace"));
  }
  return absl::OkStatus();
}

// `count` numbers of `bits` bits each, least significant bit first.
void UnpackRow(const uint8_t* bytes, uint32_t bits, uint32_t count, int32_t* out) {
  uint64_t window = 0;
  uint32_t filled = 0;
  for (uint32_t i = 0; i < count; ++i) {
    while (filled < bits) {
      window |= uint64_t{*bytes++} << filled;
      filled += 8;
    }
    out[i] = static_cast<int32_t>(window & ((uint64_t{1} << bits) - 1));
    window >>= bits;
    filled -= bits;
  }
}

void PackRow(std::span<const int32_t> row, uint32_t bits, std::string* out) {
  uint64_t window = 0;
  uint32_t filled = 0;
  for (const int32_t position : row) {
    window |= uint64_t{static_cast<uint32_t>(position)} << filled;
    filled += bits;
    for (; filled >= 8; filled -= 8, window >>= 8) out->push_back(static_cast<char>(window));
  }
  if (filled > 0) out->push_back(static_cast<char>(window));
}

absl::Status CheckCausal(const Trace& trace) {
  for (int32_t layer = 0; layer < trace.layer_count; ++layer) {
    for (int32_t step = 0; step < trace.step_count; ++step) {
      for (const int32_t position : trace.positions_of(layer, step)) {
        if (position >= 0 && position <= trace.own_position(step)) continue;
        return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ", step ", step,
                                                       " names position ", position,
                                                       ", outside 0..", trace.own_position(step)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagicBytes) != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("not a trace file: it does not begin with the ",
                                                   kHeaderBytes, "-byte header of one (\"", kMagic,
                                                   "\")"));
  }
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  std::array<uint32_t, kFieldCount> fields;
  for (size_t i = 0; i < kFieldCount; ++i) {
    fields[i] = LoadLittleEndian(data + kMagicBytes + i * sizeof(uint32_t));
  }
  const Header header = {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]};
  if (absl::Status status = CheckHeader(header, bytes.size()); !status.ok()) return status;

  Trace trace;
  trace.layer_count = static_cast<int32_t>(header.layer_count);
  trace.step_count = static_cast<int32_t>(header.step_count);
  trace.top_k = static_cast<int32_t>(header.top_k);
  trace.first_position = static_cast<int32_t>(header.first_position);
  if (header.row_bytes() == 0) return trace;
  const uint64_t rows = (bytes.size() - kHeaderBytes) / header.row_bytes();
  trace.positions.resize(rows * header.top_k);
  for (uint64_t row = 0; row < rows; ++row) {
    UnpackRow(data + kHeaderBytes + row * header.row_bytes(), header.position_bits, header.top_k,
              trace.positions.data() + row * header.top_k);
  }
  if (absl::Status status = CheckCausal(trace); !status.ok()) return status;
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot open the trace file ", path, ": ", std::strerror(errno)));
  }
  const int64_t size = file.tellg();
  if (size < 0 || size > kTraceBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("trace file ", path, " has ", size, " bytes; the limit is ", kTraceBytesMax));
  }
  std::string bytes(size, '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), size)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read the trace file ", path));
  }
  absl::StatusOr<Trace> trace = ParseTrace(bytes);
  if (trace.ok()) return trace;
  return absl::Status(trace.status().code(), absl::StrCat(path, ": ", trace.status().message()));
}

absl::StatusOr<std::string> SerializeTrace(const Trace& trace) {
  const bool sizes_fit =
      trace.layer_count >= 0 && trace.step_count >= 0 && trace.top_k >= 0 &&
      trace.first_position >= 0 &&
      trace.first_position <= std::numeric_limits<int32_t>::max() - trace.step_count &&
      static_cast<unsigned __int128>(trace.layer_count) * trace.step_count * trace.top_k ==
          trace.positions.size() &&
      (!trace.positions.empty() || CountsOfNothingFit(trace.layer_count, trace.step_count));
  if (!sizes_fit) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trace of ", trace.layer_count, " x ", trace.step_count, " x ", trace.top_k,
                     " positions from ", trace.first_position, " has ", trace.positions.size()));
  }
  if (absl::Status status = CheckCausal(trace); !status.ok()) return status;
  int32_t largest = 1;
  for (const int32_t position : trace.positions) largest = std::max(largest, position);
  const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(largest)));

  std::string out(kMagic, kMagicBytes);
  for (const uint32_t field :
       {kVersion, static_cast<uint32_t>(trace.layer_count), static_cast<uint32_t>(trace.step_count),
        static_cast<uint32_t>(trace.top_k), bits, static_cast<uint32_t>(trace.first_position)}) {
    AppendLittleEndian(field, &out);
  }
  for (int32_t layer = 0; layer < trace.layer_count; ++layer) {
    for (int32_t step = 0; step < trace.step_count; ++step) {
      PackRow(trace.positions_of(layer, step), bits, &out);
    }
  }
  return out;
}

}  // namespace kvtier::client
