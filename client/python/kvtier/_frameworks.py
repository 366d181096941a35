"""The arrays that an adapter computes with: torch tensors, or numpy arrays where there is no torch.

Both index, slice and assign the same way, so the adapters are written once. What differs is here:
how an array is made, filled from the host, and how the daemon's memory becomes one.

Torch is imported only by `TorchArrays`.
"""
from __future__ import annotations

from typing import Any

import numpy as np

# An array of either framework.
AnyArray = Any

# Bytes of one element. "fp8_ds_mla" rows are bytes: 512 fp8 values, 4 scales, 64 bf16 of RoPE.
ITEM_BYTES = {
    "fp8_ds_mla": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "uint16": 2,
    "int16": 2,
    "float32": 4,
}

# What numpy carries for types that it has not.
_NUMPY_CARRIERS = {
    "fp8_ds_mla": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "bfloat16": "uint16",
}


def dtype_name(dtype: Any) -> str:
    """ "bfloat16" of "bfloat16", torch.bfloat16 or numpy's dtype of that name."""
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
    elif isinstance(dtype, (np.dtype, type)):
        name = np.dtype(dtype).name
    else:
        name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise ValueError(
            "kv_dtype %r is not known; known are %s" % (name, ", ".join(sorted(ITEM_BYTES)))
        )
    return name


class DoneFence:
    """Of work that is done when its call returns."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class NumpyArrays:
    """For a cache in host memory (the daemon's CPU backend)."""

    name = "numpy"

    def view(self, array: Any, dtype: str | None = None) -> np.ndarray:
        """The daemon's `array` without a copy; its bytes as `dtype`, if given."""
        found = array.numpy()
        return found if dtype is None else found.view(_NUMPY_CARRIERS.get(dtype, dtype))

    def full(self, shape: Any, value: int) -> np.ndarray:
        """int32."""
        return np.full(shape, value, np.int32)

    def int32(self, values: AnyArray) -> np.ndarray:
        """`values` as int32, contiguous; themselves if they are."""
        return np.ascontiguousarray(values, np.int32)

    def address(self, values: AnyArray) -> int:
        return values.__array_interface__["data"][0]

    def cast(self, values: AnyArray, like: AnyArray) -> np.ndarray:
        """`values` in the type of `like`."""
        return values.astype(like.dtype)

    def maximum(self, a: AnyArray, b: AnyArray) -> np.ndarray:
        return np.maximum(a, b)

    def upload(self, destination: np.ndarray, values: Any) -> None:
        """destination[:len(values)] = values, from the host."""
        destination[: len(values)] = values

    def where(self, condition: AnyArray, a: AnyArray, b: AnyArray) -> np.ndarray:
        return np.asarray(np.where(condition, a, b), np.int32)

    def arange(self, count: int) -> np.ndarray:
        """int32."""
        return np.arange(count, dtype=np.int32)

    def fence(self) -> DoneFence:
        """Done when all is that was enqueued so far."""
        return DoneFence()

    def device_uuid(self, session: Any) -> str:
        """Of the device, as the daemon names it; empty: its only one."""
        return ""

    def capturing(self) -> bool:
        return False


def frameworks_for(device: str) -> Any:
    """NumpyArrays for "cpu"; TorchArrays for "cuda", "cuda:N" and "torch" (torch on the CPU)."""
    if device in ("cpu", "numpy"):
        return NumpyArrays()
    from kvtier._torch_arrays import TorchArrays

    return TorchArrays("cpu" if device == "torch" else device)
