// The port of the metrics: whatever is sent there, it is answered by HTTP or cut off, and scrapes
// go on.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/shared_memory.h"
#include "server/service/connection_counts.h"
#include "server/service/metrics_server.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

constexpr int kPatienceMilliseconds = 20'000;  // only a server that hangs takes so long
constexpr int kScrapeEvery = 64;

class World {
 public:
  World()
      : server_(*MetricsServer::Start("127.0.0.1:0", [this] {
          MetricsInput input;
          input.connections = &connections_;
          return input;
        })) {
    signal(SIGPIPE, SIG_IGN);  // as the daemon does
    const absl::string_view url = server_->url();
    const size_t colon = url.rfind(':');
    (void)absl::SimpleAtoi(url.substr(colon + 1, url.rfind('/') - colon - 1), &port_);
  }

  absl::Status Play(absl::string_view input, Played* played) {
    ++played->operations;
    const absl::StatusOr<std::string> answer = Ask(input);
    if (!answer.ok()) return answer.status();
    played->errors += !absl::StartsWith(*answer, "HTTP/1.1 200");
    if (!answer->empty() && !absl::StartsWith(*answer, "HTTP/")) {
      return absl::InternalError(absl::StrCat("no HTTP: ", answer->substr(0, 100)));
    }
    if (played->operations % kScrapeEvery != 0) return absl::OkStatus();
    const absl::StatusOr<std::string> scrape = Ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    if (!scrape.ok()) return scrape.status();
    return absl::StartsWith(*scrape, "HTTP/1.1 200") && absl::StrContains(*scrape, "kvtierd_")
               ? absl::OkStatus()
               : absl::InternalError("a scrape is not answered");
  }

 private:
  // What is answered to `bytes` until the server closes the connection.
  absl::StatusOr<std::string> Ask(absl::string_view bytes) const {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return absl::InternalError("nobody listens any more");
    }
    // It may have closed already.
    (void)send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(socket.get(), SHUT_WR);
    std::string answer;
    char part[4096];
    for (;;) {
      pollfd entry = {.fd = socket.get(), .events = POLLIN};
      if (poll(&entry, 1, kPatienceMilliseconds) != 1) {
        return absl::InternalError("the connection hangs");
      }
      const ssize_t size = recv(socket.get(), part, sizeof(part), 0);
      if (size <= 0) return answer;
      answer.append(part, static_cast<size_t>(size));
    }
  }

  ConnectionCounts connections_;
  const std::unique_ptr<MetricsServer> server_;
  int port_ = 0;
};

absl::Status Play(absl::string_view input, Played* played) {
  static World world;
  return world.Play(input, played);
}

std::string Mutate(absl::string_view input, Random& random) {
  static const std::vector<std::string> dictionary = {"GET ",
                                                      "HEAD ",
                                                      "POST ",
                                                      "OPTIONS ",
                                                      "/metrics",
                                                      "/",
                                                      "/metrics/",
                                                      "//",
                                                      "..",
                                                      "%2e",
                                                      "%00",
                                                      "?a=b",
                                                      " HTTP/1.1\r\n",
                                                      " HTTP/1.0\r\n",
                                                      " HTTP/9.9\r\n",
                                                      "\r\n",
                                                      "\r\n\r\n",
                                                      "\n",
                                                      "Host: a\r\n",
                                                      "Content-Length: ",
                                                      "Content-Length: 99999999999\r\n",
                                                      "Transfer-Encoding: chunked\r\n",
                                                      "Connection: keep-alive\r\n",
                                                      "Upgrade: websocket\r\n",
                                                      "Expect: 100-continue\r\n",
                                                      "Range: bytes=0-\r\n",
                                                      "Authorization: Basic ",
                                                      ":",
                                                      "-1",
                                                      std::string(300, 'a'),
                                                      std::string(1, '\0'),
                                                      "\xff"};
  return MutateBytes(input, random, dictionary);
}

}  // namespace

Target GetTarget() { return {.play = Play, .mutate = Mutate}; }

}  // namespace kvtier::fuzz
