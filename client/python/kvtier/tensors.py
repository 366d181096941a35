"""Tensors of the caller's: where they are, and whether they are what a call needs.

torch.Tensor, numpy.ndarray, Array, and whatever has __cuda_array_interface__ or
__array_interface__. Nothing is copied or converted: a tensor that does not fit is refused, with what
to do about it.
"""
from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from kvtier.arrays import Array, contiguous_strides
from kvtier.errors import InvalidArgumentError, argument_error

# cudaStreamLegacy: the default stream by a name that is no null.
_DEFAULT_STREAM = 1


class Tensor(NamedTuple):
    """What a call needs to know of one."""
    address: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # bytes
    dtype: str                # "int32"; of other libraries' types their name
    item_bytes: int
    device: str               # "cpu", "cuda:0"; "cuda" where it does not say which

    @property
    def is_contiguous(self) -> bool:
        """Rows side by side?"""
        expected = contiguous_strides(self.shape, self.item_bytes)
        return all(size <= 1 or stride == other
                   for size, stride, other in zip(self.shape, self.strides, expected))


_TYPES = {"i": "int", "u": "uint", "f": "float", "b": "bool", "c": "complex", "V": "void"}


def _from_interface(interface: Any, device: str) -> Tensor:
    typestr = interface["typestr"]
    item_bytes = int(typestr[2:])
    dtype = "%s%d" % (_TYPES.get(typestr[1], typestr[1]), item_bytes * 8)
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or contiguous_strides(shape, item_bytes)
    return Tensor(interface["data"][0], shape, tuple(strides), dtype, item_bytes, device)


def describe(field: str, value: Any) -> Tensor:
    """Where `value` is. Raises InvalidArgumentError for what is no tensor."""
    if isinstance(value, Array):
        return Tensor(value.address, value.shape, value.strides, value.dtype, value.itemsize,
                      value.device)
    if hasattr(value, "data_ptr"):  # torch.Tensor
        item = value.element_size()
        device = value.device
        return Tensor(value.data_ptr(), tuple(value.shape), tuple(s * item for s in value.stride()),
                      str(value.dtype).rpartition(".")[2], item,
                      device.type if device.index is None else str(device))
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(interface, "cuda")
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return _from_interface(interface, "cpu")
    raise argument_error(field, type(value).__name__,
                         "a tensor: of torch, numpy, or with __cuda_array_interface__")


def check_device(field: str, tensor: Tensor, device: str) -> None:
    """Raises unless `tensor` is where a cache on `device` can use it."""
    if tensor.device == device or (tensor.device == "cuda" and device != "cpu"):
        return
    raise argument_error(field, "on " + tensor.device,
                         "on %s, the cache's device: move it there (or attach the cache on the "
                         "tensor's device, see device_uuid)" % device)


def check_index(field: str, value: Any, shape: Sequence[Optional[int]], device: str) -> Tensor:
    """An int32 tensor on `device` with elements side by side; None in `shape` is any length."""
    tensor = describe(field, value)
    check_device(field, tensor, device)
    if tensor.dtype != "int32":
        raise argument_error(field, "of " + tensor.dtype,
                             "of int32: convert it once, where it is made (.to(torch.int32))")
    if not tensor.is_contiguous:
        raise argument_error(field, "not contiguous (strides %s of shape %s)" %
                             (tensor.strides, tensor.shape),
                             "contiguous: call .contiguous(), or write into a buffer of that shape")
    fits = len(tensor.shape) == len(shape) and all(
        expected is None or length >= expected if index == 0 else length == expected
        for index, (length, expected) in enumerate(zip(tensor.shape, shape)))
    if not fits:
        raise argument_error(field, "of shape %s" % (tensor.shape,), "of shape [%s]" % ", ".join(
            "any" if n is None else ("at least %d" % n if i == 0 else str(n))
            for i, n in enumerate(shape)))
    return tensor


def stream_handle(stream: Any, device: str) -> Optional[int]:
    """The cudaStream_t of `stream`: a number, an object of torch, cupy or numba, or None for
    PyTorch's current stream on `device`; None on a CPU."""
    if stream is None:
        if device == "cpu":
            return None
        torch = sys.modules.get("torch")
        if torch is None:
            raise InvalidArgumentError(
                "stream is None and PyTorch is not imported: say which stream the work goes to",
                reason="FIELD_INVALID",
                metadata={"field": "stream", "value": "None", "limit": "a cudaStream_t"})
        index = int(device.partition(":")[2])
        return torch.cuda.current_stream(index).cuda_stream or _DEFAULT_STREAM
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name)) or _DEFAULT_STREAM
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1]) or _DEFAULT_STREAM
    if isinstance(stream, int):
        return stream or _DEFAULT_STREAM
    raise argument_error("stream", type(stream).__name__,
                         "a number, or an object with cuda_stream, ptr or __cuda_stream__")
