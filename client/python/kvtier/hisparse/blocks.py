"""Who has which block, where the engine chooses the blocks. Needs no torch.

The engine's scheduler hands out block ids by itself. So one request of the daemon, the *keeper*,
holds every block of the cache, which makes the engine's ids the daemon's ids; each request of the
engine is a request of the daemon that shares the keeper's blocks in the order of its positions.
The daemon's block table is then the engine's, and kernels resolve positions without a translation.

Ranks that share the cache have books that say the same. The first rank's keeper holds the blocks,
and it alone recycles them, while all wait.

A block that is handed out again is first *recycled*: its old rows no longer count as backed up, and
no hot buffer of any session has a copy of them.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from kvtier._request_names import RequestNames
from kvtier.hisparse.ranks import Ranks

# No block ever has this generation.
_NEVER_BACKED = 0


@dataclass(frozen=True)
class Assignment:
    """Blocks that a request gets behind those that it has, in the order of its positions.

    The first `reused_blocks` keep their rows (a prefix that the engine has cached); the others are
    fresh: invalidated everywhere, and to be written before they are selected.
    """

    request_id: str
    block_ids: Sequence[int]
    reused_blocks: int = 0

    @property
    def fresh_blocks(self) -> Sequence[int]:
        return self.block_ids[self.reused_blocks :]


@dataclass
class _Entry:
    """An engine's request that is admitted."""

    request: Any  # kvtier.Request
    blocks: list[int] = field(default_factory=list)  # in the order of positions


class BlockBook:
    """The engine's requests and their blocks, in step with the daemon's.

    Not thread-safe: calls come from the engine's scheduling thread. Errors of the daemon come
    through; after one, the call may be repeated.
    """

    def __init__(
        self, cache: Any, num_blocks: int, fence: Callable[[], Any], ranks: Ranks = Ranks()
    ):
        """Takes all `num_blocks` of `cache`, which nobody else may hold. `fence()` is done when
        the device work that was enqueued before it is."""
        self._ranks = ranks
        self._cache = cache
        self._fence = fence
        self._num_blocks = num_blocks
        self._entries: dict[str, _Entry] = {}
        self._holders = [0] * num_blocks  # requests that have the block in their table
        self._used: set[int] = set()  # handed out since they were last recycled
        self._last_use: dict[int, Any] = {}  # fence behind the last step that could read a block
        self._leaving: list[tuple[Any, _Entry]] = []  # to release, once their fence is done
        self._names = RequestNames()
        self.recycled_blocks = 0
        # Host memory on any device. Rows whose number is not their block's generation are unbacked.
        self._backed = [group.backed_generation.numpy() for group in cache.groups]
        self._keeper = cache.admit(
            "kvtier.hisparse.keeper", reserve_blocks=num_blocks if ranks.first else 0
        )
        if not ranks.first:
            return
        taken = self._keeper.assign_blocks(num_blocks).block_ids
        if sorted(taken) != list(range(num_blocks)):
            raise ValueError("the cache has other blocks than 0..%d" % (num_blocks - 1))

    @property
    def keeper_region(self) -> int:
        """A region whose rows nobody reads."""
        return self._keeper.region

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def region_of(self, request_id: str) -> int:
        return self._entry(request_id).request.region

    def blocks_of(self, request_id: str) -> list[int]:
        return list(self._entry(request_id).blocks)

    def request_ids(self) -> list[str]:
        return list(self._entries)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Appends blocks to requests' tables; admits requests that are new. All fresh blocks are
        recycled at once. A mistake in one is found before anything is done."""
        fresh: set[int] = set()
        for assignment in assignments:
            self._check(assignment, fresh)
            fresh.update(assignment.fresh_blocks)
        self.recycle(fresh & self._used)
        for assignment in assignments:
            entry = self._entries.get(assignment.request_id) or self._admit(assignment.request_id)
            blocks = list(assignment.block_ids)
            if not blocks:
                continue
            entry.request.assign_blocks(0, shared_blocks=blocks)
            entry.blocks.extend(blocks)
            for block in blocks:
                self._holders[block] += 1
            self._used.update(blocks)

    def truncate(self, request_id: str, block_count: int) -> None:
        """Takes all blocks but the first `block_count` out of the request's table. Its region and
        what is hot in it stay (preemption, a request that is rewound)."""
        entry = self._entry(request_id)
        dropped = entry.blocks[block_count:]
        if not dropped:
            return
        # Steps that are on their way resolve positions through the table.
        fence = self._fence()
        fence.wait()
        entry.request.free_blocks(dropped)
        del entry.blocks[block_count:]
        self._drop(dropped, fence)

    def finish(self, request_id: str) -> None:
        """Ends the request. Does not wait: its region is given back when the steps enqueued so far
        are done, which a later call sees."""
        entry = self._entry(request_id)
        fence = self._fence()
        self._drop(entry.blocks, fence)
        self._leaving.append((fence, entry))
        del self._entries[request_id]
        self._release_left()

    def reset(self, request_id: str) -> None:
        """Empties the request's region: what was hot becomes a miss. The region may be another."""
        entry = self._entry(request_id)
        fence = self._fence()
        fence.wait()
        entry.request.release()
        entry.request = self._cache.admit(self._names.next(request_id))
        if entry.blocks:
            entry.request.assign_blocks(0, shared_blocks=entry.blocks)

    def recycle(self, block_ids: Iterable[int]) -> None:
        """Makes the rows of blocks that no request has in its table nobody's."""
        blocks = sorted(set(block_ids))
        if not blocks:
            return
        # Steps that could read them must be done: they would take copies of the old rows.
        waits = {id(f): f for f in (self._last_use.get(block) for block in blocks) if f}
        for fence in waits.values():
            fence.wait()
        self.once(lambda: self._make_unbacked(blocks))
        self.recycled_blocks += len(blocks)
        self._used.difference_update(blocks)
        for block in blocks:
            self._last_use.pop(block, None)

    def once(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, on the first rank, while no rank is before or behind this; None on
        the others."""
        self._ranks.barrier()
        result = work() if self._ranks.first else None
        self._ranks.barrier()
        return result

    def _make_unbacked(self, blocks: list[int]) -> None:
        size = self._cache.layout.block_size
        rows = np.asarray(blocks, np.int64)[:, None] * size + np.arange(size)[None, :]
        for backed in self._backed:
            backed[rows.reshape(-1)] = _NEVER_BACKED
        self._cache.invalidate_blocks(blocks)

    def close(self) -> None:
        """Releases all, once their work is done; the blocks once no rank needs them."""
        self._fence().wait()
        for request_id in list(self._entries):
            self.finish(request_id)
        self._release_left(wait=True)
        self._ranks.barrier()
        self._keeper.release()

    def _admit(self, request_id: str) -> _Entry:
        self._release_left(wait=len(self._entries) + len(self._leaving) >= self._regions())
        entry = _Entry(self._cache.admit(self._names.next(request_id)))
        self._entries[request_id] = entry
        return entry

    def _regions(self) -> int:
        return self._cache.layout.max_requests - 1  # the keeper has one

    def _release_left(self, wait: bool = False) -> None:
        """Releases requests whose work is done; with `wait` all."""
        remaining = []
        for fence, entry in self._leaving:
            if wait:
                fence.wait()
            elif not fence.done():
                remaining.append((fence, entry))
                continue
            entry.request.release()
        self._leaving = remaining

    def _drop(self, blocks: Sequence[int], fence: Any) -> None:
        for block in blocks:
            self._holders[block] -= 1
            self._last_use[block] = fence

    def _entry(self, request_id: str) -> _Entry:
        entry = self._entries.get(request_id)
        if entry is None:
            raise KeyError("no request %r; it begins with assign_blocks" % request_id)
        return entry

    def _check(self, assignment: Assignment, given: set[int]) -> None:
        """`given`: fresh blocks of assignments before."""
        request_id, blocks = assignment.request_id, assignment.block_ids
        if not 0 <= assignment.reused_blocks <= len(blocks):
            raise ValueError(
                "reused_blocks is %d of %d blocks" % (assignment.reused_blocks, len(blocks))
            )
        own = set(self._entries[request_id].blocks) if request_id in self._entries else set()
        for block in blocks:
            if not 0 <= block < self._num_blocks:
                raise ValueError("block %d; there are 0..%d" % (block, self._num_blocks - 1))
            if block in own:
                raise ValueError("request %r has block %d twice" % (request_id, block))
            own.add(block)
        for block in assignment.fresh_blocks:
            holders = self._holders[block] + (block in given)
            if holders:
                raise ValueError(
                    "block %d is given to request %r as a new one, and %d other requests have it"
                    % (block, request_id, holders)
                )
