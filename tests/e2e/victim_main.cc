// A worker that attaches to the cache of tests/e2e/fixture.h, holds three blocks and two reserved
// ones, enqueues a swap-in, writes a byte to standard output, and waits to be killed.
#include <unistd.h>

#include <cstdio>

#include "client/cache.h"
#include "client/request.h"
#include "client/session.h"
#include "tests/e2e/fixture.h"

namespace {

absl::Status BeAVictim(const char* socket_path) {
  using namespace kvtier;  // NOLINT(google-build-using-namespace): a main file
  absl::StatusOr<client::Session> session = client::Session::Open({.socket_path = socket_path,
                                                                   .client_name = "victim",
                                                                   .call_timeout = absl::Minutes(1),
                                                                   .wait_for_daemon = true});
  if (!session.ok()) return session.status();
  absl::StatusOr<client::Cache> cache = e2e::AttachTiny(*session, /*block_count=*/32);
  if (!cache.ok()) return cache.status();
  absl::StatusOr<client::Request> request = cache->Admit("r", /*reserve_blocks=*/5);
  if (!request.ok()) return request.status();
  if (auto blocks = request->AssignBlocks(3); !blocks.ok()) return blocks.status();
  e2e::SetStep(&*cache, *request, {0, 1, 2});
  if (auto ticket = cache->SwapInRpc(0, 1); !ticket.ok()) return ticket.status();
  if (write(STDOUT_FILENO, "x", 1) != 1) return absl::UnknownError("nobody reads");
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  alarm(120);  // a test that forgets its victim
  if (argc != 2) return 2;
  std::fprintf(stderr, "%s\n", BeAVictim(argv[1]).ToString().c_str());
  return 1;
}
