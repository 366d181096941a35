"""Requests whose blocks the daemon chooses. Needs no torch.

The engine names a request by its row in its own table (req_pool_idx). Here such a row has a
request of the daemon: a region of the hot buffer, and blocks for as many tokens as it has.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import numpy as np

from kvtier import ResourceExhaustedError
from kvtier._request_names import RequestNames


@dataclass
class PoolRequest:
    """One request of the engine, admitted."""

    rid: str
    pool_index: int
    request: Any  # kvtier.Request
    backed_tokens: int = 0  # rows [0, backed_tokens) are in the host pool, or on their way
    # int32: slot of each position that a block covers.
    slots: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))


class RequestBook:
    """Requests by req_pool_idx. Not thread-safe."""

    def __init__(self, cache: Any, pool_size: int, fence: Callable[[], Any]):
        """`fence()` is done when the device work that was enqueued before it is."""
        self._cache = cache
        self._fence = fence
        self._by_index: dict[int, PoolRequest] = {}
        self._leaving: list[tuple[Any, Any]] = []
        self._pool_size = pool_size
        self._names = RequestNames()

    def __len__(self) -> int:
        return len(self._by_index)

    def __iter__(self) -> Iterator[PoolRequest]:
        return iter(self._by_index.values())

    def __contains__(self, pool_index: int) -> bool:
        return int(pool_index) in self._by_index

    def __getitem__(self, pool_index: int) -> PoolRequest:
        found = self._by_index.get(int(pool_index))
        if found is None:
            raise KeyError("no request was admitted at req_pool_idx %d" % pool_index)
        return found

    def admit(self, rid: str, pool_index: int, tokens: int, reserve_tokens: int) -> PoolRequest:
        """A region, and blocks for `tokens`; `reserve_tokens` are sure to get blocks later."""
        pool_index = int(pool_index)
        if not 0 <= pool_index < self._pool_size:
            raise ValueError(
                "req_pool_idx is %d; there are 0..%d" % (pool_index, self._pool_size - 1)
            )
        if pool_index in self._by_index:
            raise ValueError(
                "req_pool_idx %d still belongs to request %r: request_finished comes first"
                % (pool_index, self._by_index[pool_index].rid)
            )
        self._release_left(wait=len(self._by_index) + len(self._leaving) >= self._limit())
        blocks = self._blocks_for(max(tokens, reserve_tokens))
        request = self._with_room(
            lambda: self._cache.admit(self._names.next(rid), reserve_blocks=blocks)
        )
        entry = PoolRequest(rid, pool_index, request)
        try:
            self.grow(entry, tokens)
        except Exception:
            request.release()
            raise
        self._by_index[pool_index] = entry
        return entry

    def grow(self, entry: PoolRequest, tokens: int) -> None:
        """Blocks until there are slots for `tokens`."""
        size = self._cache.layout.block_size
        missing = self._blocks_for(tokens) - len(entry.slots) // size
        if missing <= 0:
            return
        blocks = self._with_room(lambda: entry.request.assign_blocks(missing)).block_ids
        first = np.asarray(blocks, np.int32)[:, None] * size
        added = (first + np.arange(size, dtype=np.int32)[None, :]).reshape(-1)
        entry.slots = np.concatenate([entry.slots, added])

    def finish(self, pool_index: int) -> None:
        """Ends a request. Does not wait: region and blocks are given back when the work enqueued so
        far is done, which a later call sees."""
        entry = self[pool_index]
        del self._by_index[entry.pool_index]
        self._leaving.append((self._fence(), entry.request))
        self._release_left(wait=False)

    def close(self) -> None:
        for pool_index in list(self._by_index):
            self.finish(pool_index)
        self._release_left(wait=True)

    def _with_room(self, call: Callable[[], Any]) -> Any:
        """What `call` returns. Blocks of requests that have ended may still be in their hands."""
        try:
            return call()
        except ResourceExhaustedError:
            if not self._leaving:
                raise
        self._release_left(wait=True)
        return call()

    def _limit(self) -> int:
        return self._cache.layout.max_requests - 1  # the coordinator has one

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._cache.layout.block_size)

    def _release_left(self, wait: bool) -> None:
        remaining = []
        for fence, request in self._leaving:
            if wait:
                fence.wait()
            elif not fence.done():
                remaining.append((fence, request))
                continue
            request.release()
        self._leaving = remaining
