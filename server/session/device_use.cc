#include "server/session/device_use.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvtier {

void StreamUse::Given(absl::Time now) {
  if (waiting_.fetch_add(1) == 0) since_nanoseconds_.store(absl::ToUnixNanos(now));
}

void StreamUse::Answered(absl::Time now) {
  since_nanoseconds_.store(absl::ToUnixNanos(now));
  waiting_.fetch_sub(1);
}

void StreamUse::SetProgress(std::shared_ptr<Progress> progress) {
  MutexLock lock(&mutex_);
  progress_ = std::move(progress);
}

absl::Duration StreamUse::StandsStill(absl::Time now) {
  if (ended() || waiting_.load() <= 0) return absl::ZeroDuration();
  {
    MutexLock lock(&mutex_);
    // A worker that is stopped for a day is no fault of the device, nor is the moment after it.
    if (progress_ != nullptr && progress_->behind()) {
      since_nanoseconds_.store(absl::ToUnixNanos(now));
    }
  }
  return now - absl::FromUnixNanos(since_nanoseconds_.load());
}

std::shared_ptr<StreamUse> DeviceUse::Add(std::string device_uuid, std::string session_id) {
  auto stream = std::make_shared<StreamUse>(std::move(device_uuid), std::move(session_id));
  MutexLock lock(&mutex_);
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const auto& each) { return each->ended(); }),
                 streams_.end());
  streams_.push_back(stream);
  return stream;
}

std::vector<std::shared_ptr<StreamUse>> DeviceUse::Streams() const {
  MutexLock lock(&mutex_);
  return streams_;
}

int64_t DeviceUse::BytesOf(absl::string_view device_uuid) const {
  int64_t bytes = 0;
  for (const auto& stream : Streams()) {
    if (stream->device_uuid() == device_uuid) bytes += stream->bytes();
  }
  return bytes;
}

std::string DeviceUse::StandsStill(absl::Time now, absl::Duration patience) const {
  absl::Duration longest = patience;
  std::string text;
  for (const auto& stream : Streams()) {
    const absl::Duration duration = stream->StandsStill(now);
    if (duration <= longest) continue;
    longest = duration;
    text = absl::StrCat("device ", stream->device_uuid(), " has ended nothing for more than ",
                        absl::FormatDuration(patience), " of what session ", stream->session_id(),
                        " gave it");
  }
  return text;
}

}  // namespace kvtier
