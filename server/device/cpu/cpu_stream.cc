#include "server/device/cpu/cpu_stream.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

absl::Status CheckCount(absl::string_view field, int64_t count) {
  if (count >= 0) return absl::OkStatus();
  return FieldInvalid(field, absl::StrCat(count), "at least 0");
}

bool IsWord(const void* address) {
  return address != nullptr && reinterpret_cast<uintptr_t>(address) % sizeof(int32_t) == 0;
}

absl::Status CheckWord(const int32_t* word) {
  if (IsWord(word)) return absl::OkStatus();
  return FieldInvalid("word", absl::StrCat(reinterpret_cast<uintptr_t>(word)),
                      "an address that 4 divides");
}

// For who waits for it, with all that was written before it.
void StoreWord(int32_t* word, int32_t value) {
  std::atomic_ref<int32_t>(*word).store(value, std::memory_order_release);
}

// `count` elements, so that the caller's array may go; none where there is no array.
template <typename T>
std::vector<T> Copy(const T* elements, int32_t count) {
  return elements == nullptr ? std::vector<T>() : std::vector<T>(elements, elements + count);
}

template <typename T>
const T* DataOrNull(const std::vector<T>& elements) {
  return elements.empty() ? nullptr : elements.data();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuStream>> CpuStream::Create(
    const std::shared_ptr<OperationQueue>& queue, bool own_thread) {
  std::unique_ptr<CpuStream> stream(new CpuStream(queue));
  if (own_thread) {
    KVTIER_ASSIGN_OR_RETURN(stream->thread_, Thread::Start("kvtier-cpu", [queue] {
                              while (queue->WaitForOperation()) queue->RunRest();
                            }));
  }
  return stream;
}

CpuStream::~CpuStream() {
  queue_->Close();
  thread_.Join();
  queue_->RunRest();
}

absl::Status CpuStream::SwapIn(const SwapInParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  queue_->Push([params, layers = Copy(params.layers, params.layer_count)](cpu::Executor& executor) {
    SwapInParams call = params;
    call.layers = DataOrNull(layers);
    cpu::SwapIn(call, executor);
  });
  return absl::OkStatus();
}

absl::Status CpuStream::ReplayPlan(const ReplayPlanParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  queue_->Push([params, layers = Copy(params.layers, params.layer_count)](cpu::Executor& executor) {
    ReplayPlanParams call = params;
    call.layers = DataOrNull(layers);
    cpu::ReplayPlan(call, executor);
  });
  return absl::OkStatus();
}

absl::Status CpuStream::Backup(const BackupParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("num_rows", params.num_rows));
  KVTIER_RETURN_IF_ERROR(CheckCount("layer_count", params.layer_count));
  queue_->Push(
      [params, layers = Copy(params.layers, params.layer_count),
       sources = Copy(params.sources, params.layer_count),
       source_layouts = Copy(params.source_layouts, params.layer_count)](cpu::Executor& executor) {
        BackupParams call = params;
        call.layers = DataOrNull(layers);
        call.sources = DataOrNull(sources);
        call.source_layouts = DataOrNull(source_layouts);
        cpu::Backup(call, executor);
      });
  return absl::OkStatus();
}

absl::Status CpuStream::Invalidate(const InvalidateParams& params) {
  KVTIER_RETURN_IF_ERROR(CheckCount("block_count", params.block_count));
  if (cpu::Executor* const executor = queue_->here()) {
    cpu::Invalidate(params, *executor);  // what it points to need not be copied
    return absl::OkStatus();
  }
  queue_->Push([params, blocks = Copy(params.blocks, params.block_count)](cpu::Executor& executor) {
    InvalidateParams call = params;
    call.blocks = DataOrNull(blocks);
    cpu::Invalidate(call, executor);
  });
  return absl::OkStatus();
}

absl::Status CpuStream::ResetRegion(const ResetRegionParams& params) {
  queue_->Push([params](cpu::Executor&) { cpu::ResetRegion(params); });
  return absl::OkStatus();
}

absl::Status CpuStream::Write(uint8_t* destination, const void* source, int64_t bytes) {
  KVTIER_RETURN_IF_ERROR(CheckCount("bytes", bytes));
  const auto* first = static_cast<const uint8_t*>(source);
  queue_->Push([destination, data = std::vector<uint8_t>(first, first + bytes)](cpu::Executor&) {
    if (data.size() == sizeof(int32_t) && IsWord(destination)) {
      // Perhaps a number that another device stream waits for.
      int32_t value = 0;
      std::memcpy(&value, data.data(), sizeof(value));
      StoreWord(reinterpret_cast<int32_t*>(destination), value);
    } else if (!data.empty()) {
      std::memcpy(destination, data.data(), data.size());
    }
  });
  return absl::OkStatus();
}

absl::Status CpuStream::Read(void* destination, const uint8_t* source, int64_t bytes) {
  KVTIER_RETURN_IF_ERROR(CheckCount("bytes", bytes));
  const auto read = [destination, source, bytes] {
    if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
  };
  if (queue_->here() != nullptr) {
    read();
  } else {
    queue_->Push([read](cpu::Executor&) { read(); });
  }
  return absl::OkStatus();
}

absl::Status CpuStream::Notify(std::function<void(absl::Status)> done) {
  // No operation of this backend can fail once it is enqueued.
  queue_->Push([done = std::move(done)](cpu::Executor&) { done(absl::OkStatus()); });
  return absl::OkStatus();
}

absl::Status CpuStream::SignalWord(int32_t* word, int32_t value) {
  KVTIER_RETURN_IF_ERROR(CheckWord(word));
  queue_->Push([word, value](cpu::Executor&) { StoreWord(word, value); });
  return absl::OkStatus();
}

absl::Status CpuStream::WaitWord(const int32_t* word, int32_t value) {
  KVTIER_RETURN_IF_ERROR(CheckWord(word));
  queue_->PushWait(word, value);
  return absl::OkStatus();
}

}  // namespace kvtier
