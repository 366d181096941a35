#include "server/service/tcp_credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "server/core/shared_memory.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

constexpr int kPortMax = 65535;
constexpr size_t kPemBytesMax = 1 << 20;

absl::string_view HostOf(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

absl::Status CannotUse(absl::string_view setting, const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(setting, " ", path, ": ", why));
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[4096];
  ssize_t size = fd.valid() ? 1 : -1;
  while (size > 0 && text.size() < kPemBytesMax) {
    size = read(fd.get(), piece, sizeof(piece));
    if (size > 0) text.append(piece, static_cast<size_t>(size));
  }
  if (size < 0) return absl::FailedPreconditionError(strerror(errno));
  return text;
}

// What gRPC would only say to the first client.
absl::Status CheckPem(absl::string_view setting, const std::string& path, absl::string_view kind) {
  const absl::StatusOr<std::string> text = ReadPem(path);
  if (!text.ok()) return CannotUse(setting, path, text.status().message());
  if (absl::StrContains(*text, "-----BEGIN ") && absl::StrContains(*text, kind)) {
    return absl::OkStatus();
  }
  return CannotUse(setting, path, absl::StrCat("it is no PEM file with a ", kind));
}

absl::Status CheckKeyMode(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return CannotUse("tls_key", path, strerror(errno));
  if ((file.st_mode & 0007) == 0) return absl::OkStatus();
  return CannotUse("tls_key", path,
                   absl::StrFormat("its mode %#o lets every user of the machine at it; take that "
                                   "away (chmod o=)",
                                   file.st_mode & 07777));
}

// Certificate, key and authorities for one port. gRPC asks before each handshake whether they have
// changed; if it cannot use what it gets (a renewal that is half done), it goes on with what it
// has.
class WatchedFiles {
 public:
  explicit WatchedFiles(TlsFiles files) : files_(std::move(files)) {}

  // A grpc_ssl_server_certificate_config_callback. gRPC does not call it twice at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<WatchedFiles*>(self)->Read(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status Read(grpc_ssl_server_certificate_config** config) {
    std::vector<std::string> texts;
    for (const std::string* path : {&files_.certificate, &files_.key, &files_.client_ca}) {
      absl::StatusOr<std::string> text = ReadPem(*path);
      if (!text.ok()) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
      texts.push_back(*std::move(text));
    }
    if (texts == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    given_ = std::move(texts);
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = given_[1].c_str(),
                                             .cert_chain = given_[0].c_str()};
    *config = grpc_ssl_server_certificate_config_create(given_[2].c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles files_;
  std::vector<std::string> given_;  // what gRPC got last
};

// gRPC's C++ interface has no credentials that are asked anew; its C interface does.
class FileCredentials final : public grpc::ServerCredentials {
 public:
  explicit FileCredentials(TlsFiles files) : files_(std::move(files)) {}
  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    // For each port its own: what has changed is what that one has not got yet.
    ports_.push_back(std::make_unique<WatchedFiles>(files_));
    grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &WatchedFiles::Fetch,
            ports_.back().get()));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  const TlsFiles files_;
  std::vector<std::unique_ptr<WatchedFiles>> ports_;
};

}  // namespace

absl::Status CheckTcpAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = HostOf(address);
  const bool bracketed = absl::StartsWith(address, "[");
  int port = -1;
  const auto allowed = [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
           (bracketed && c == ':');
  };
  if (colon != absl::string_view::npos && !host.empty() &&
      std::all_of(host.begin(), host.end(), allowed) &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= kPortMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", address, "' is no address: write host:port, an IPv6 address in brackets"));
}

bool IsLoopback(absl::string_view address) {
  const absl::string_view host = HostOf(address);
  const auto of_number = [](char c) {
    return c == '.' || absl::ascii_isdigit(static_cast<unsigned char>(c));
  };
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") && std::all_of(host.begin(), host.end(), of_number));
}

absl::Status CheckTcp(const std::vector<std::string>& addresses, const TlsFiles& files,
                      bool allow_insecure) {
  for (const std::string& address : addresses) KVTIER_RETURN_IF_ERROR(CheckTcpAddress(address));
  if (files.given()) {
    if (!files.certificate.empty() && !files.key.empty() && !files.client_ca.empty()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "TLS takes all of tls_certificate, tls_key and tls_client_ca: clients show certificates, "
        "too");
  }
  for (const std::string& address : addresses) {
    if (allow_insecure || IsLoopback(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        address,
        " can be reached from other machines: give tls_certificate, tls_key and tls_client_ca, or "
        "let anybody there look at this daemon with --allow_insecure_tcp"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TcpCredentials(const TlsFiles& files) {
  if (!files.given()) return grpc::InsecureServerCredentials();
  KVTIER_RETURN_IF_ERROR(CheckPem("tls_certificate", files.certificate, "CERTIFICATE"));
  KVTIER_RETURN_IF_ERROR(CheckPem("tls_key", files.key, "PRIVATE KEY"));
  KVTIER_RETURN_IF_ERROR(CheckKeyMode(files.key));
  KVTIER_RETURN_IF_ERROR(CheckPem("tls_client_ca", files.client_ca, "CERTIFICATE"));
  return std::make_shared<FileCredentials>(files);
}

bool CanServe(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc::ServerBuilder builder;
  // In no file system and on no network, and at no moment taken by another.
  builder.AddListeningPort(
      absl::StrCat("unix-abstract:kvtierd-tls-", getpid(), "-", absl::ToUnixNanos(absl::Now())),
      credentials);
  return builder.BuildAndStart() != nullptr;
}

}  // namespace kvtier
