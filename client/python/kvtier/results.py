"""What calls return."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple


@dataclass(frozen=True)
class Device:
    """One device of the node: "GPU-...", or "CPU-0" of the backend "cpu"."""
    uuid: str
    name: str
    backend: str
    memory_bytes: int


@dataclass(frozen=True)
class AssignedBlocks:
    """What assign_blocks appended to the block table, shared blocks first."""
    block_ids: Tuple[int, ...]
    generations: Tuple[int, ...]  # of those blocks; the pair names the rows' tenant
    table_index: int              # entry of the first of them
    invalidated_copies: int       # hot rows dropped in all sessions


@dataclass(frozen=True)
class Ticket:
    """Work on the daemon's device stream."""
    number: int
    completed: bool


@dataclass(frozen=True)
class KeptBlock:
    """A block that nobody holds, whose rows are still there: assign_blocks takes it up again, as a
    shared block with its generation. Verify what it holds."""
    block_id: int
    generation: int
    tag: int          # as it was assigned with
    rows_backed: int  # in all layer groups; the others read as zeros


def device_of(message: Any) -> Device:
    """From kvtier.v1.Device."""
    return Device(message.uuid, message.name, message.backend, message.memory_bytes)
