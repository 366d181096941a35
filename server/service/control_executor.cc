#include "server/service/control_executor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// What one queued verb takes, about: an assignment waits for the steps in front of it.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::unique_ptr<ControlExecutor>> ControlExecutor::Start(const Options& options) {
  std::unique_ptr<ControlExecutor> executor(new ControlExecutor(options));
  for (int32_t i = 0; i < options.threads; ++i) {
    absl::StatusOr<Thread> thread =
        Thread::Start(absl::StrCat("kv-control-", i), [raw = executor.get()] { raw->Run(); });
    if (!thread.ok()) return thread.status();
    executor->threads_.push_back(*std::move(thread));
  }
  return executor;
}

ControlExecutor::~ControlExecutor() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();
  while (RunOne()) {
  }
}

absl::Status ControlExecutor::Submit(const Account& account, std::function<void()> work) {
  MutexLock lock(&mutex_);
  KVTIER_RETURN_IF_ERROR(CheckRoom(account));
  queue_.push_back({account, std::move(work)});
  Count(account, /*running=*/0, /*queued=*/1);
  changed_.NotifyOne();
  return absl::OkStatus();
}

absl::Status ControlExecutor::CheckRoom(const Account& account) const {
  const auto refuse = [&](int32_t limit, absl::string_view whose) {
    return MakeRetryableError(
        absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
        absl::StrCat(limit, " calls that may wait", whose, " are queued already, for ",
                     options_.threads, " threads; try again"),
        kRetryDelay, {{"limit", absl::StrCat(limit)}});
  };
  if (queue_.size() >= static_cast<size_t>(options_.queue_max)) {
    return refuse(options_.queue_max, "");
  }
  const int32_t of_caller = ShareOfCaller(options_.queue_max);
  if (UseOf(of_caller_, account.caller).queued >= of_caller) {
    return refuse(of_caller, " of this process");
  }
  const int32_t of_cache = ShareOfCache(options_.queue_max);
  if (UseOf(of_cache_, account.cache).queued >= of_cache) {
    return refuse(of_cache, " for this cache");
  }
  const int32_t of_lasting = ShareOfLasting(options_.queue_max);
  if (account.may_last && lasting_.queued >= of_lasting) {
    return refuse(of_lasting, " for minutes");
  }
  return absl::OkStatus();
}

bool ControlExecutor::MayRun(const Account& account) const {
  return (!account.may_last || lasting_.running < ShareOfLasting(options_.threads)) &&
         UseOf(of_cache_, account.cache).running < ShareOfCache(options_.threads) &&
         UseOf(of_caller_, account.caller).running < ShareOfCaller(options_.threads);
}

ControlExecutor::Use ControlExecutor::UseOf(const Uses& uses, const std::string& name) {
  const auto found = uses.find(name);
  return found == uses.end() ? Use() : found->second;
}

void ControlExecutor::Count(const Account& account, int32_t running, int32_t queued) {
  const auto count = [&](Uses& uses, const std::string& name) {
    const auto use = uses.try_emplace(name).first;
    use->second.running += running;
    use->second.queued += queued;
    if (use->second.running == 0 && use->second.queued == 0) uses.erase(use);
  };
  count(of_cache_, account.cache);
  count(of_caller_, account.caller);
  if (!account.may_last) return;
  lasting_.running += running;
  lasting_.queued += queued;
}

bool ControlExecutor::TakeLocked(Queued* taken) {
  auto queued = queue_.begin();
  while (queued != queue_.end() && !MayRun(queued->account)) ++queued;
  if (queued == queue_.end()) return false;
  Count(queued->account, /*running=*/1, /*queued=*/-1);
  *taken = std::move(*queued);
  queue_.erase(queued);
  return true;
}

void ControlExecutor::Run() {
  for (;;) {
    Queued taken;
    {
      MutexLock lock(&mutex_);
      while (!TakeLocked(&taken)) {
        // What is left, if anything, a thread takes that now runs work of its cache or its caller.
        if (stopping_) return;
        changed_.Wait(&mutex_);
      }
    }
    // What waited for this to end comes next, here.
    RunTaken(std::move(taken));
  }
}

void ControlExecutor::RunTaken(Queued taken) {
  taken.work();
  taken.work = nullptr;
  MutexLock lock(&mutex_);
  Count(taken.account, /*running=*/-1, /*queued=*/0);
}

bool ControlExecutor::RunOne() {
  Queued taken;
  {
    MutexLock lock(&mutex_);
    if (!TakeLocked(&taken)) return false;
  }
  RunTaken(std::move(taken));
  return true;
}

}  // namespace kvtier
