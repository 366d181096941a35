"""Arrays on the daemon's memory, without copies.

An Array says where some memory is, and what lies there. What is made of it (numpy arrays, PyTorch
tensors, DLPack capsules) keeps the memory mapped: it is unmapped when the last of them is gone,
whatever has become of the cache, the session and the daemon. The Array itself keeps nothing: once its
cache is closed it makes nothing any more.
"""
from __future__ import annotations

import sys
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy

from kvtier import native
from kvtier.errors import FailedPreconditionError

# name -> (DLPack code, bits)
_DLPACK_TYPES = {"int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8),
                 "uint16": (1, 16)}
_DLPACK_CPU = 1
_DLPACK_CUDA = 2


def contiguous_strides(shape: Sequence[int], item_bytes: int) -> Tuple[int, ...]:
    """In bytes, of rows side by side."""
    strides = []
    for size in reversed(shape):
        strides.append(item_bytes)
        item_bytes *= max(size, 1)
    return tuple(reversed(strides))


class Holder:
    """What keeps the memory of a cache until it is closed."""

    __slots__ = ("_memory", "__weakref__")

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    @property
    def memory(self) -> Any:
        """The memory, which lives as long as somebody has it. Raises once the cache is closed."""
        memory = self._memory
        if memory is None:
            raise FailedPreconditionError("the cache of this memory is closed: attach it again")
        return memory

    def drop(self) -> None:
        """The cache is closed."""
        self._memory = None


class _Export:
    """What a numpy array has as its base."""

    def __init__(self, interface: Dict[str, Any], memory: Any) -> None:
        self.__array_interface__ = interface
        self._memory = memory


class Array:
    """Mapped memory: `address`, `shape`, `strides` (bytes), `dtype` ("int32"), `device` ("cpu" or
    "cuda:0"), `read_only`. Of a GPU's memory nothing is read or written by the host."""

    __slots__ = ("address", "shape", "strides", "dtype", "device", "read_only", "_holder",
                 "_pinned", "__weakref__")

    def __init__(self, holder: Holder, address: int, shape: Sequence[int], dtype: str,
                 device: str = "cpu", strides: Optional[Sequence[int]] = None,
                 read_only: bool = False) -> None:
        self._holder = holder
        self._pinned: Any = None  # what an interface was asked for keeps its memory from then on
        self.address = address
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = device
        self.strides = (contiguous_strides(self.shape, self.itemsize) if strides is None
                        else tuple(strides))
        self.read_only = read_only

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _DLPACK_TYPES[self.dtype][1] // 8

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps."""
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size

    @property
    def is_contiguous(self) -> bool:
        """Rows side by side?"""
        return self.strides == contiguous_strides(self.shape, self.itemsize)

    def at(self, offset_bytes: int, shape: Sequence[int], strides: Sequence[int]) -> "Array":
        """Another view of the same memory."""
        return Array(self._holder, self.address + offset_bytes, shape, self.dtype, self.device,
                     strides, self.read_only)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return "kvtier.Array(shape=%s, dtype=%s, device=%s)" % (self.shape, self.dtype, self.device)

    def _interface(self, version: int) -> Dict[str, Any]:
        code, bits = _DLPACK_TYPES[self.dtype]
        kind = "iu"[code]
        return {"version": version, "shape": self.shape, "data": (self.address, self.read_only),
                "strides": None if self.is_contiguous else self.strides,
                "typestr": ("|" if bits == 8 else "<" if sys.byteorder == "little" else ">") +
                           "%s%d" % (kind, bits // 8)}

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.device != "cpu":
            raise AttributeError("__array_interface__: this memory is on %s" % self.device)
        self._pinned = self._holder.memory
        return self._interface(3)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self.device == "cpu":
            raise AttributeError("__cuda_array_interface__: this memory is the host's")
        self._pinned = self._holder.memory
        return self._interface(2)

    def __dlpack_device__(self) -> Tuple[int, int]:
        if self.device == "cpu":
            return _DLPACK_CPU, 0
        return _DLPACK_CUDA, int(self.device.partition(":")[2])

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> object:
        """A capsule "dltensor". Whoever writes the memory orders it: nothing is waited for."""
        if self.read_only:
            raise BufferError("this memory is mapped without write access, which DLPack cannot "
                              "say: use numpy()")
        item = self.itemsize
        return native.dlpack_capsule(self.address, self.__dlpack_device__(),
                                     _DLPACK_TYPES[self.dtype], self.shape,
                                     [stride // item for stride in self.strides],
                                     self._holder.memory)

    def numpy(self) -> numpy.ndarray:
        """The same memory as a numpy array; of host memory alone."""
        if self.device != "cpu":
            raise TypeError("this memory is on %s: use torch() or __cuda_array_interface__" %
                            self.device)
        return numpy.asarray(_Export(self._interface(3), self._holder.memory))

    def torch(self, dtype: Any = None) -> Any:
        """The same memory as a PyTorch tensor; with `dtype`, its bytes seen as that type. Imports
        torch."""
        import torch  # pylint: disable=import-outside-toplevel
        tensor = torch.from_dlpack(self)
        return tensor if dtype is None else tensor.view(dtype)
