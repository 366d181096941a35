// Numbers as people read them, and tables of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kvtier::cli {

// "512", "1.5 KiB", "266.8 GiB": three or four digits.
std::string Bytes(int64_t bytes);
// "0 B/s", "12.3 GB/s": decimal, as links are named.
std::string BytesPerSecond(double rate);
// "0", "950", "12.3k", "4.56M".
std::string Rate(double per_second);
// "1,234,567"
std::string Grouped(int64_t number);
// "86.5 %"; "-" where there is none.
std::string Percent(bool present, double fraction);
// "250 us", "2.5 ms", "10 s"
std::string Latency(int64_t microseconds);
// "3d 4h", "2h 5m", "17s"
std::string Age(absl::Duration age);
// "[#####.....]", `width` characters between the brackets; out of range is cut.
std::string Bar(double fraction, int width);

// Columns with a head. Cells of columns whose head begins with '>' are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  std::string Text() const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvtier::cli
