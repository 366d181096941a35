"""The shared library of the in-process plane (client/data_plane/data_plane.h), by ctypes."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p

from kvtier.errors import KvtierError, code_name, make_error

ABI_VERSION = 3
ALL_LAYERS = -1
MAP_READ_ONLY = 1
MAP_UNSEALED = 2

_PATH = os.path.join(os.path.dirname(__file__), "_native", "libkvtier_data_plane.so")


class LayerStruct(ctypes.Structure):
    """kvtier_layer"""
    _fields_ = [("host", c_void_p), ("hot", c_void_p), ("format", c_int32),
                ("value_bytes", c_int32), ("scale_bytes", c_int32), ("page_rows", c_int32),
                ("row_stride", c_int64), ("page_bytes", c_int64)]


class GroupStruct(ctypes.Structure):
    """kvtier_group"""
    _fields_ = [(name, c_int32) for name in (
        "top_k", "hot_size", "region_stride", "rows_per_request", "policy", "layer_count")] + [
            ("layers", POINTER(LayerStruct))] + [(name, c_void_p) for name in (
                "topk", "hot_indices", "miss_mask", "valid_counts", "plan_slots", "plan_hot_rows",
                "plan_counts", "owner", "lru", "index", "score", "directory", "kept",
                "backed_generation", "stats")]


class ArraysStruct(ctypes.Structure):
    """kvtier_arrays"""
    _fields_ = [(name, c_int32) for name in (
        "region_count", "block_size", "slot_count", "max_blocks", "step_rows", "group_count")] + [
            ("groups", POINTER(GroupStruct))] + [(name, c_void_p) for name in (
                "block_table", "block_generation", "sequence_lengths", "row_to_request",
                "newest_slot", "num_real_rows")]


class InputsStruct(ctypes.Structure):
    """kvtier_inputs"""
    _fields_ = [(name, c_void_p) for name in (
        "topk", "row_to_request", "newest_slot", "num_real_rows", "hot_indices", "miss_mask",
        "valid_counts")]


_INT32 = c_int32
_PLANE = c_void_p
_INPUTS = POINTER(InputsStruct)

# name -> (result, arguments)
_FUNCTIONS = {
    "kvtier_abi_version": (_INT32, []),
    "kvtier_has_cuda": (_INT32, []),
    "kvtier_error_message": (c_char_p, []),
    "kvtier_error_reason": (c_char_p, []),
    "kvtier_error_metadata": (c_char_p, []),
    "kvtier_open": (_INT32, [c_char_p, c_char_p, _INT32, POINTER(_PLANE)]),
    "kvtier_close": (None, [_PLANE]),
    "kvtier_device_ordinal": (_INT32, [_PLANE]),
    "kvtier_map_file": (_INT32, [_PLANE, _INT32, c_int64, c_int64, _INT32, POINTER(c_void_p)]),
    "kvtier_map_gpu_file": (_INT32, [_PLANE, _INT32, c_int64, POINTER(c_void_p)]),
    "kvtier_map_gpu_handle": (_INT32, [_PLANE, c_char_p, c_int64, c_int64, POINTER(c_void_p)]),
    "kvtier_region_index_length": (_INT32, [_INT32]),
    "kvtier_stats_bytes": (_INT32, []),
    "kvtier_set_arrays": (_INT32, [_PLANE, POINTER(ArraysStruct)]),
    "kvtier_swap_in": (_INT32, [_PLANE, _INT32, _INT32, _INT32, _INT32, _INT32, _INPUTS, c_void_p]),
    "kvtier_replay_plan": (_INT32, [_PLANE, _INT32, _INT32, _INT32, _INT32, _INPUTS, c_void_p]),
    "kvtier_backup_newest": (_INT32, [_PLANE, _INT32, _INPUTS, c_void_p]),
    "kvtier_backup_rows": (_INT32, [_PLANE, _INT32, POINTER(LayerStruct), _INT32, _INT32, c_void_p,
                                    c_void_p, c_void_p, _INT32, c_void_p]),
    "kvtier_mark_backed": (_INT32, [_PLANE, _INT32, c_void_p, _INT32]),
    "kvtier_counts": (_INT32, [_PLANE, _INT32, POINTER(c_int64)]),
    "kvtier_read": (_INT32, [_PLANE, c_void_p, c_void_p, c_int64]),
    "kvtier_write": (_INT32, [_PLANE, c_void_p, c_void_p, c_int64]),
    "kvtier_finish": (_INT32, [_PLANE]),
    "kvtier_signal": (_INT32, [_PLANE, c_void_p, _INT32, c_void_p]),
    "kvtier_wait": (_INT32, [_PLANE, c_void_p, _INT32, c_void_p]),
    "kvtier_release_wait": (None, [c_void_p, _INT32]),
    "kvtier_dlpack_capsule_destructor": (None, [c_void_p]),
}


def load_library(path: str = _PATH) -> ctypes.CDLL:
    """The library at `path`. Raises ImportError where it is not there or not of this package."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError("kvtier cannot load its data plane: %s. It is made when the package is "
                          "built: install it again (pip install client/python)" % error) from error
    found = library.kvtier_abi_version()
    if found != ABI_VERSION:
        raise ImportError("%s has version %d of its interface and this package speaks %d: they "
                          "are of different builds; install the package again" %
                          (path, found, ABI_VERSION))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = load_library()

# This one makes Python objects, so it is called with the GIL held.
_dlpack = ctypes.PyDLL(_PATH).kvtier_dlpack
_dlpack.restype = c_void_p
_dlpack.argtypes = [c_void_p, _INT32, _INT32, _INT32, _INT32, _INT32, POINTER(c_int64),
                    POINTER(c_int64), ctypes.py_object]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


def last_error(code: int) -> KvtierError:
    """The error behind a result that is not 0."""
    lines = LIBRARY.kvtier_error_metadata().decode("utf-8", "replace").splitlines()
    metadata = dict(line.split("=", 1) for line in lines if "=" in line)
    return make_error(code_name(code), LIBRARY.kvtier_error_message().decode("utf-8", "replace"),
                      LIBRARY.kvtier_error_reason().decode(), metadata)


def check(code: int) -> None:
    """Raises the error of a result that is not 0."""
    if code:
        raise last_error(code)


def dlpack_capsule(address, device, dtype, shape, strides, owner) -> object:
    """A capsule "dltensor" that keeps `owner` alive. `device`: (type, id); `dtype`: (code, bits)
    as in DLPack; `strides` in elements."""
    integers = c_int64 * len(shape)
    managed = _dlpack(address, device[0], device[1], dtype[0], dtype[1], len(shape),
                      integers(*shape), integers(*strides), owner)
    if not managed:
        raise BufferError("this Python does not export the C interface that DLPack needs")
    destructor = ctypes.cast(LIBRARY.kvtier_dlpack_capsule_destructor, c_void_p)
    return _new_capsule(managed, b"dltensor", destructor)

