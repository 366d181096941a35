// Moving the bytes of rows. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cpu/executor.h"
#include "kernels/cpu/workspace.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// One row from one place to another. The layouts have the same format, value_bytes and
// scale_bytes; strides and pages may differ.
void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row, const uint8_t* from,
             const RowLayout& from_layout, int32_t from_row);

// All lists of `call` on all layers, in parallel: host rows, or kept rows, to hot rows. No two
// entries may have the same hot row. Returns the bytes that came from the host pool.
int64_t CopyLists(const LayerView* layers, int32_t layer_count, const CallScratch& call,
                  Executor& executor);

// Into how many parts to cut `items` equal pieces of work so that every thread has some.
int32_t PartsPerItem(int64_t items, const Executor& executor);

}  // namespace kvtier::cpu
