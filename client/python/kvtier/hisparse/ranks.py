"""Workers of one model that share one copy of its rows. Needs no torch."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable


def _alone() -> None:
    return


@dataclass(frozen=True)
class Ranks:
    """Tensor parallelism: the ranks of a node write the same rows, so the pool has them once.

    Every rank makes the same calls of its tier in the same order, under the same cache name, with
    the same bytes for the same row; each on its own session and device. What is done once, the
    first one does. A rank that fails leaves the others in `barrier`, which should have a limit.

    first    one rank of the node's
    barrier  returns once all ranks of the node have called it; raises if one does not come
    """

    first: bool = True
    barrier: Callable[[], None] = _alone
