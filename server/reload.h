// What SIGHUP does: reads the configuration again and applies what can change in a running daemon.
#pragma once

#include <functional>
#include <utility>

#include "server/config/command_line.h"
#include "server/config/setting_values.h"
#include "server/options.h"
#include "server/service/log.h"

namespace kvtier {

// For one thread.
class Reloader {
 public:
  // `values` hold now; `apply` makes those of reloadable settings hold. `log` must outlive it.
  Reloader(CommandSources sources, SettingValues values, const Log* log,
           std::function<void(const DaemonOptions&)> apply)
      : sources_(std::move(sources)),
        values_(std::move(values)),
        log_(log),
        apply_(std::move(apply)) {}

  // All or nothing: a configuration with a mistake changes nothing, and the log says which. What
  // changed and needs a restart is named there.
  void Reload();

  // What holds now.
  const SettingValues& values() const { return values_; }

 private:
  const CommandSources sources_;
  SettingValues values_;
  const Log* const log_;
  const std::function<void(const DaemonOptions&)> apply_;
};

}  // namespace kvtier
