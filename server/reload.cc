#include "server/reload.h"

#include "absl/strings/str_join.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

struct Read {
  SettingValues wanted;
  DaemonOptions reloaded;
};

absl::StatusOr<Read> ReadAgain(const CommandSources& sources, const SettingValues& values) {
  KVTIER_ASSIGN_OR_RETURN(const Command command, ReadCommand(sources));
  // What needs a restart has to be right as well: the next start should not be the first to tell.
  KVTIER_RETURN_IF_ERROR(DaemonOptionsOf(command.values).status());
  KVTIER_ASSIGN_OR_RETURN(DaemonOptions options, DaemonOptionsOf(Reloaded(values, command.values)));
  return Read{command.values, std::move(options)};
}

}  // namespace

void Reloader::Reload() {
  const absl::StatusOr<Read> read = ReadAgain(sources_, values_);
  if (!read.ok()) {
    log_->Event(LogLevel::kError, "config_rejected",
                {{"message", std::string(read.status().message())}});
    return;
  }
  const SettingChanges changes = ChangesOf(values_, read->wanted);
  apply_(read->reloaded);
  values_ = Reloaded(values_, read->wanted);
  log_->Event(changes.needs_restart.empty() ? LogLevel::kInfo : LogLevel::kWarning,
              "config_reloaded",
              {{"applied", absl::StrJoin(changes.reloadable, ",")},
               {"needs_restart", absl::StrJoin(changes.needs_restart, ",")}});
}

}  // namespace kvtier
