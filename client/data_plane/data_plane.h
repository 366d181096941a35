// The in-process plane of a worker as a C interface: maps the memory of an attached cache and runs
// the kernels on it, for clients in other languages that speak gRPC by themselves. Standard
// library, kernels and (where it was built with CUDA) the CUDA runtime are all that is in the
// library; the driver is found at run time.
//
//   kvtier_plane* plane;
//   kvtier_open("cpu", "CPU-0", 1, &plane);
//   kvtier_map_file(plane, fd, offset, size, 0, &address);     ... each segment
//   kvtier_set_arrays(plane, &arrays);                         ... where they lie in the segments
//   kvtier_swap_in(plane, 0, num_rows, KVTIER_ALL_LAYERS, 0, 0, NULL, NULL);
//   kvtier_close(plane);
//
// Functions return 0 or a google.rpc.Code; what went wrong is then in kvtier_error_*() of the same
// thread, until its next call fails. What a step does, shapes and words: client/cache.h and
// client/cache_view.h. Sizes and addresses in structs are trusted: whoever fills them in has
// checked them. Thread-safe: verbs of one plane run one after the other.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Rises with every change of this file that users must know of.
#define KVTIER_ABI_VERSION 3
#define KVTIER_ALL_LAYERS (-1)
#define KVTIER_COUNTERS 19

typedef struct kvtier_plane kvtier_plane;

int32_t kvtier_abi_version(void);
// Was the library built with CUDA?
int32_t kvtier_has_cuda(void);

// Of this thread's last failure: a text, a reason of errors.proto or "", and metadata as lines
// "key=value". Valid until the thread's next failure.
const char* kvtier_error_message(void);
const char* kvtier_error_reason(void);
const char* kvtier_error_metadata(void);

// ---- Memory.

// `backend`: "cpu" or "cuda". `uuid`: of the GPU. `threads`: of CPU kernels, 1..64. Errors:
// FAILED_PRECONDITION / DEVICE_UNKNOWN, UNIMPLEMENTED / NOT_IMPLEMENTED.
int32_t kvtier_open(const char* backend, const char* uuid, int32_t threads, kvtier_plane** plane);
// Waits for what this process has enqueued on the device, unmaps everything, frees the plane.
void kvtier_close(kvtier_plane* plane);
// The GPU's number in this process; -1 on a CPU.
int32_t kvtier_device_ordinal(const kvtier_plane* plane);

// How host memory is mapped.
#define KVTIER_MAP_READ_ONLY 1
// A file that is one user's alone and cannot be sealed, as Segment.unsealed says.
#define KVTIER_MAP_UNSEALED 2

// Host memory: a descriptor that is sealed against shrinking (unless `flags` say otherwise) and has
// size bytes from offset on. On a GPU it is registered with the driver as well. `fd` stays the
// caller's.
int32_t kvtier_map_file(kvtier_plane* plane, int32_t fd, int64_t offset_bytes, int64_t size_bytes,
                        int32_t flags, void** address);
// GPU memory by descriptor, all of it; `fd` stays the caller's.
int32_t kvtier_map_gpu_file(kvtier_plane* plane, int32_t fd, int64_t size_bytes, void** address);
// GPU memory by cudaIpcMemHandle_t (64 bytes).
int32_t kvtier_map_gpu_handle(kvtier_plane* plane, const void* handle, int64_t offset_bytes,
                              int64_t size_bytes, void** address);

// ---- Arrays.

// RowLayout of kernels/layout.h, and where the rows are.
typedef struct kvtier_layer {
  void* host;
  void* hot;
  int32_t format;
  int32_t value_bytes;
  int32_t scale_bytes;
  int32_t page_rows;
  int64_t row_stride;
  int64_t page_bytes;
} kvtier_layer;

// index, score, directory and kept may be null.
typedef struct kvtier_group {
  int32_t top_k;
  int32_t hot_size;
  int32_t region_stride;
  int32_t rows_per_request;
  int32_t policy;
  int32_t layer_count;
  const kvtier_layer* layers;
  int32_t* topk;
  int32_t* hot_indices;
  int32_t* miss_mask;
  int32_t* valid_counts;
  int32_t* plan_slots;
  int32_t* plan_hot_rows;
  int32_t* plan_counts;
  int32_t* owner;
  int16_t* lru;
  uint16_t* index;
  uint8_t* score;
  int32_t* directory;
  int32_t* kept;
  int32_t* backed_generation;
  void* stats;
} kvtier_group;

typedef struct kvtier_arrays {
  int32_t region_count;
  int32_t block_size;
  int32_t slot_count;
  int32_t max_blocks;
  int32_t step_rows;
  int32_t group_count;
  const kvtier_group* groups;
  const int32_t* block_table;
  const int32_t* block_generation;
  const int32_t* sequence_lengths;
  const int32_t* row_to_request;
  const int32_t* newest_slot;
  const int32_t* num_real_rows;
} kvtier_arrays;

// uint16 words of one region's index.
int32_t kvtier_region_index_length(int32_t hot_size);
// Bytes of StatsBlock.
int32_t kvtier_stats_bytes(void);

// Copies what `arrays` says and makes scratch memory. Once, before the first verb.
int32_t kvtier_set_arrays(kvtier_plane* plane, const kvtier_arrays* arrays);

// ---- Verbs, as those of client/cache.h. `stream`: a cudaStream_t on a GPU, null on a CPU.

// Arrays to use instead of the step buffers'; each may be null.
typedef struct kvtier_inputs {
  const int32_t* topk;
  const int32_t* row_to_request;
  const int32_t* newest_slot;
  const int32_t* num_real_rows;
  int32_t* hot_indices;
  int32_t* miss_mask;
  int32_t* valid_counts;
} kvtier_inputs;

// Layers [first_layer, first_layer + layer_count); KVTIER_ALL_LAYERS: all, of replay_plan all but
// the leader. `inputs` may be null.
int32_t kvtier_swap_in(kvtier_plane* plane, int32_t group, int32_t num_rows, int32_t first_layer,
                       int32_t layer_count, int32_t use_slots, const kvtier_inputs* inputs,
                       void* stream);
int32_t kvtier_replay_plan(kvtier_plane* plane, int32_t group, int32_t num_rows,
                           int32_t first_layer, int32_t layer_count, const kvtier_inputs* inputs,
                           void* stream);
int32_t kvtier_backup_newest(kvtier_plane* plane, int32_t num_rows, const kvtier_inputs* inputs,
                             void* stream);

// One tensor for each layer of the group; `host` of a source is not used, `hot` has the rows.
int32_t kvtier_backup_rows(kvtier_plane* plane, int32_t group, const kvtier_layer* sources,
                           int32_t source_count, int32_t source_row_count,
                           const int32_t* source_rows, const int32_t* slots, const int32_t* regions,
                           int32_t row_count, void* stream);
// `slots` is host memory.
int32_t kvtier_mark_backed(kvtier_plane* plane, int32_t group, const int32_t* slots, int32_t count);

// KVTIER_COUNTERS numbers of one moment where writers pause.
int32_t kvtier_counts(kvtier_plane* plane, int32_t group, int64_t* counts);
// Small copies from and to hot memory, done when they return.
int32_t kvtier_read(kvtier_plane* plane, void* destination, const void* source, int64_t bytes);
int32_t kvtier_write(kvtier_plane* plane, void* destination, const void* source, int64_t bytes);
// Returns when all that this process has enqueued on the device is done.
int32_t kvtier_finish(kvtier_plane* plane);

// ---- Order with the daemon's device stream, by words in host memory; GPU only.

// Writes `number` to `*word` when all that `stream` has now is done.
int32_t kvtier_signal(kvtier_plane* plane, int32_t* word, int32_t number, void* stream);
// What is enqueued on `stream` from now on comes after *word - number >= 0.
int32_t kvtier_wait(kvtier_plane* plane, const int32_t* word, int32_t number, void* stream);
// Raises `*word` to `number` for those that wait for a daemon that is gone. Takes no lock.
void kvtier_release_wait(int32_t* word, int32_t number);

// ---- DLPack.

// A DLManagedTensor of memory that `owner`, a PyObject, keeps mapped: this takes a reference to it
// and its deleter gives it back. `device_type`, `code`, `bits` as in DLPack; `strides` in elements.
// Called with the GIL held. Null where this process has no Python.
void* kvtier_dlpack(void* address, int32_t device_type, int32_t device_id, int32_t code,
                    int32_t bits, int32_t dimensions, const int64_t* shape, const int64_t* strides,
                    void* owner);
// A PyCapsule_Destructor: deletes what nobody took out of the capsule.
void kvtier_dlpack_capsule_destructor(void* capsule);

#ifdef __cplusplus
}  // extern "C"
#endif
