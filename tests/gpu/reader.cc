#include "tests/gpu/reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/demo/worker.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kRowBytes = 656;  // of demo::DemoLayout
constexpr int32_t kBlocks = Reader::kFullBlocks + 1;

int64_t TagOf(int32_t salt, int32_t table_index) { return salt * 100 + table_index + 1; }

}  // namespace

uint8_t Reader::ByteOf(int32_t salt, int32_t position) {
  // Never 0: that is what a row reads as that nobody has written.
  return static_cast<uint8_t>(1 + (position * 37 + position / 251 + salt * 11) % 255);
}

absl::StatusOr<std::unique_ptr<Reader>> Reader::Start(const ReaderOptions& options) {
  absl::StatusOr<client::Session> session =
      client::Session::Open({.socket_path = options.socket_path,
                             .client_name = options.name,
                             .call_timeout = options.call_timeout,
                             .wait_for_daemon = true});
  if (!session.ok()) return session.status();
  absl::StatusOr<client::Cache> cache = client::Cache::Attach(
      *session, {.cache = options.cache,
                 .layout = demo::DemoLayout(1, options.block_count, options.max_requests, kTopK),
                 .wait_for_pool = absl::Minutes(1)});
  if (!cache.ok()) return cache.status();
  absl::StatusOr<client::Request> request = cache->Admit("r", options.adopt ? 0 : kBlocks);
  if (!request.ok()) return request.status();
  std::unique_ptr<Reader> reader(
      new Reader(options, *std::move(session), *std::move(cache), *std::move(request)));
  if (absl::Status status = reader->Prepare(); !status.ok()) return status;
  return reader;
}

Reader::Reader(const ReaderOptions& options, client::Session session, client::Cache cache,
               client::Request request)
    : options_(options),
      session_(std::move(session)),
      cache_(std::move(cache)),
      request_(std::move(request)) {}

absl::Status Reader::Prepare() {
  absl::StatusOr<std::unique_ptr<demo::Device>> device = demo::MakeDevice(&cache_, options_.plane);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  return options_.adopt ? TakeKept() : Write();
}

absl::Status Reader::TakeKept() {
  absl::StatusOr<std::vector<v1::KeptBlock>> kept = cache_.ListKeptBlocks();
  if (!kept.ok()) return kept.status();
  client::SharedBlocks mine;
  for (int32_t i = 0; i < kBlocks; ++i) {
    const auto found = std::find_if(kept->begin(), kept->end(), [&](const v1::KeptBlock& block) {
      return block.tag() == TagOf(options_.salt, i);
    });
    if (found == kept->end()) {
      return absl::NotFoundError(absl::StrCat("block ", i, " of salt ", options_.salt,
                                              " is not among ", kept->size(), " kept blocks"));
    }
    if (i < kFullBlocks && found->rows_backed() != kBlockSize) {
      return absl::DataLossError(absl::StrCat("block ", i, " has ", found->rows_backed(), " rows"));
    }
    if (i == kFullBlocks) appended_ = found->rows_backed();
    mine.block_ids.push_back(found->block_id());
    mine.generations.push_back(found->generation());
  }
  return request_.AssignBlocks(0, mine).status();
}

absl::Status Reader::Write() {
  std::vector<int64_t> tags;
  for (int32_t i = 0; i < kBlocks; ++i) tags.push_back(TagOf(options_.salt, i));
  if (auto blocks = request_.AssignBlocks(kBlocks, {}, tags); !blocks.ok()) return blocks.status();
  demo::PrefillRows rows = {.row_count = kRows};
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<uint8_t>& bytes = rows.layers.emplace_back();
    for (int32_t row = 0; row < kRows; ++row) {
      bytes.insert(bytes.end(), kRowBytes, ByteOf(options_.salt, row));
    }
  }
  for (int32_t row = 0; row < kRows; ++row) rows.slots.push_back(request_.SlotOf(row));
  rows.regions.assign(kRows, request_.region());
  return device_->Prefill(rows);
}

void Reader::SetStep(int32_t region, int32_t first, int32_t count, int32_t modulus) {
  const client::CacheView& view = device_->view();
  view.row_to_request[0] = region;
  view.newest_slot[0] = -1;
  *view.num_real_rows = 1;
  for (int32_t i = 0; i < kTopK; ++i) {
    view.groups[0].topk[i] = i < count ? (first + i) % modulus : -1;
  }
}

int Reader::CountWrong(int32_t first, int32_t count, int32_t modulus, Right right) const {
  const client::GroupView& group = device_->view().groups[0];
  int wrong = 0;
  for (int32_t i = 0; i < count; ++i) {
    const uint8_t written = ByteOf(options_.salt, (first + i) % modulus);
    for (const client::LayerRows& layer : group.layers) {
      const auto row = layer.hot.value(group.hot_indices[i]);
      const auto is = [&](uint8_t value) {
        return !row.empty() &&
               std::all_of(row.begin(), row.end(), [&](uint8_t byte) { return byte == value; });
      };
      const bool is_right =
          (right != Right::kZero && is(written)) || (right != Right::kWritten && is(0));
      wrong += is_right ? 0 : 1;
    }
  }
  return wrong;
}

absl::StatusOr<int> Reader::WrongRows(int32_t first) {
  SetStep(request_.region(), first, kTopK, kRows);
  if (absl::Status status = device_->SwapIn(1); !status.ok()) return status;
  return CountWrong(first, kTopK, kRows, Right::kWritten);
}

absl::StatusOr<int> Reader::AllWrongRows() {
  int all = 0;
  for (int32_t first = 0; first < kRows; first += kTopK) {
    const absl::StatusOr<int> wrong = WrongRows(first);
    if (!wrong.ok()) return wrong;
    all += *wrong;
  }
  return all;
}

absl::StatusOr<int> Reader::WrongAppendedRows() {
  SetStep(request_.region(), kRows, kBlockSize, kRows + kBlockSize);
  if (absl::Status status = device_->SwapIn(1); !status.ok()) return status;
  return CountWrong(kRows, kBlockSize, kRows + kBlockSize, Right::kWrittenOrZero);
}

absl::StatusOr<bool> Reader::FreshBlockIsEmpty() {
  absl::StatusOr<client::Request> fresh = cache_.Admit("fresh");
  if (!fresh.ok()) return fresh.status();
  if (auto blocks = fresh->AssignBlocks(1); !blocks.ok()) return blocks.status();
  SetStep(fresh->region(), 0, kBlockSize, kBlockSize);
  if (absl::Status status = device_->SwapIn(1); !status.ok()) return status;
  return CountWrong(0, kBlockSize, kBlockSize, Right::kZero) == 0;
}

absl::Status Reader::Append(bool backup) {
  const int32_t position = kRows + appended_ % kBlockSize;
  SetStep(request_.region(), position, 1, kRows + kBlockSize);
  const client::CacheView& view = device_->view();
  view.newest_slot[0] = request_.SlotOf(position);
  const client::GroupView& group = view.groups[0];
  for (const client::LayerRows& layer : group.layers) {
    const auto row = layer.hot.value(group.newest_hot_row(request_.region()));
    std::fill(row.begin(), row.end(), ByteOf(options_.salt, position));
  }
  if (absl::Status status = device_->SwapIn(1); !status.ok()) return status;
  if (!backup) return absl::OkStatus();
  if (absl::Status status = device_->Backup(1); !status.ok()) return status;
  ++appended_;
  return absl::OkStatus();
}

Reading::Reading(Reader* reader, bool append)
    : thread_([this, reader, append] { Run(reader, append); }) {}

Reading::~Reading() { Stop().IgnoreError(); }

void Reading::Run(Reader* reader, bool append) {
  for (int64_t step = 0;; ++step) {
    const absl::StatusOr<int> wrong = reader->WrongRows(static_cast<int32_t>(step * 31 % 4096));
    absl::Status status = wrong.status();
    if (status.ok() && append && step % 10 == 9) status = reader->Append();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (wrong.ok()) wrong_rows_ += *wrong;
    if (status.ok()) ++steps_;
    status_ = status;
    ended_ = stop_ || !status.ok();
    changed_.notify_all();
    if (ended_) return;
  }
}

int64_t Reading::steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return steps_;
}

int64_t Reading::wrong_rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return wrong_rows_;
}

bool Reading::WaitForSteps(int64_t count, absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t enough = steps_ + count;
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                    [&] { return ended_ || steps_ >= enough; });
  return steps_ >= enough;
}

bool Reading::WaitUntilEnded(absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return ended_; });
  return ended_;
}

absl::Status Reading::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace kvtier::testing
