"""The memory that an AttachCache answer names, mapped into this process, and the arrays in it.

Nothing of the answer is trusted: sizes must be those that the kernels can serve, an array must lie
inside its segment, be aligned, be as long as the layout makes it and stand in a segment of its own
kind; that a descriptor holds what it should, and is sealed so that it can't shrink, the library
checks.
"""
from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

from kvtier import messages, native
from kvtier.arrays import Array, Holder
from kvtier.errors import UnimplementedError, malformed_answer
from kvtier.layout import RowFormat
from kvtier.results import Device

_ROW_ALIGNMENT = 16
_REGION_ALIGNMENT_ROWS = 128
_DIRECTORY_WORDS = 2
_INT32_MAX = 2**31 - 1
_IPC_HANDLE_BYTES = 64

_KINDS = {name: messages.enum_value("SegmentKind", "SEGMENT_KIND_" + name) for name in (
    "HOST_POOL", "BLOCK_GENERATION", "BACKED_GENERATION", "HOT_BUFFER", "STATE", "STEP",
    "PROGRESS")}
_HOST_KINDS = {_KINDS[name] for name in ("HOST_POOL", "BLOCK_GENERATION", "BACKED_GENERATION",
                                         "PROGRESS")}
_POSIX_FD, _CUDA_IPC, _CUDA_FD = (
    messages.enum_value("SegmentTransport", "SEGMENT_TRANSPORT_" + name)
    for name in ("POSIX_FD", "CUDA_IPC", "CUDA_FD"))

_ITEM_BYTES = {"uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8}


class _Segment(NamedTuple):
    address: int
    kind: int
    size_bytes: int
    read_only: bool


def _close_plane(handle: int, pid: int) -> None:
    # A forked child has neither the device's threads nor its driver.
    if os.getpid() == pid:
        native.LIBRARY.kvtier_close(handle)


class Memory:
    """The library's plane of one cache. Its end waits for what this process has enqueued, and
    unmaps: when the last Array of it is gone."""

    def __init__(self, device: Device, kernel_threads: int) -> None:
        handle = ctypes.c_void_p()
        native.check(native.LIBRARY.kvtier_open(device.backend.encode(), device.uuid.encode(),
                                                kernel_threads, ctypes.byref(handle)))
        self.handle = handle.value or 0
        self._finalizer = weakref.finalize(self, _close_plane, self.handle, os.getpid())
        # At exit the system unmaps, after everything that might still read.
        self._finalizer.atexit = False
        ordinal = native.LIBRARY.kvtier_device_ordinal(self.handle)
        self.device = "cpu" if ordinal < 0 else "cuda:%d" % ordinal
        self._segments: Dict[int, _Segment] = {}

    def check_transport(self, segment: Any) -> None:
        """Raises UnimplementedError for a segment that map cannot map."""
        on_host = self.device == "cpu" or segment.kind in _HOST_KINDS
        if segment.transport in ((_POSIX_FD,) if on_host else (_CUDA_FD, _CUDA_IPC)):
            return
        feature = "segment transport %d" % segment.transport
        raise UnimplementedError(
            "segment %d is passed by transport %d, which this package cannot map on %s" %
            (segment.segment_index, segment.transport, self.device),
            reason="NOT_IMPLEMENTED", metadata={"feature": feature})

    def map(self, segment: Any, redeem: Callable[[str], int]) -> None:
        """Maps one segment of an answer."""
        address = ctypes.c_void_p()
        library = native.LIBRARY
        if segment.transport == _CUDA_IPC:
            if len(segment.ipc_handle) != _IPC_HANDLE_BYTES or segment.read_only:
                raise malformed_answer("segment %d has an IPC handle of %d bytes" % (
                    segment.segment_index, len(segment.ipc_handle)))
            code = library.kvtier_map_gpu_handle(self.handle, segment.ipc_handle,
                                                 segment.offset_bytes, segment.size_bytes,
                                                 ctypes.byref(address))
        else:
            descriptor = redeem(segment.fd_token)
            try:
                if segment.transport == _CUDA_FD:
                    if segment.offset_bytes != 0 or segment.read_only:
                        raise malformed_answer("segment %d begins at byte %d of GPU memory" % (
                            segment.segment_index, segment.offset_bytes))
                    code = library.kvtier_map_gpu_file(self.handle, descriptor, segment.size_bytes,
                                                       ctypes.byref(address))
                else:
                    flags = ((native.MAP_READ_ONLY if segment.read_only else 0) |
                             (native.MAP_UNSEALED if segment.unsealed else 0))
                    code = library.kvtier_map_file(self.handle, descriptor, segment.offset_bytes,
                                                   segment.size_bytes, flags,
                                                   ctypes.byref(address))
            finally:
                os.close(descriptor)  # a mapping outlives its descriptor
        native.check(code)
        if segment.segment_index in self._segments:
            raise malformed_answer("two segments have number %d" % segment.segment_index)
        self._segments[segment.segment_index] = _Segment(address.value or 0, segment.kind,
                                                         segment.size_bytes, segment.read_only)

    def array(self, holder: Holder, name: str, buffer: Any, kind: str, dtype: str,
              shape: Sequence[int], strides: Any = None, size_bytes: int = -1, read_only: bool = False) -> Array:
        """The array that `buffer` says. Its bytes follow from its shape, unless they are given."""
        segment = self._segments.get(buffer.segment_index)
        if segment is None:
            raise malformed_answer("the array %s is in segment %d, which the answer does not have" %
                                   (name, buffer.segment_index))
        if segment.kind != _KINDS[kind]:
            raise malformed_answer("the array %s is in a segment of kind %d instead of %d" %
                                   (name, segment.kind, _KINDS[kind]))
        if segment.read_only and not read_only:
            raise malformed_answer("the array %s is in a read-only segment" % name)
        alignment = _ITEM_BYTES[dtype] if size_bytes < 0 else _ROW_ALIGNMENT
        if size_bytes < 0:
            size_bytes = _ITEM_BYTES[dtype]
            for length in shape:
                size_bytes *= length
        begin = buffer.offset_bytes
        if (begin < 0 or begin % alignment or begin > segment.size_bytes or
                not size_bytes <= buffer.size_bytes <= segment.size_bytes - begin):
            raise malformed_answer(
                "the array %s has %d bytes from byte %d of a segment of %d; the layout needs %d" %
                (name, buffer.size_bytes, begin, segment.size_bytes, size_bytes))
        device = "cpu" if segment.kind in _HOST_KINDS else self.device
        return Array(holder, segment.address + begin, shape, dtype, device, strides,
                     read_only=segment.read_only)


def _check(field: str, value: int, low: int, high: int, factor: int = 1) -> None:
    if not low <= value <= high or value % factor:
        raise malformed_answer("layout.%s is %d: outside %d..%d%s" % (
            field, value, low, high, ", or no multiple of %d" % factor if factor > 1 else ""))


def check_layout(layout: Any) -> None:
    """Raises InternalError for sizes that the kernels cannot serve."""
    _check("groups", len(layout.groups), 1, 64)
    _check("block_size", layout.block_size, 1, 4096)
    _check("block_count", layout.block_count, 1, _INT32_MAX)
    _check("block_size * block_count", layout.block_size * layout.block_count, 1, _INT32_MAX)
    _check("max_requests", layout.max_requests, 1, 65536)
    _check("rows_per_request", layout.rows_per_request, 1, 64)
    _check("max_blocks_per_request", layout.max_blocks_per_request, 1, layout.block_count)
    _check("step_rows", layout.step_rows, 1, 65536)
    _check("eviction_policy", layout.eviction_policy, 1, 2)
    _check("layers", sum(len(group.layers) for group in layout.groups), len(layout.groups), 256)
    for index, group in enumerate(layout.groups):
        name = "groups[%d]." % index
        _check(name + "layers", len(group.layers), 1, 256)
        _check(name + "hot_size", group.hot_size, 1, 32768)
        _check(name + "top_k", group.top_k, 0, group.hot_size)
        if layout.rows_per_request > 1:
            _check(name + "rows_per_request * top_k", layout.rows_per_request * group.top_k, 0,
                   group.hot_size)
        _check(name + "hot rows", region_stride(group, layout) * layout.max_requests, 1,
               _INT32_MAX)
        for layer in group.layers:
            _check_layer(name + "layers.", layer, layout.block_size)


def _check_layer(name: str, layer: Any, block_size: int) -> None:
    _check(name + "row_format", layer.row_format, 1, 2)
    _check(name + "row_bytes", layer.row_bytes, _ROW_ALIGNMENT, 4096, _ROW_ALIGNMENT)
    if layer.row_format == RowFormat.CONTIGUOUS:
        _check(name + "row_stride_bytes", layer.row_stride_bytes, layer.row_bytes, _INT32_MAX,
               _ROW_ALIGNMENT)
        return
    _check(name + "scale_bytes", layer.scale_bytes, 4, 1024, 4)
    _check(name + "page_bytes", layer.page_bytes,
           block_size * (layer.row_bytes + layer.scale_bytes), _INT32_MAX, _ROW_ALIGNMENT)


def region_stride(group: Any, layout: Any) -> int:
    """Rows between the starts of two regions (kernels/layout.h)."""
    kinds = 2 if layout.eviction_policy == 2 else 1  # newest rows, and where they are kept
    rows = group.hot_size + kinds * layout.rows_per_request
    return -(-rows // _REGION_ALIGNMENT_ROWS) * _REGION_ALIGNMENT_ROWS


def state_shapes(group: Any, layout: Any) -> Dict[str, Tuple[str, Tuple[int, ...]]]:
    """Arrays of the state segment that the kernels keep for themselves: dtype and shape; the
    absent ones are left out."""
    shapes: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
    index_length = native.LIBRARY.kvtier_region_index_length(group.hot_size)
    if index_length:
        shapes["index"] = ("uint16", (layout.max_requests, index_length))
    if layout.eviction_policy == 2:
        shapes["score"] = ("uint8", (layout.max_requests, group.hot_size))
        shapes["kept"] = ("int32", (layout.max_requests, layout.rows_per_request))
    if layout.share_rows:
        shapes["directory"] = ("int32", (layout.block_size * layout.block_count, _DIRECTORY_WORDS))
    return shapes
