"""Torch tensors for the adapters. Imports torch."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvtier._frameworks import DoneFence


class _EventFence:
    """Done when a stream has passed an event."""

    def __init__(self, event: Any):
        self._event = event

    def done(self) -> bool:
        return self._event.query()

    def wait(self) -> None:
        self._event.synchronize()


class TorchArrays:
    """The functions of `_frameworks.NumpyArrays`, on tensors.

    Nothing here synchronizes with a GPU but `upload`'s wait for a staging buffer that is still in
    use; nothing but `full`, `arange` and `int32` of another type allocates. All but `upload` may be
    captured in a CUDA graph.
    """

    name = "torch"

    # Uploads that may be on their way; further ones wait for the oldest.
    _STAGING_BUFFERS = 8

    def __init__(self, device: str):
        self.device = torch.device(device)
        self._cuda = self.device.type == "cuda"
        self._staging: list[tuple[torch.Tensor, Any]] = []

    def view(self, array: Any, dtype: str | None = None) -> torch.Tensor:
        """The daemon's `array` without a copy; its bytes as `dtype`, if given."""
        found = array.torch()
        if dtype is None:
            return found
        return found.view(torch.uint8 if dtype == "fp8_ds_mla" else getattr(torch, dtype))

    def full(self, shape: Any, value: int) -> torch.Tensor:
        """int32."""
        return torch.full(
            shape if isinstance(shape, tuple) else (shape,),
            value,
            dtype=torch.int32,
            device=self.device,
        )

    def int32(self, values: Any) -> torch.Tensor:
        """`values` as int32, contiguous, on the device; themselves if they are."""
        if not isinstance(values, torch.Tensor):
            values = torch.from_numpy(np.ascontiguousarray(values, np.int32))
        return values.to(device=self.device, dtype=torch.int32).contiguous()

    def address(self, values: torch.Tensor) -> int:
        return values.data_ptr()

    def cast(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """`values` in the type of `like`."""
        return values.to(like.dtype)

    def maximum(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.maximum(a, b)

    def upload(self, destination: torch.Tensor, values: Any) -> None:
        """destination[:len(values)] = values, from the host; on a GPU in the stream's order.

        A copy from pageable memory would hold the host until the stream has come to it.
        """
        host = torch.from_numpy(np.ascontiguousarray(values, np.int32))
        if host.numel() == 0:
            return
        if not self._cuda:
            destination[: len(host)].copy_(host)
            return
        buffer = self._staging_buffer(host.numel())
        staged = buffer[: host.numel()].view(host.shape)
        staged.copy_(host)
        destination[: len(host)].copy_(staged, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        self._staging.append((buffer, event))

    def _staging_buffer(self, count: int) -> torch.Tensor:
        """Pinned memory for `count` values that no copy reads any more."""
        if len(self._staging) >= self._STAGING_BUFFERS:
            buffer, event = self._staging.pop(0)
            event.synchronize()
            if buffer.numel() >= count:
                return buffer
        return torch.empty(max(1024, count), dtype=torch.int32, pin_memory=True)

    def where(self, condition: Any, a: Any, b: Any) -> torch.Tensor:
        return torch.where(condition, a, b)

    def arange(self, count: int) -> torch.Tensor:
        """int32."""
        return torch.arange(count, dtype=torch.int32, device=self.device)

    def fence(self) -> Any:
        """Done when all is that was enqueued on the current stream so far."""
        if not self._cuda:
            return DoneFence()
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return _EventFence(event)

    def device_uuid(self, session: Any) -> str:
        """Of the device, as the daemon names it; empty: its only one, or torch does not say."""
        if not self._cuda or len(session.devices) < 2:
            return ""
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return "" if uuid is None else "GPU-%s" % uuid

    def capturing(self) -> bool:
        return self._cuda and torch.cuda.is_current_stream_capturing()
