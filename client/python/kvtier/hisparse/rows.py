"""Which request each batch row is. Needs no torch.

Hot rows, their order and who owns them belong to a request's region. So a batch is reordered by
writing two small arrays, and nothing of a request's state moves.
"""
from __future__ import annotations

from typing import Any, Callable, Sequence

PADDING = -1


class RowBook:
    """Two arrays on the device, read by every step: the region of each batch row, and the hot row
    of its newest token. Their addresses never change, so captured graphs read this step's batch.

    Rows without a request are padding: region -1, and newest tokens go to `scrap_row`. Rows past
    the batch are padding, too, whatever an engine says of them: `num_real_rows` is written.
    """

    def __init__(
        self,
        arrays: Any,
        max_rows: int,
        newest_row: Callable[[int], int],
        scrap_row: int,
        num_real_rows: Any,
    ):
        self._arrays = arrays
        self._newest_row = newest_row
        self._num_real_rows = num_real_rows
        self.scrap_row = scrap_row
        self._request_ids: list[str | None] = [None] * max_rows
        self._regions = [PADDING] * max_rows
        self._real_rows = -1
        self.regions = arrays.full(max_rows, PADDING)
        self.newest_rows = arrays.full(max_rows, scrap_row)

    @property
    def request_ids(self) -> list[str | None]:
        """By batch row."""
        return list(self._request_ids)

    def set(self, request_ids: Sequence[str | None], region_of: Callable[[str], int]) -> None:
        """Row i is request_ids[i] from now on, in the order of the current stream; rows behind them
        and those that are None are padding."""
        if len(request_ids) > len(self._request_ids):
            raise ValueError(
                "a batch of %d rows; max_num_reqs is %d"
                % (len(request_ids), len(self._request_ids))
            )
        named = [request for request in request_ids if request is not None]
        if len(set(named)) != len(named):
            raise ValueError("a request has two rows in one batch: %s" % named)
        padding = [None] * (len(self._request_ids) - len(request_ids))
        ids = list(request_ids) + padding
        regions = [PADDING if request is None else region_of(request) for request in ids]
        if self._real_rows != len(request_ids):
            self._real_rows = len(request_ids)
            self._arrays.upload(self._num_real_rows, [len(request_ids)])
        self._request_ids = ids
        if regions == self._regions:
            return
        self._regions = regions
        self._arrays.upload(self.regions, regions)
        self._arrays.upload(
            self.newest_rows,
            [
                self.scrap_row if region == PADDING else self._newest_row(region)
                for region in regions
            ],
        )
