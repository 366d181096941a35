// How a backup ends its rows: copies of theirs are dropped, what is kept is noted, what is complete
// is marked.
#pragma once

#include "kernels/cuda/backup_task.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/stats.cuh"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {

inline constexpr int32_t kNoGeneration = INT32_MIN;  // of no block

// What a row's block had before the row was copied.
struct Noted {
  int32_t slot, generation;
};

// Drops the copies that the row's region has of its slot: thread `first` of `threads`.
__device__ inline void DropCopies(const BackupArgs& a, const RowTask& task, int32_t first,
                                  int32_t threads) {
  if (task.slot < 0 || task.region < 0) return;
  int32_t* const owner = a.owner + int64_t{task.region} * a.shape.hot_size;
  for (int32_t start = first; start < a.shape.hot_size; start += kWordsInFlight * threads) {
    int32_t slots[kWordsInFlight];
#pragma unroll
    for (int32_t k = 0; k < kWordsInFlight; ++k) {
      const int32_t h = start + k * threads;
      slots[k] = h < a.shape.hot_size ? LoadRelaxed(owner + h) : kNone;
    }
#pragma unroll
    for (int32_t k = 0; k < kWordsInFlight; ++k) {
      // What another process gave the hot slot meanwhile stays.
      if (slots[k] == task.slot) atomicCAS(owner + start + k * threads, task.slot, kNone);
    }
  }
}

// Where it is noted what the row's kept row, which it has, holds.
__device__ inline int32_t* NoteOf(const BackupArgs& a, const RowTask& task) {
  return a.kept + int64_t{task.region} * a.shape.rows_per_request + task.kept -
         KeptRow(a.shape, task.region, 0);
}

// What the kept rows of the row's region hold from now on. Rows do this side by side: each writes
// the note of its own kept row, and of those for one slot only the last one drops others, which
// hold the slot since earlier backups.
__device__ inline void NoteKept(const BackupArgs& a, const RowTask& task) {
  if (a.kept == nullptr || task.slot < 0 || task.region < 0) return;
  const int32_t rows = a.shape.rows_per_request;
  int32_t* const notes = a.kept + int64_t{task.region} * rows;
  const int32_t rank = task.kept < 0 ? kNone : task.kept - KeptRow(a.shape, task.region, 0);
  if (rank >= 0) StoreRelaxed(notes + rank, task.is_noted ? task.slot : kNone);
  if (rank >= 0 && !task.is_noted) return;
#pragma unroll 1
  for (int32_t r = 0; r < rows; ++r) {
    if (r != rank && LoadRelaxed(notes + r) == task.slot) atomicCAS(notes + r, task.slot, kNone);
  }
}

// Whoever assigns a block raises its generation and then looks for notes. So either that one has
// found the note of the row, or its generation has changed here, and the note goes.
__device__ inline void CheckNote(const BackupArgs& a, const RowTask& task, int32_t generation) {
  if (!task.is_noted) return;
  const int32_t block = task.slot / a.shape.block_size;
  if (LoadRelaxed(a.tracking.block_generation + block) == generation) return;
  atomicCAS(NoteOf(a, task), task.slot, kNone);
}

// Marks one row, by one thread, behind a barrier that follows the row's bytes.
__device__ inline void FinishRow(const BackupArgs& a, const RowTask& task, const Noted& noted) {
  int32_t* const backed_generation = a.tracking.backed_generation;
  const bool is_written = task.source >= 0;  // by this row
  // Slots that a worker changes meanwhile may have shown another one: its row is unbacked.
  const int32_t before = noted.slot == task.slot ? noted.generation : kNoGeneration;
  if (!a.finishes_rows) {
    if (is_written && a.starts_rows && backed_generation != nullptr) {
      StoreRelaxed(backed_generation + task.slot, ~before);
    }
    // Some of its layers hold the new row by now, and further launches may fail.
    if (task.kept >= 0) StoreRelaxed(NoteOf(a, task), kNone);
    return;
  }
  NoteKept(a, task);
  if (!is_written && !task.is_noted) return;
  // Other regions may keep copies of what was there before: nobody shall find them.
  for (int32_t w = 0; is_written && a.directory != nullptr && w < kDirectoryWords; ++w) {
    StoreRelaxed(a.directory + int64_t{kDirectoryWords} * task.slot + w, 0);
  }
  if (backed_generation == nullptr) return;
  const int32_t generation =
      a.starts_rows || !is_written ? before : ~LoadRelaxed(backed_generation + task.slot);
  // Between the bytes, which the barrier has put before this, and their mark.
  __threadfence_system();
  if (is_written) StoreRelaxed(backed_generation + task.slot, generation);
  CheckNote(a, task, generation);
}

__device__ inline void AddCounts(const BackupArgs& a, const int32_t* counts) {
  int64_t value = Lane() < kCounterCount ? counts[Lane()] : 0;
  if (Lane() == static_cast<int32_t>(Counter::kBackedUpBytes)) {
    value = counts[static_cast<int32_t>(Counter::kBackedUpRows)] * a.bytes_per_row;
  }
  AddToStats(a.stats, value);
}

}  // namespace kvtier::cuda
