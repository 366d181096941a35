#include "client/socket_path.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/error.h"

namespace kvtier::client {
namespace {

// errno of a connection that is made and given up again at once; 0 if somebody accepts.
int TryToConnect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const absl::Cleanup close_fd = [fd] { close(fd); };
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<std::string> CheckSocketPath(absl::string_view field, absl::string_view path) {
  if (!absl::ConsumePrefix(&path, "unix://")) absl::ConsumePrefix(&path, "unix:");
  if (path.empty()) return ArgumentError(field, "empty", "the path of a Unix socket");
  for (const char c : path) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      return ArgumentError(field, absl::StrCat("\"", absl::CEscape(path), "\""),
                           "a path without control characters");
    }
  }
  if (path.size() > kSocketPathBytesMax) {
    return ArgumentError(field, absl::StrCat(path.size(), " bytes long (", path, ")"),
                         absl::StrCat("at most ", kSocketPathBytesMax, " bytes"));
  }
  return std::string(path);
}

std::string DiagnoseSocket(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) == 0 && !S_ISSOCK(file.st_mode)) {
    return absl::StrCat(path, " is no socket: is it the path that kvtierd was given as --socket?");
  }
  const int error = TryToConnect(path);
  switch (error) {
    case 0:
      return absl::StrCat("something accepts connections at ", path,
                          " but does not open a session: is it kvtierd?");
    case ENOENT:
      return absl::StrCat(path, " does not exist: is kvtierd running, with this --socket?");
    case ECONNREFUSED:
      return absl::StrCat("nobody listens at ", path,
                          ": the kvtierd that made it has died; start it again");
    case EACCES:
      return absl::StrCat("user ", geteuid(), " may not connect to ", path,
                          ": see the permissions of the socket and its folder");
    case EAGAIN:
      return absl::StrCat("kvtierd at ", path, " does not accept connections fast enough");
    default:
      return absl::StrCat("cannot connect to ", path, ": ", strerror(error));
  }
}

std::vector<std::string> FdSocketCandidates(const std::string& configured,
                                            const std::string& announced,
                                            const std::string& socket_path) {
  if (!configured.empty()) return {configured};
  std::vector<std::string> candidates = {announced};
  const size_t folder_end = socket_path.rfind('/');
  const std::string folder =
      folder_end == std::string::npos ? "" : socket_path.substr(0, folder_end + 1);
  const std::string sibling = folder + announced.substr(announced.rfind('/') + 1);
  if (sibling != announced) candidates.push_back(sibling);
  return candidates;
}

}  // namespace kvtier::client
