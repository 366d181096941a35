"""The inputs of a step that all layers share. Needs no torch."""
from __future__ import annotations

from typing import Any

from kvtier.hisparse.rows import RowBook


class StepBook:
    """Writes a step's requests and newest slots, once, where the kernels of all groups read them.

    The engine's layers all bring the same arrays. The model's first layer prepares the step; the
    others find it done. Everything here may be captured in a graph.
    """

    def __init__(self, arrays: Any, rows: RowBook, cache: Any):
        self._arrays = arrays
        self._rows = rows
        self._row_to_request = arrays.view(cache.row_to_request)
        self._newest_slot = arrays.view(cache.newest_slot)
        self._newest_rows = arrays.full(self._newest_slot.shape[0], rows.scrap_row)
        self._num_tokens: int | None = None  # of the step that is prepared
        self._seen: set[str] = set()  # what the first layer has done in it

    def prepare(
        self, req_id_per_token: Any, slot_mapping: Any, num_tokens: int, first_layer: str = ""
    ) -> None:
        """`first_layer`: what the first layer is about to do. Doing it again begins a new step, as
        runs for warming up end without a backup."""
        if num_tokens > self._newest_slot.shape[0]:
            raise ValueError(
                "a step of %d tokens; the cache was made for %d"
                % (num_tokens, self._newest_slot.shape[0])
            )
        again = first_layer in self._seen
        if not again and self._num_tokens == num_tokens:
            self._seen.add(first_layer) if first_layer else None
            return
        self._seen = {first_layer} if first_layer else set()
        self._num_tokens = num_tokens
        requests = req_id_per_token[:num_tokens]
        self._row_to_request[:num_tokens] = self._rows.regions[requests]
        if slot_mapping is None:
            self._newest_slot[:num_tokens] = -1
            self._newest_rows[:num_tokens] = self._rows.scrap_row
            return
        slots = slot_mapping[:num_tokens]
        self._newest_slot[:num_tokens] = slots
        # Tokens that pad a batch have no slot, and perhaps the request of another row.
        self._newest_rows[:num_tokens] = self._arrays.where(
            slots >= 0, self._rows.newest_rows[requests], self._rows.scrap_row
        )

    def newest_rows(self, num_tokens: int) -> Any:
        """int32 [num_tokens] hot row of each token's newest row."""
        return self._newest_rows[:num_tokens]

    def end(self) -> int:
        """Tokens of the step that ends."""
        if self._num_tokens is None:
            raise ValueError("there was no step: no layer has written or swapped in")
        num_tokens, self._num_tokens = self._num_tokens, None
        self._seen.clear()
        return num_tokens
