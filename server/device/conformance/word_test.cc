// Numbers in memory that order device streams among each other.

#include <atomic>

#include "server/core/shared_memory.h"
#include "server/device/conformance/conformance.h"

namespace kvtier {
namespace {

int32_t* WordIn(const DeviceMemory& memory) { return reinterpret_cast<int32_t*>(memory.data()); }

// Whichever is enqueued first, what waits reads what was written before the signal.
TEST_P(BackendConformance, WordsOrderStreams) {
  auto writer = Stream();
  auto reader = Stream();
  auto words = Allocate(256);
  auto data = Allocate(1 << 20);
  for (int32_t round = 1; round <= 20; ++round) {
    const std::vector<uint8_t> bytes(1 << 20, static_cast<uint8_t>(round));
    std::vector<uint8_t> seen(1 << 20);
    const auto write = [&] {
      Fill(*writer, *data, bytes);
      EXPECT_TRUE(writer->SignalWord(WordIn(*words), round).ok());
    };
    if (round % 2 == 0) write();
    ASSERT_TRUE(reader->WaitWord(WordIn(*words), round).ok());
    ASSERT_TRUE(reader->Read(seen.data(), data->data(), 1 << 20).ok());
    if (round % 2 != 0) write();
    ASSERT_TRUE(Drain(*reader).ok());
    ASSERT_TRUE(Drain(*writer).ok());
    EXPECT_EQ(seen, bytes) << round;
  }
}

// Two streams, each behind the other's last number.
TEST_P(BackendConformance, WordsHandWorkOverAndBack) {
  constexpr int32_t kRounds = 200;
  auto ours = Stream();
  auto theirs = Stream();
  auto words = Allocate(256);
  auto data = Allocate(64);
  int32_t* const our_word = WordIn(*words);
  int32_t* const their_word = our_word + 1;
  std::vector<uint8_t> we_saw(kRounds), they_saw(kRounds);
  for (int32_t round = 1; round <= kRounds; ++round) {
    const auto mine = static_cast<uint8_t>(2 * round), yours = static_cast<uint8_t>(2 * round + 1);
    ASSERT_TRUE(ours->Write(data->data(), &mine, 1).ok());
    ASSERT_TRUE(ours->SignalWord(our_word, round).ok());
    ASSERT_TRUE(ours->WaitWord(their_word, round).ok());
    ASSERT_TRUE(ours->Read(&we_saw[round - 1], data->data(), 1).ok());

    ASSERT_TRUE(theirs->WaitWord(our_word, round).ok());
    ASSERT_TRUE(theirs->Read(&they_saw[round - 1], data->data(), 1).ok());
    ASSERT_TRUE(theirs->Write(data->data(), &yours, 1).ok());
    ASSERT_TRUE(theirs->SignalWord(their_word, round).ok());
  }
  EXPECT_TRUE(Drain(*ours).ok());
  EXPECT_TRUE(Drain(*theirs).ok());
  for (int32_t round = 1; round <= kRounds; ++round) {
    EXPECT_EQ(they_saw[round - 1], static_cast<uint8_t>(2 * round)) << round;
    EXPECT_EQ(we_saw[round - 1], static_cast<uint8_t>(2 * round + 1)) << round;
  }
}

// A wait whose number nobody writes ends by a signal or a Write of another stream.
TEST_P(BackendConformance, D03_AWaitIsReleasedByAnotherStream) {
  auto waiting = Stream();
  auto releasing = Stream();
  auto words = Allocate(256);
  for (const bool by_signal : {false, true}) {
    SCOPED_TRACE(by_signal);
    const int32_t value = by_signal ? 2 : 1;
    std::atomic<bool> passed = false;
    ASSERT_TRUE(waiting->WaitWord(WordIn(*words), value).ok());
    ASSERT_TRUE(waiting->Notify([&](const absl::Status&) { passed = true; }).ok());
    EXPECT_TRUE(Drain(*releasing).ok()) << "the other one moves";
    EXPECT_FALSE(passed);
    ASSERT_TRUE((by_signal ? releasing->SignalWord(WordIn(*words), value)
                           : releasing->Write(words->data(), &value, sizeof(value)))
                    .ok());
    EXPECT_TRUE(Drain(*waiting).ok());
    EXPECT_TRUE(passed);
  }
}

// Or, where the word is in host memory, by a store: whatever the device streams do.
TEST_P(BackendConformance, D03_AWaitOnHostMemoryIsReleasedByTheHost) {
  SharedMemory host = *SharedMemory::Create("words", 4096);
  auto registration = backend_->RegisterHost(host.data(), host.size_bytes());
  ASSERT_TRUE(registration.ok()) << registration.status();
  auto* const words = reinterpret_cast<int32_t*>(host.data());
  auto stream = Stream();
  std::atomic<bool> passed = false;
  ASSERT_TRUE(stream->SignalWord(words + 1, 41).ok());
  EXPECT_TRUE(Drain(*stream).ok());
  EXPECT_EQ(std::atomic_ref<int32_t>(words[1]).load(std::memory_order_acquire), 41);
  ASSERT_TRUE(stream->WaitWord(words, 7).ok());
  ASSERT_TRUE(stream->Notify([&](const absl::Status&) { passed = true; }).ok());
  EXPECT_FALSE(passed);
  std::atomic_ref<int32_t>(words[0]).store(7, std::memory_order_release);
  EXPECT_TRUE(Drain(*stream).ok());
  EXPECT_TRUE(passed);
}

// The numbers go on behind the largest.
TEST_P(BackendConformance, WordsAreCyclic) {
  auto stream = Stream();
  auto other = Stream();
  auto words = Allocate(256);
  for (const auto& [now, value] :
       {std::pair{0, 0}, {5, 4}, {INT32_MIN, INT32_MAX}, {INT32_MIN + 9, INT32_MAX - 9}, {0, -1}}) {
    ASSERT_TRUE(stream->SignalWord(WordIn(*words), now).ok());
    ASSERT_TRUE(stream->WaitWord(WordIn(*words), value).ok());
    EXPECT_TRUE(Drain(*stream).ok()) << now << " has passed " << value;
  }
  for (const auto& [now, value] : {std::pair{0, 1}, {INT32_MAX, INT32_MIN}, {-1, 0}}) {
    std::atomic<bool> passed = false;
    ASSERT_TRUE(stream->SignalWord(WordIn(*words), now).ok());
    EXPECT_TRUE(Drain(*stream).ok());
    ASSERT_TRUE(stream->WaitWord(WordIn(*words), value).ok());
    ASSERT_TRUE(stream->Notify([&](const absl::Status&) { passed = true; }).ok());
    EXPECT_TRUE(Drain(*other).ok());
    EXPECT_FALSE(passed) << now << " has not passed " << value;
    ASSERT_TRUE(other->SignalWord(WordIn(*words), value).ok());
    EXPECT_TRUE(Drain(*stream).ok());
  }
}

}  // namespace
}  // namespace kvtier
