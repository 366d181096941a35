// What a device stream promises: order, completion, errors.

#include <atomic>
#include <numeric>
#include <thread>

#include "server/core/error.h"
#include "server/core/mutex.h"
#include "server/core/thread.h"
#include "server/device/conformance/conformance.h"

namespace kvtier {
namespace {

// Stands in a stream's way until it is opened. The suite may block in a Notify; users may not.
class Gate {
 public:
  std::function<void(absl::Status)> Callback() {
    return [this](const absl::Status&) {
      MutexLock lock(&mutex_);
      while (!open_) changed_.Wait(&mutex_);
    };
  }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;  // rank: leaf
  CondVar changed_;
  bool open_ KVTIER_GUARDED_BY(mutex_) = false;
};

TEST_P(BackendConformance, WorkIsDoneInItsOrder) {
  auto stream = Stream();
  auto memory = Allocate(1024);
  std::vector<std::vector<uint8_t>> seen(100, std::vector<uint8_t>(1024));
  for (int i = 0; i < 100; ++i) {
    Fill(*stream, *memory, std::vector<uint8_t>(1024, static_cast<uint8_t>(i)));
    ASSERT_TRUE(stream->Read(seen[i].data(), memory->data(), 1024).ok());
  }
  ASSERT_TRUE(Drain(*stream).ok());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(seen[i], std::vector<uint8_t>(1024, static_cast<uint8_t>(i)));
  }
}

TEST_P(BackendConformance, EnqueueingWaitsForNothingAndCopiesItsArguments) {
  Gate gate;
  auto stream = Stream();
  auto memory = Allocate(64);
  ASSERT_TRUE(stream->Notify(gate.Callback()).ok());
  std::vector<uint8_t> source(64, 1);
  ASSERT_TRUE(stream->Write(memory->data(), source.data(), 64).ok());
  source.assign(64, 2);  // the stream has not moved yet
  std::vector<uint8_t> seen(64, 0);
  ASSERT_TRUE(stream->Read(seen.data(), memory->data(), 64).ok());
  gate.Open();
  ASSERT_TRUE(Drain(*stream).ok());
  EXPECT_EQ(seen, std::vector<uint8_t>(64, 1));
}

// Where the device is the host; a GPU never says that it may.
TEST_P(BackendConformance, AStreamWithoutWorkIsWorkedOnHere) {
  auto stream = Stream();
  auto memory = Allocate(64);
  if (!stream->BeginHere()) GTEST_SKIP() << "works on threads of its own alone";
  const std::vector<uint8_t> source(64, 1);
  std::vector<uint8_t> seen(64, 0);
  ASSERT_TRUE(stream->Write(memory->data(), source.data(), 64).ok());
  ASSERT_TRUE(stream->Read(seen.data(), memory->data(), 64).ok());
  EXPECT_EQ(seen, source) << "without a Notify";
  EXPECT_FALSE(stream->BeginHere()) << "somebody is at it";
  // What another thread enqueues comes afterwards, and in its order.
  std::vector<uint8_t> later(64, 0);
  std::thread other([&] {
    const std::vector<uint8_t> twos(64, 2);
    ASSERT_TRUE(stream->Write(memory->data(), twos.data(), 64).ok());
    ASSERT_TRUE(stream->Read(later.data(), memory->data(), 64).ok());
  });
  other.join();
  ASSERT_TRUE(stream->Read(seen.data(), memory->data(), 64).ok());
  EXPECT_EQ(seen, source);
  stream->EndHere();
  ASSERT_TRUE(Drain(*stream).ok());
  EXPECT_EQ(later, std::vector<uint8_t>(64, 2));
}

TEST_P(BackendConformance, NobodyPassesWhatWasEnqueued) {
  Gate gate;
  auto stream = Stream();
  auto memory = Allocate(64);
  Fill(*stream, *memory, std::vector<uint8_t>(64, 1));
  ASSERT_TRUE(stream->Notify(gate.Callback()).ok());
  EXPECT_FALSE(stream->BeginHere());
  gate.Open();
  ASSERT_TRUE(Drain(*stream).ok());
}

TEST_P(BackendConformance, EveryNotifyRunsOnceInOrderOnAnotherThread) {
  auto stream = Stream();
  std::vector<int> order;  // of the backend's thread until Drain returns
  std::atomic<bool> here = false;
  const std::thread::id caller = std::this_thread::get_id();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(stream
                    ->Notify([&, i](const absl::Status& status) {
                      EXPECT_TRUE(status.ok()) << status;
                      order.push_back(i);
                      if (std::this_thread::get_id() == caller) here = true;
                    })
                    .ok());
  }
  ASSERT_TRUE(Drain(*stream).ok());
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_FALSE(here);
}

TEST_P(BackendConformance, DestructionWaitsForEverythingEnqueued) {
  auto memory = Allocate(1 << 20);
  std::vector<uint8_t> seen(1 << 20);
  bool notified = false;
  {
    auto stream = Stream();
    for (uint8_t i = 0; i < 20; ++i) {
      Fill(*stream, *memory, std::vector<uint8_t>(1 << 20, i));
    }
    ASSERT_TRUE(stream->Read(seen.data(), memory->data(), 1 << 20).ok());
    ASSERT_TRUE(stream->Notify([&](const absl::Status&) { notified = true; }).ok());
  }
  EXPECT_TRUE(notified);
  EXPECT_EQ(seen, std::vector<uint8_t>(1 << 20, 19));
}

TEST_P(BackendConformance, StreamsMoveWithoutEachOther) {
  Gate gate;
  auto slow = Stream();
  auto fast = Stream();
  auto memory = Allocate(64);
  ASSERT_TRUE(slow->Notify(gate.Callback()).ok());
  Fill(*fast, *memory, std::vector<uint8_t>(64, 5));
  EXPECT_EQ(Contents(*fast, *memory), std::vector<uint8_t>(64, 5));
  gate.Open();
  EXPECT_TRUE(Drain(*slow).ok());
}

TEST_P(BackendConformance, ManyThreadsUseOneStream) {
  auto stream = Stream();
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  for (int i = 0; i < 4; ++i) memories.push_back(Allocate(256));
  std::atomic<int> notified = 0;
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.push_back(*Thread::Start("enqueue", [&, t] {
        for (int i = 0; i < 50; ++i) {
          Fill(*stream, *memories[t], std::vector<uint8_t>(256, static_cast<uint8_t>(i)));
          EXPECT_TRUE(stream->Notify([&](const absl::Status&) { ++notified; }).ok());
        }
        EXPECT_EQ(Contents(*stream, *memories[t]), std::vector<uint8_t>(256, 49));
      }));
    }
  }
  EXPECT_EQ(notified, 200);
}

// Nothing to do is nothing wrong.
TEST_P(BackendConformance, EmptyWork) {
  auto stream = Stream();
  auto memory = Allocate(64);
  uint8_t byte = 0;
  EXPECT_TRUE(stream->Write(memory->data(), &byte, 0).ok());
  EXPECT_TRUE(stream->Read(&byte, memory->data(), 0).ok());
  const GroupShape shape = {.top_k = 0,
                            .hot_size = 1,
                            .region_count = 1,
                            .region_stride = 128,
                            .block_size = 1,
                            .slot_count = 1,
                            .max_blocks = 1};
  EXPECT_TRUE(stream->SwapIn({.shape = shape}).ok());
  EXPECT_TRUE(stream->ReplayPlan({.shape = shape}).ok());
  EXPECT_TRUE(stream->Backup({.shape = shape}).ok());
  EXPECT_TRUE(stream->Invalidate({.shape = shape}).ok());
  EXPECT_TRUE(Drain(*stream).ok());
}

// K18: what cannot be launched is an error of that call, and of no other.
TEST_P(BackendConformance, K18_RefusedCallsDoNotStick) {
  auto stream = Stream();
  auto memory = Allocate(64);
  uint8_t byte = 0;
  const GroupShape shape = {.hot_size = 1, .region_count = 1, .region_stride = 128};
  const std::vector<absl::Status> refused = {
      stream->SwapIn({.shape = shape, .num_rows = -1}),
      stream->SwapIn({.shape = shape, .layer_count = -1}),
      stream->ReplayPlan({.shape = shape, .num_rows = -1}),
      stream->Backup({.shape = shape, .num_rows = -1}),
      stream->Invalidate({.shape = shape, .block_count = -1}),
      stream->Write(memory->data(), &byte, -1),
      stream->Read(&byte, memory->data(), -1),
      stream->SignalWord(nullptr, 1),
      stream->WaitWord(nullptr, 0),
      stream->SignalWord(reinterpret_cast<int32_t*>(memory->data() + 2), 1),
      stream->WaitWord(reinterpret_cast<int32_t*>(memory->data() + 2), 0),
  };
  for (const absl::Status& status : refused) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(ErrorReasonOf(status), "") << status;
  }
  EXPECT_TRUE(Drain(*stream).ok()) << "nothing of it was enqueued";
  Fill(*stream, *memory, std::vector<uint8_t>(64, 3));
  EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(64, 3));
  EXPECT_TRUE(backend_->Health().ok());
}

}  // namespace
}  // namespace kvtier
