"""The counters of one layer group."""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Optional, Sequence


@dataclass(frozen=True)
class Counters:
    """This session's counters of one layer group, in the order of kernels/counters.h.

    hits + misses = distinct lookups of the rows of a request
    misses        = rows_copied + unsourced + unbacked_reads + unplaced
    """
    steps: int = 0               # swap-in calls with at least one real row
    hits: int = 0                # lookups found in the hot buffer
    misses: int = 0              # lookups not found
    newest: int = 0              # positions that named a newest slot of their request
    invalid: int = 0             # positions that were masked
    duplicates: int = 0          # positions that repeated a lookup
    unsourced: int = 0           # misses at or past the end of the host pool: zeroed
    unbacked_reads: int = 0      # misses on a row that was never backed up: zeroed
    unplaced: int = 0            # misses that no hot slot could take
    rows_copied: int = 0         # rows whose bytes were placed
    bytes_copied: int = 0        # bytes of those that came from the host pool, all layers
    backed_up_rows: int = 0      # rows written to the host pool
    backed_up_bytes: int = 0     # bytes of those, all layers
    state_repairs: int = 0       # corrupt LRU entries met and refused
    rejected_rows: int = 0       # batch rows whose request was out of range
    invalidated_copies: int = 0  # hot rows dropped because their block was assigned again
    evictions: int = 0           # owned hot slots given to another row
    rows_shared: int = 0         # rows_copied that came from another request's hot row
    rows_kept: int = 0           # rows_copied that had stayed on the device as newest rows

    @property
    def hit_rate(self) -> Optional[float]:
        """hits / (hits + misses); None while there were no lookups."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None


COUNTER_COUNT = len(fields(Counters))


def counters_of(values: Sequence[int]) -> Counters:
    """From the numbers as the kernels keep them."""
    return Counters(*values)
