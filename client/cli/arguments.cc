#include "client/cli/arguments.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace kvtier::cli {
namespace {

constexpr char kDefaultSocket[] = "/run/kvtierd/kvtierd.sock";
constexpr absl::string_view kUnixPrefix = "unix:";

struct CommandName {
  absl::string_view name;
  absl::string_view operands;
  size_t operands_min = 0;
  size_t operands_max = 0;
  absl::string_view help;
};
constexpr CommandName kCommands[] = {
    {"stats", "[CACHE]", 0, 1, "what was counted: node and caches, or groups and sessions of one"},
    {"top", "[CACHE]", 0, 1, "the same, live: hit rates, bandwidth, occupancy"},
    {"caches", "", 0, 0, "caches and their layouts"},
    {"sessions", "", 0, 0, "sessions: who, since when, with which caches"},
    {"requests", "CACHE", 1, 1, "requests of a cache"},
    {"info", "", 0, 0, "version, devices, pool, addresses"},
    {"health", "[liveness|readiness]", 0, 1, "exit code 0 if it is serving; readiness by default"},
    {"drain", "", 0, 0, "nothing new is admitted from now on; sessions are told"},
    {"evict", "SESSION", 1, 1, "end a session as if its worker had died"},
    {"doctor", "", 0, 0, "look at driver, limits, pages, cgroup, NUMA, socket; say what to change"},
    {"completion", "bash", 1, 1, "a completion script: eval \"$(kvtierctl completion bash)\""},
    {"help", "", 0, 0, "this"},
    {"complete", "caches|sessions", 1, 1, ""},  // for the completion script; in no list
};

constexpr absl::string_view kFlags[] = {
    "--socket",  "--address",  "--tls-cert",   "--tls-key", "--tls-ca", "--server-name", "--output",
    "--timeout", "--interval", "--iterations", "--message", "--wait",   "--help"};

const CommandName* FindCommand(absl::string_view name) {
  const auto* const end = std::end(kCommands);
  const auto* const found = std::find_if(
      std::begin(kCommands), end, [&](const CommandName& each) { return each.name == name; });
  return found == end ? nullptr : found;
}

// Of the commands or flags, the one that begins alike: enough for people who type.
std::string Suggestion(absl::string_view name) {
  std::string best;
  size_t best_length = 2;  // fewer letters in common are chance
  const auto consider = [&](absl::string_view candidate) {
    const size_t length = std::min(candidate.size(), name.size());
    size_t common = 0;
    while (common < length && candidate[common] == name[common]) ++common;
    if (common > best_length || (common == 2 && best.empty() && length == 3)) {
      best_length = common;
      best = std::string(candidate);
    }
  };
  for (const CommandName& command : kCommands) consider(command.name);
  for (const absl::string_view flag : kFlags) consider(flag);
  return best.empty() || best == name ? "" : absl::StrCat("; did you mean ", best, "?");
}

absl::Status Error(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " (kvtierctl help)"));
}

absl::Status SetDuration(absl::string_view flag, const std::string& value, absl::Duration minimum,
                         absl::Duration* to) {
  if (absl::ParseDuration(value, to) && *to >= minimum && *to <= absl::Hours(1)) {
    return absl::OkStatus();
  }
  return Error(absl::StrCat(flag, ": '", value, "' is no duration like 5s, ",
                            absl::FormatDuration(minimum), "..1h"));
}

std::string* TlsFlag(absl::string_view flag, TlsOptions* tls) {
  if (flag == "--tls-cert") return &tls->certificate;
  if (flag == "--tls-key") return &tls->key;
  if (flag == "--tls-ca") return &tls->ca;
  return flag == "--server-name" ? &tls->server_name : nullptr;
}

absl::Status SetFlag(absl::string_view flag, const std::string& value, Arguments* to) {
  if (flag == "--socket") {
    to->target = absl::StrCat(kUnixPrefix, absl::StripPrefix(value, kUnixPrefix));
  } else if (flag == "--address") {
    to->target = value;
  } else if (std::string* const file = TlsFlag(flag, &to->tls); file != nullptr) {
    *file = value;
  } else if (flag == "--output") {
    if (value != "table" && value != "json") {
      return Error(absl::StrCat("--output: '", value, "' is neither table nor json"));
    }
    to->output = value == "json" ? Output::kJson : Output::kTable;
  } else if (flag == "--timeout") {
    return SetDuration(flag, value, absl::Milliseconds(1), &to->timeout);
  } else if (flag == "--interval") {
    return SetDuration(flag, value, absl::Milliseconds(100), &to->interval);
  } else if (flag == "--iterations") {
    int number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < 1) {
      return Error(absl::StrCat("--iterations: '", value, "' is no number from 1 on"));
    }
    to->iterations = number;
  } else if (flag == "--wait") {
    return SetDuration(flag, value, absl::ZeroDuration(), &to->wait);
  } else if (flag == "--message") {
    to->message = value;
  } else if (flag == "--root") {
    to->root = value;
  } else {
    return Error(absl::StrCat("there is no flag ", flag, Suggestion(flag)));
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const Arguments& arguments) {
  const TlsOptions& tls = arguments.tls;
  const bool any = !tls.certificate.empty() || !tls.key.empty() || tls.given();
  if (!any && tls.server_name.empty()) return absl::OkStatus();
  if (tls.certificate.empty() || tls.key.empty() || tls.ca.empty()) {
    return Error("TLS takes all of --tls-cert, --tls-key and --tls-ca");
  }
  if (arguments.socket_path().empty()) return absl::OkStatus();
  return Error("TLS is for an --address; over the Unix socket the kernel says who you are");
}

absl::Status CheckCommand(const Arguments& arguments) {
  if (arguments.command.empty()) return Error("a command is missing");
  const CommandName* command = FindCommand(arguments.command);
  if (command == nullptr) {
    return Error(absl::StrCat("there is no command '", arguments.command, "'",
                              Suggestion(arguments.command)));
  }
  const size_t count = arguments.operands.size();
  if (count >= command->operands_min && count <= command->operands_max) return absl::OkStatus();
  return Error(absl::StrCat("usage: kvtierctl ", command->name,
                            command->operands.empty() ? "" : " ", command->operands));
}

}  // namespace

std::string Arguments::socket_path() const {
  return absl::StartsWith(target, kUnixPrefix) ? target.substr(kUnixPrefix.size()) : "";
}

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& arguments,
                                         const std::string& environment_socket) {
  Arguments parsed;
  const absl::string_view socket =
      environment_socket.empty() ? absl::string_view(kDefaultSocket) : environment_socket;
  parsed.target = absl::StrCat(kUnixPrefix, absl::StripPrefix(socket, kUnixPrefix));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& text = arguments[i];
    if (text == "--help" || text == "-h") {
      parsed.command = "help";
      parsed.operands.clear();
      return parsed;
    }
    if (!absl::StartsWith(text, "-")) {
      if (parsed.command.empty()) {
        parsed.command = text;
      } else {
        parsed.operands.push_back(text);
      }
      continue;
    }
    const size_t equals = text.find('=');
    const std::string flag = text.substr(0, equals);
    std::string value;
    if (equals != std::string::npos) {
      value = text.substr(equals + 1);
    } else if (std::find(std::begin(kFlags), std::end(kFlags), flag) == std::end(kFlags)) {
      return Error(absl::StrCat("there is no flag ", flag, Suggestion(flag)));
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return Error(absl::StrCat(flag, " needs a value"));
    }
    if (absl::Status status = SetFlag(flag, value, &parsed); !status.ok()) return status;
  }
  if (absl::Status status = CheckTls(parsed); !status.ok()) return status;
  if (absl::Status status = CheckCommand(parsed); !status.ok()) return status;
  return parsed;
}

std::string Usage() {
  std::string text =
      "Looks at a kvtierd, and ends what has to end.\n\n"
      "  kvtierctl [FLAG...] COMMAND [OPERAND]\n\n"
      "Commands:\n";
  for (const CommandName& command : kCommands) {
    if (command.help.empty()) continue;
    const std::string left =
        absl::StrCat(command.name, command.operands.empty() ? "" : " ", command.operands);
    absl::StrAppend(&text, "  ", left, std::string(left.size() < 30 ? 30 - left.size() : 1, ' '),
                    command.help, "\n");
  }
  absl::StrAppend(
      &text,
      "\nFlags:\n"
      "  --socket=PATH        the daemon's Unix socket; else KVTIERD_SOCKET, else\n"
      "                       ",
      kDefaultSocket,
      "\n"
      "  --address=HOST:PORT  an address of its --tcp instead\n"
      "  --tls-cert=FILE, --tls-key=FILE, --tls-ca=FILE\n"
      "                       with mutual TLS: who you are, and whose certificates the\n"
      "                       daemon may have; PEM\n"
      "  --server-name=NAME   what its certificate is for; else HOST\n"
      "  --output=table|json  for people, or for programs\n"
      "  --timeout=5s         how long to wait for an answer\n"
      "  --interval=1s        top: between two looks\n"
      "  --iterations=N       top: end after N looks\n"
      "  --message=TEXT       drain, evict: for the sessions and the log\n"
      "  --wait=0s            drain: how long to wait for the sessions to leave\n\n"
      "Exit codes:\n"
      "  0  done\n"
      "  1  doctor: something is to be changed; health: it is not serving;\n"
      "     drain --wait: sessions are still open\n"
      "  2  the command line is wrong\n"
      "  3  the daemon cannot be reached, or does not answer in time\n"
      "  4  the daemon refused; the reason is one of errors.proto\n");
  return text;
}

std::string BashCompletion() {
  std::vector<absl::string_view> commands;
  for (const CommandName& command : kCommands) {
    if (!command.help.empty()) commands.push_back(command.name);
  }
  return absl::StrCat(
      "_kvtierctl() {\n"
      "  local words=() at=() command= word i\n"
      "  # Bash has cut the line at each = and : as well.\n"
      "  for ((i = 1; i <= COMP_CWORD; i++)); do\n"
      "    if [[ ${COMP_WORDS[i]} == [=:] || ${COMP_WORDS[i - 1]} == [=:] ]]; then\n"
      "      words[-1]+=${COMP_WORDS[i]}\n"
      "    else\n"
      "      words+=(\"${COMP_WORDS[i]}\")\n"
      "    fi\n"
      "  done\n"
      "  word=${words[-1]}\n"
      "  for i in \"${words[@]:0:${#words[@]}-1}\"; do\n"
      "    case $i in\n"
      "      --socket=* | --address=* | --tls-*=* | --server-name=*) at+=(\"$i\") ;;\n"
      "      -*) ;;\n"
      "      *) command=${command:-$i} ;;\n"
      "    esac\n"
      "  done\n"
      "  if [[ $word == --*=* ]]; then\n"
      "    COMPREPLY=()\n"
      "  elif [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W '",
      absl::StrJoin(kFlags, "= "),
      "' -- \"$word\"))\n"
      "  elif [[ -z $command ]]; then\n"
      "    COMPREPLY=($(compgen -W '",
      absl::StrJoin(commands, " "),
      "' -- \"$word\"))\n"
      "  else\n"
      "    case $command in\n"
      "      stats | top | requests)\n"
      "        COMPREPLY=($(compgen -W \"$(kvtierctl \"${at[@]}\" complete caches 2>/dev/null)\" "
      "-- \"$word\")) "
      ";;\n"
      "      evict)\n"
      "        COMPREPLY=($(compgen -W \"$(kvtierctl \"${at[@]}\" complete sessions 2>/dev/null)\" "
      "-- "
      "\"$word\")) ;;\n"
      "      health) COMPREPLY=($(compgen -W 'liveness readiness' -- \"$word\")) ;;\n"
      "      completion) COMPREPLY=($(compgen -W 'bash' -- \"$word\")) ;;\n"
      "    esac\n"
      "  fi\n"
      "}\n"
      "complete -F _kvtierctl kvtierctl\n");
}

}  // namespace kvtier::cli
