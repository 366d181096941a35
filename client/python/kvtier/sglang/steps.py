"""What a step of all layers is told, in one block of device memory. Needs no torch."""
from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from kvtier import StepInputs

# Added to a position it stays far below every row.
_NO_BASE = -(1 << 30)


class StepBlock:
    """int32 [fields, max_rows] on the device, written by one copy a step. Its address never
    changes, so captured graphs read the step of their replay.

    newest_rows   hot row of each request's new token; behind the batch a row that nobody reads
    backup_*      source rows, slots and regions of the tokens before
    """

    def __init__(self, arrays: Any, max_rows: int, scrap_row: int):
        self._arrays = arrays
        self._max_rows = max_rows
        self._padding = np.array(
            [scrap_row, -1, -1, _NO_BASE, 0, -1, -1, -1], np.int32
        )[:, None]
        self._block = arrays.full((len(self._padding), max_rows), 0)
        (
            self.newest_rows,
            self._newest_slots,
            self._regions,
            self._short_bases,
            self._num_real_rows,
            self.backup_rows,
            self.backup_slots,
            self.backup_regions,
        ) = self._block
        self._inputs: tuple[Any, StepInputs] | None = None
        self.write([], [], [], [], [], [])

    def write(
        self,
        newest_rows: Sequence[int],
        newest_slots: Sequence[int],
        regions: Sequence[int],
        is_short: Sequence[bool],
        bases: Sequence[int],
        backups: Sequence[tuple[int, int, int]],
    ) -> None:
        """One entry for each request, but for `backups`: (hot row, slot, region)."""
        count = len(newest_rows)
        if count > self._max_rows:
            raise ValueError("a batch of %d requests; at most %d" % (count, self._max_rows))
        block = np.repeat(self._padding, self._max_rows, axis=1)
        short = np.asarray(is_short, bool)
        block[0, :count] = newest_rows
        block[1, :count] = newest_slots
        block[2, :count] = np.where(short, -1, regions)  # the kernel passes short ones over
        block[3, :count] = np.where(short, bases, _NO_BASE)
        block[4, 0] = count
        for column, backup in enumerate(backups):
            block[5:, column] = backup
        self._arrays.upload(self._block, block)

    def inputs(self, topk: Any) -> StepInputs:
        """For kernels. The same object for the same memory, as what it says is checked once."""
        key = self._arrays.address(topk), topk.shape
        if self._inputs is None or self._inputs[0] != key:
            self._inputs = key, StepInputs(
                topk=topk,
                row_to_request=self._regions,
                newest_slot=self._newest_slots,
                num_real_rows=self._num_real_rows[:1],
            )
        return self._inputs[1]

    def short_rows(self, topk: Any) -> Any:
        """int32 [rows, top_k]: hot rows of short requests' positions; far below -1 elsewhere."""
        return self._short_bases[: topk.shape[0], None] + topk
