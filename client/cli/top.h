// The live view: one frame of it, and the loop around it.
#pragma once

#include <string>

#include "client/cli/admin.h"
#include "client/cli/arguments.h"
#include "proto/kvtier/v1/admin.pb.h"

namespace kvtier::cli {

struct Screen {
  int columns = 80;
  int rows = 24;
  bool color = false;
};

class Top {
 public:
  explicit Top(std::string version) : version_(std::move(version)) {}

  // No line is longer than the screen is wide, and there are no more of them than it has rows.
  // Bars of bandwidth are measured by the largest that was seen so far, rounded up.
  std::string Frame(const v1::GetStatsResponse& stats, const Screen& screen);

 private:
  const std::string version_;
  double largest_rate_ = 0;
};

// SIGINT and SIGTERM wait for RunTop, which puts the terminal right. Before any other thread is
// there, gRPC's among them: they inherit it.
void BlockInterrupts();

// Shows frames until it is interrupted or has shown `arguments.iterations` of them; with
// --output=json an object a line. After BlockInterrupts. Returns an exit code; tells `error` why it
// ended.
int RunTop(const Admin& admin, const Arguments& arguments, absl::Status* error);

}  // namespace kvtier::cli
