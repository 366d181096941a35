"""The in-process plane of a cache: its arrays, and the verbs on them.

Shapes: R = max_requests regions, N = step_rows, K = top_k, H = hot_size, S = block_size *
block_count slots of the host pool.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy

from kvtier import native, segments
from kvtier.arrays import Array, Holder
from kvtier.counters import COUNTER_COUNT, Counters, counters_of
from kvtier.errors import FailedPreconditionError, argument_error, malformed_answer
from kvtier.layout import CacheLayout, RowFormat, from_message
from kvtier.tensors import Tensor, check_device, check_index, describe, stream_handle


@dataclass(frozen=True)
class StepInputs:
    """Tensors to use instead of the step buffers' arrays: int32, contiguous, on the cache's device.
    None: the step buffer's. They must live, and stay as they are, until the work is done; a graph
    that captured them reads them at each replay. Make one StepInputs and use it again: what it
    says is checked once for each cache."""
    topk: Any = None            # [N, K] positions (or slots), -1 none
    row_to_request: Any = None  # [N] region of each row, -1 padding
    newest_slot: Any = None     # [N] slot written this step, -1 none
    num_real_rows: Any = None   # [1] rows at or past it are padding
    hot_indices: Any = None     # out [N, K]
    miss_mask: Any = None       # out [N, K]
    valid_counts: Any = None    # out [N]


class LayerRows:
    """The rows of one layer. Row `slot` of `host` belongs to the slot of that number; of `hot`,
    region r has the rows from r * region_stride: hot_size rows under eviction, then its newest,
    then (AGED) as many that the kernels keep.

    Contiguous rows: `host` is uint8 [S, row_bytes], `hot` [R * region_stride, row_bytes]. Split
    pages: both are [pages, page_bytes], and *_values and *_scales are [pages, rows of a page, bytes]
    of the same memory (None for contiguous rows)."""

    def __init__(self, holder: Holder, name: str, buffers: Any, layer: Any, slot_count: int,
                 hot_rows: int, page_rows: int) -> None:
        self.row_bytes: int = layer.row_bytes
        self.struct = native.LayerStruct(format=layer.row_format - 1, value_bytes=layer.row_bytes)
        if layer.row_format == RowFormat.CONTIGUOUS:
            self.struct.row_stride = layer.row_stride_bytes
        else:
            self.struct.scale_bytes, self.struct.page_rows = layer.scale_bytes, page_rows
            self.struct.page_bytes = layer.page_bytes
        self.host, self.host_values, self.host_scales = self._rows(
            holder, name + ".host", buffers.host, "HOST_POOL", slot_count)
        self.hot, self.hot_values, self.hot_scales = self._rows(
            holder, name + ".hot", buffers.hot, "HOT_BUFFER", hot_rows)
        self.struct.host, self.struct.hot = self.host.address, self.hot.address

    def _rows(self, holder: Holder, name: str, buffer: Any, kind: str,
              rows: int) -> Tuple[Array, Optional[Array], Optional[Array]]:
        struct, array = self.struct, holder.memory.array
        if struct.page_rows == 0:
            return array(holder, name, buffer, kind, "uint8", (rows, self.row_bytes),
                         (struct.row_stride, 1), rows * struct.row_stride), None, None
        pages = -(-rows // struct.page_rows)
        whole = array(holder, name, buffer, kind, "uint8", (pages, struct.page_bytes), None,
                      pages * struct.page_bytes)

        def part(offset: int, item: int) -> Array:
            return whole.at(offset, (pages, struct.page_rows, item), (struct.page_bytes, item, 1))
        return whole, part(0, self.row_bytes), part(struct.page_rows * self.row_bytes,
                                                    struct.scale_bytes)


class Group:
    """One layer group: its sizes, layers (leader first) and arrays. Inputs are written by the worker
    before a step, outputs by the step."""

    topk: Array               # in  int32 [N, K] positions (or slots), -1 none
    hot_indices: Array        # out int32 [N, K] absolute hot rows, -1 masked
    miss_mask: Array          # out int32 [N, K] 1 at the first position of a row copied
    valid_counts: Array       # out int32 [N] positions that are not masked
    plan_slots: Array         # out int32 [N, K] host slot of each miss, -1 zeroed
    plan_hot_rows: Array      # out int32 [N, K] its hot row, -1 skipped
    plan_counts: Array        # out int32 [N] misses of the row
    owner: Array              # int32 [R, H] slot owned by each hot slot, -1 none
    lru: Array                # int16 [R, H] hot slots, oldest first
    backed_generation: Array  # int32 [S] generation at which a row was backed up
    stats: Array              # int64: check, then the counters (kernels/counters.h)

    def __init__(self, holder: Holder, index: int, buffers: Any, group: Any,
                 layout: Any) -> None:
        self.index = index
        self.top_k: int = group.top_k
        self.hot_size: int = group.hot_size
        self.region_count: int = layout.max_requests
        self.region_stride: int = segments.region_stride(group, layout)
        name = "groups[%d]." % index
        if buffers.region_stride != self.region_stride:
            raise malformed_answer("%sregion_stride is %d instead of %d" % (
                name, buffers.region_stride, self.region_stride))
        if len(buffers.layers) != len(group.layers):
            raise malformed_answer("arrays of %d layers in group %d of %d" % (
                len(buffers.layers), index, len(group.layers)))
        slot_count = layout.block_size * layout.block_count

        def array(key: str, kind: str, dtype: str, shape: Tuple[int, ...]) -> Array:
            return holder.memory.array(holder, name + key, getattr(buffers, key), kind, dtype, shape)
        rows, wide = (layout.step_rows,), (layout.step_rows, self.top_k)
        shapes = {"topk": wide, "hot_indices": wide, "miss_mask": wide, "valid_counts": rows,
                  "plan_slots": wide, "plan_hot_rows": wide, "plan_counts": rows}
        regions = (self.region_count, self.hot_size)
        arrays = {key: array(key, "STEP", "int32", shape) for key, shape in shapes.items()}
        for key, dtype, shape in [("owner", "int32", regions), ("lru", "int16", regions),
                                  ("stats", "int64", (native.LIBRARY.kvtier_stats_bytes() // 8,))]:
            arrays[key] = array(key, "STATE", dtype, shape)
        arrays["backed_generation"] = array("backed_generation", "BACKED_GENERATION", "int32",
                                            (slot_count,))
        for key, value in arrays.items():
            setattr(self, key, value)
        for key, (dtype, shape) in segments.state_shapes(group, layout).items():
            arrays[key] = array(key, "STATE", dtype, shape)
        hot_rows = self.region_count * self.region_stride
        self.layers: Tuple[LayerRows, ...] = tuple(
            LayerRows(holder, "%slayers[%d]" % (name, i), buffers.layers[i], layer, slot_count,
                      hot_rows, layout.block_size) for i, layer in enumerate(group.layers))
        self._layer_structs = (native.LayerStruct * len(self.layers))(
            *[layer.struct for layer in self.layers])
        self.struct = native.GroupStruct(
            top_k=self.top_k, hot_size=self.hot_size, region_stride=self.region_stride,
            rows_per_request=layout.rows_per_request, policy=layout.eviction_policy - 1,
            layer_count=len(self.layers), layers=self._layer_structs,
            **{key: value.address for key, value in arrays.items()})

    def newest_hot_row(self, region: int, rank: int = 0) -> int:
        """Hot row of the newest token of the `rank`-th row (0..rows_per_request-1) of `region` in a
        step: where the worker writes that token before it is backed up."""
        return region * self.region_stride + self.hot_size + rank


class Arrays:
    """All arrays of an attached cache, and the memory that they lie in."""

    def __init__(self, answer: Any, memory: segments.Memory, redeem: Callable[[str], int]) -> None:
        layout, buffers = answer.layout, answer.buffers
        segments.check_layout(layout)
        if len(buffers.groups) != len(layout.groups):
            raise malformed_answer("arrays of %d groups for a layout of %d" % (
                len(buffers.groups), len(layout.groups)))
        # Before anything is mapped: one segment that cannot be is no reason to map the others.
        for segment in answer.segments:
            memory.check_transport(segment)
        for segment in answer.segments:
            memory.map(segment, redeem)
        holder = self.holder = Holder(memory)
        self.layout = from_message(layout)

        def array(name: str, kind: str, *shape: int, **options: Any) -> Array:
            return memory.array(holder, name, getattr(buffers, name), kind, "int32", shape, **options)
        rows, requests = layout.step_rows, layout.max_requests
        self.block_table = array("block_table", "STATE", requests, layout.max_blocks_per_request)
        self.sequence_lengths = array("sequence_lengths", "STATE", requests)
        self.block_generation = array("block_generation", "BLOCK_GENERATION", layout.block_count,
                                      read_only=True)
        self.row_to_request = array("row_to_request", "STEP", rows)
        self.newest_slot = array("newest_slot", "STEP", rows)
        self.num_real_rows = array("num_real_rows", "STEP", 1)
        self.progress = array("progress", "PROGRESS", 2)
        self.groups = tuple(Group(holder, i, buffers.groups[i], group, layout)
                            for i, group in enumerate(layout.groups))
        group_structs = (native.GroupStruct * len(self.groups))(
            *[group.struct for group in self.groups])
        names = ("block_table", "block_generation", "sequence_lengths", "row_to_request",
                 "newest_slot", "num_real_rows")
        struct = native.ArraysStruct(
            region_count=requests, block_size=layout.block_size,
            slot_count=layout.block_size * layout.block_count,
            max_blocks=layout.max_blocks_per_request, step_rows=rows,
            group_count=len(self.groups), groups=group_structs,
            **{name: getattr(self, name).address for name in names})
        native.check(native.LIBRARY.kvtier_set_arrays(memory.handle, ctypes.byref(struct)))


class LocalPlane:
    """What Cache and AsyncCache do in this process. Thread-safe, but for the memory itself: calls of
    one cache run one after the other, and on a GPU must be in order on the device."""

    name: str

    def __init__(self, arrays: Arrays, check_memory: Callable[[bool], None]) -> None:
        self._arrays_or_none: Optional[Arrays] = arrays
        self._check_memory = check_memory
        self._device_name = arrays.holder.memory.device
        self._inputs: List[Tuple[StepInputs, Any, Any]] = []  # those seen last

    @property
    def _arrays(self) -> Arrays:
        arrays = self._arrays_or_none
        if arrays is None:
            raise FailedPreconditionError("the cache '%s' is closed: attach it again" % self.name)
        return arrays

    @property
    def memory(self) -> segments.Memory:
        """Of the library's plane. Whoever uses its handle has it in a variable meanwhile, so that
        another thread's close does not end it."""
        return self._arrays.holder.memory

    # ---- What there is.

    @property
    def layout(self) -> CacheLayout:
        """Of the daemon, with every default filled in."""
        return self._arrays.layout

    @property
    def tensor_device(self) -> str:
        """Where tensors of the cache must be: "cpu" or "cuda:N"."""
        return self._device_name

    @property
    def groups(self) -> Tuple[Group, ...]:
        """Layer groups, in the layout's order."""
        return self._arrays.groups

    @property
    def block_table(self) -> Array:
        """int32 [R, max_blocks_per_request] block ids, -1 none. The daemon writes it."""
        return self._arrays.block_table

    @property
    def block_generation(self) -> Array:
        """int32 [block_count], raised when a block is assigned. Read-only."""
        return self._arrays.block_generation

    @property
    def sequence_lengths(self) -> Array:
        """in int32 [R] positions that exist, -1 unknown."""
        return self._arrays.sequence_lengths

    @property
    def row_to_request(self) -> Array:
        """in int32 [N] region of each row of the step, -1 padding."""
        return self._arrays.row_to_request

    @property
    def newest_slot(self) -> Array:
        """in int32 [N] slot written this step, -1 none."""
        return self._arrays.newest_slot

    @property
    def num_real_rows(self) -> Array:
        """in int32 [1]: rows at or past it are padding."""
        return self._arrays.num_real_rows

    def counters(self, group: int) -> Counters:
        """This session's counters of `group`, of one moment where writers pause. On a GPU a small
        copy: not while a stream is being captured."""
        values, memory = (ctypes.c_int64 * COUNTER_COUNT)(), self.memory
        native.check(native.LIBRARY.kvtier_counts(memory.handle, group, values))
        return counters_of(list(values))

    def synchronize(self) -> None:
        """Returns when all that this process has enqueued on the device is done."""
        memory = self.memory
        native.check(native.LIBRARY.kvtier_finish(memory.handle))

    def set_rows(self, regions: Sequence[int], newest_slots: Optional[Sequence[int]] = None) -> None:
        """Says what the rows of the next step are: row_to_request (-1: padding), newest_slot (None:
        none anywhere) and num_real_rows. Small copies that are done when this returns: engines write
        the three arrays on their stream."""
        slots = [-1] * len(regions) if newest_slots is None else newest_slots
        rows = self.row_to_request.shape[0]
        if len(regions) > rows or len(slots) != len(regions):
            raise argument_error("regions, newest_slots",
                                 "of %d and %d entries" % (len(regions), len(slots)),
                                 "as many, at most %d" % rows)
        memory = self.memory
        for array, values in ((self.row_to_request, regions), (self.newest_slot, slots),
                              (self.num_real_rows, [len(regions)])):
            numbers = numpy.ascontiguousarray(values, dtype=numpy.int32)
            native.check(native.LIBRARY.kvtier_write(memory.handle, array.address,
                                                     numbers.ctypes.data, numbers.nbytes))

    # ---- Verbs. `stream`: on a GPU a cudaStream_t as a number or an object that has one; None is
    # PyTorch's current stream. Nothing allocates, synchronizes or reads device memory: a call may
    # be captured in a CUDA graph, and replayed for as long as the arrays live.

    def swap_in(self, group: int, num_rows: int, *, use_slots: bool = False,
                layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                inputs: Optional[StepInputs] = None) -> None:
        """One step of `group` on rows [0, num_rows). `use_slots`: topk holds slots instead of
        positions. `layers`: (first, count) to copy; None: all of the group."""
        memory = self.memory
        self._check_memory(False)
        first, count = (native.ALL_LAYERS, 0) if layers is None else layers
        given = None if inputs is None else self._input_struct(inputs, group, num_rows)
        code = native.LIBRARY.kvtier_swap_in(memory.handle, group, num_rows, first, count,
                                             use_slots, given,
                                             stream_handle(stream, self._device_name))
        if code:
            raise native.last_error(code)

    def replay_plan(self, group: int, num_rows: int, *,
                    layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                    inputs: Optional[StepInputs] = None) -> None:
        """Copies the group's last plan on `layers`; None: all but the leader. `inputs` as in the
        swap-in that made the plan."""
        memory = self.memory
        self._check_memory(False)
        first, count = (native.ALL_LAYERS, 0) if layers is None else layers
        given = None if inputs is None else self._input_struct(inputs, group, num_rows)
        code = native.LIBRARY.kvtier_replay_plan(memory.handle, group, num_rows, first,
                                                 count, given,
                                                 stream_handle(stream, self._device_name))
        if code:
            raise native.last_error(code)

    def backup_newest(self, num_rows: int, *, stream: Any = None,
                      inputs: Optional[StepInputs] = None) -> None:
        """Copies the newest rows of the step's requests to their newest slots, all layers of all
        groups. Rows with a slot of -1 are skipped."""
        memory = self.memory
        self._check_memory(True)
        given = None if inputs is None else self._input_struct(inputs, 0, num_rows)
        code = native.LIBRARY.kvtier_backup_newest(memory.handle, num_rows, given,
                                                   stream_handle(stream, self._device_name))
        if code:
            raise native.last_error(code)

    def backup_rows(self, group: int, sources: Sequence[Any], source_rows: Any, slots: Any,
                    regions: Any = None, *, stream: Any = None) -> None:
        """Copies row source_rows[i] of `sources`, one tensor for each layer of the group, to slot
        slots[i]; a slot of -1 is skipped. `regions` has the region whose cached copy of the slot is
        dropped; without it slots must not have been swapped in before. The three are int32 tensors
        on the cache's device. A source is [rows, ...] of rows of the layer's bytes (any dtype), at
        multiples of 16 bytes; for split pages [pages, page_bytes] uint8. Out of range: refused on a
        CPU, skipped on a GPU."""
        memory = self.memory
        self._check_memory(True)
        groups = self.groups
        if not 0 <= group < len(groups):
            raise argument_error("group", group, "in 0..%d" % (len(groups) - 1))
        layers = groups[group].layers
        if len(sources) != len(layers):
            raise argument_error("sources", "%d tensors" % len(sources),
                                 "%d, one for each layer of the group" % len(layers))
        structs = (native.LayerStruct * len(layers))()
        row_count: Optional[int] = None
        for i, (layer, source) in enumerate(zip(layers, sources)):
            rows = _source_struct("sources[%d]" % i, source, layer, structs[i], self._device_name)
            row_count = rows if row_count is None else min(row_count, rows)
        device = self._device_name
        taken = check_index("source_rows", source_rows, (None,), device)
        count = taken.shape[0]
        targets = _same_length("slots", slots, count, device)
        owners = None if regions is None else _same_length("regions", regions, count, device)
        native.check(native.LIBRARY.kvtier_backup_rows(
            memory.handle, group, structs, len(layers), row_count or 0, taken.address,
            targets.address, owners and owners.address, count, stream_handle(stream, device)))

    def mark_backed(self, group: int, slots: Sequence[int]) -> None:
        """Says that the host rows of `slots` were written by the worker itself (through
        groups[group].layers[l].host): they count as backed up, for as long as their blocks stay
        assigned. Cached copies are not dropped (invalidate_blocks)."""
        memory = self.memory
        self._check_memory(True)
        numbers = numpy.ascontiguousarray(slots, dtype=numpy.int32).reshape(-1)
        native.check(native.LIBRARY.kvtier_mark_backed(memory.handle, group,
                                                       numbers.ctypes.data, len(numbers)))

    def check_backup(self) -> None:
        """Raises unless backups may still write host rows. For captured ones, which nobody checks:
        ask before each replay."""
        _ = self.memory
        self._check_memory(True)

    def _input_struct(self, inputs: StepInputs, group: int, num_rows: int) -> Any:
        for known, key, struct in self._inputs:
            if known is inputs and key == (group, num_rows):
                return struct
        groups = self.groups
        if not 0 <= group < len(groups):
            raise argument_error("group", group, "in 0..%d" % (len(groups) - 1))
        rows, wide = (num_rows,), (num_rows, groups[group].top_k)
        struct = native.InputsStruct()
        for name, shape in (("topk", wide), ("row_to_request", rows), ("newest_slot", rows),
                            ("num_real_rows", (1,)), ("hot_indices", wide), ("miss_mask", wide),
                            ("valid_counts", rows)):
            value = getattr(inputs, name)
            if value is not None:
                tensor = check_index("inputs." + name, value, shape, self._device_name)
                setattr(struct, name, tensor.address)
        # The object keeps its tensors, so their addresses hold.
        self._inputs = [(inputs, (group, num_rows), struct)] + self._inputs[:7]
        return struct


def _same_length(field: str, value: Any, count: int, device: str) -> Tensor:
    tensor = check_index(field, value, (None,), device)
    if tensor.shape[0] != count:
        raise argument_error(field, "of %d entries" % tensor.shape[0],
                             "of %d, as many as source_rows" % count)
    return tensor


def _source_struct(field: str, source: Any, layer: LayerRows, struct: Any, device: str) -> int:
    """Fills in kvtier_layer for a tensor of the caller's; its rows."""
    tensor = describe(field, source)
    check_device(field, tensor, device)
    ctypes.memmove(ctypes.byref(struct), ctypes.byref(layer.struct), ctypes.sizeof(struct))
    struct.hot = tensor.address
    if not tensor.shape:
        raise argument_error(field, "of no dimension", "[rows, ...]")
    inner = tensor._replace(shape=tensor.shape[1:], strides=tensor.strides[1:])
    inner_bytes = tensor.item_bytes
    for length in inner.shape:
        inner_bytes *= length
    expected = layer.struct.page_bytes or layer.row_bytes
    if inner_bytes != expected or not inner.is_contiguous:
        raise argument_error(field, "of %s rows of %d bytes, shape %s" % (
            "contiguous" if inner.is_contiguous else "scattered", inner_bytes, tensor.shape),
            "[%s, ...] with %d contiguous bytes each" % (
                "pages" if layer.struct.page_rows else "rows", expected))
    # Of a single row no stride means anything.
    stride = tensor.strides[0] if tensor.shape[0] > 1 else expected
    if layer.struct.page_rows:
        struct.page_bytes = stride
        return tensor.shape[0] * layer.struct.page_rows
    struct.row_stride = stride
    return tensor.shape[0]
