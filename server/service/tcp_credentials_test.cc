#include "server/service/tcp_credentials.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvtier {
namespace {

using ::testing::HasSubstr;

const TlsFiles kFiles = {.certificate = "/c.crt", .key = "/c.key", .client_ca = "/ca.crt"};

TEST(TcpCredentials, Addresses) {
  for (const char* address :
       {"127.0.0.1:0", "0.0.0.0:7400", "[::1]:7400", "[::]:1", "node-1.example.org:65535"}) {
    EXPECT_TRUE(CheckTcpAddress(address).ok()) << address;
  }
  // The last ones gRPC would take, and listen where nobody is asked who they are.
  for (const char* address : {"", ":7400", "7400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1",
                              "127.0.0.1:65536", "::1:7400", "a b:1", "unix:/tmp/x.sock",
                              "unix-abstract:x:1", "dns:///node:7400", "vsock:2:7400"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckTcpAddress(address))) << address;
  }
}

TEST(TcpCredentials, WhatThisMachineAloneReaches) {
  for (const char* address : {"127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.example.org:1",
                              "localhost.example.org:1", "[::ffff:10.0.0.1]:1", "1270.0.0.1:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(TcpCredentials, OthersTakeTlsOrAWord) {
  EXPECT_TRUE(CheckTcp({}, {}, false).ok());
  EXPECT_TRUE(CheckTcp({"127.0.0.1:1", "[::1]:1"}, {}, false).ok());
  const absl::Status refused = CheckTcp({"127.0.0.1:1", "0.0.0.0:1"}, {}, false);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--allow_insecure_tcp"));
  EXPECT_TRUE(CheckTcp({"0.0.0.0:1"}, {}, true).ok());
  EXPECT_TRUE(CheckTcp({"0.0.0.0:1"}, kFiles, false).ok());
}

TEST(TcpCredentials, AllFilesOrNone) {
  for (std::string TlsFiles::*const missing :
       {&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::client_ca}) {
    TlsFiles files = kFiles;
    (files.*missing).clear();
    EXPECT_TRUE(absl::IsInvalidArgument(CheckTcp({"127.0.0.1:1"}, files, true)));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(TcpCredentials(kFiles).status()));  // not there
}

}  // namespace
}  // namespace kvtier
