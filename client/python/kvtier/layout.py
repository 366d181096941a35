"""The layout of a cache: what sessions that share it must agree on.

Fields as in CacheLayout of proto/kvtier/v1/types.proto, which has their ranges; None is the daemon's
default. Cache.layout has all of them filled in.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from kvtier import messages
from kvtier.errors import malformed_answer


class RowFormat(enum.IntEnum):
    """Placement of the bytes of a row."""
    CONTIGUOUS = 1
    SPLIT_PAGE = 2  # a page holds all its values, then all its scales, then padding


class EvictionPolicy(enum.IntEnum):
    """Which hot slots give way to rows that a step misses."""
    LRU = 1   # the least recently used
    AGED = 2  # those with the smallest aged scores


@dataclass(frozen=True)
class Layer:
    """The rows of one layer. Sizes in bytes; `row_bytes` a multiple of 16."""
    row_bytes: int
    row_format: RowFormat = RowFormat.CONTIGUOUS
    row_stride_bytes: Optional[int] = None  # contiguous only
    scale_bytes: int = 0                    # split page only
    page_bytes: Optional[int] = None        # split page only


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one top-k, leader first."""
    layers: Sequence[Layer]
    top_k: int
    hot_size: Optional[int] = None  # rows under eviction for one request; None: 2 * top_k


@dataclass(frozen=True)
class CacheLayout:
    """Layer groups, blocks of the host pool and requests of a cache."""
    groups: Sequence[LayerGroup]
    block_count: int
    max_requests: int
    block_size: Optional[int] = None
    rows_per_request: Optional[int] = None
    max_blocks_per_request: Optional[int] = None
    step_rows: Optional[int] = None
    dtype_tag: str = ""
    eviction_policy: EvictionPolicy = EvictionPolicy.LRU
    share_rows: bool = False


@dataclass(frozen=True)
class Retention:
    """What stays of a cache when its sessions are gone: the cache for `duration` seconds, and blocks
    that its requests held, at most `blocks_max` of them (None: all)."""
    duration: float
    blocks_max: Optional[int] = None


@dataclass(frozen=True)
class Sharing:
    """Who may attach to a cache beside the user who made it: users and groups by number, or all who
    may open a session."""
    uids: Sequence[int] = ()
    gids: Sequence[int] = ()
    everybody: bool = False


def sharing_fields(share: Sharing) -> dict:
    """Those of kvtier.v1.Sharing."""
    return {"uids": list(share.uids), "gids": list(share.gids), "everybody": share.everybody}


def retention_message(retain: Retention) -> Any:
    """As kvtier.v1.Retention."""
    message = messages.v1("Retention")()
    nanoseconds = round(retain.duration * 10**9)
    message.duration.seconds, message.duration.nanos = divmod(nanoseconds, 10**9)
    if retain.blocks_max is not None:
        message.blocks_max = retain.blocks_max
    return message


_OPTIONAL = ("block_size", "rows_per_request", "max_blocks_per_request", "step_rows")


def to_message(layout: CacheLayout) -> Any:
    """As kvtier.v1.CacheLayout. Raises TypeError or ValueError for values of no such type."""
    message = messages.v1("CacheLayout")(
        block_count=layout.block_count, max_requests=layout.max_requests,
        dtype_tag=layout.dtype_tag, eviction_policy=int(layout.eviction_policy),
        share_rows=layout.share_rows)
    for name in _OPTIONAL:
        if getattr(layout, name) is not None:
            setattr(message, name, getattr(layout, name))
    for group in layout.groups:
        to = message.groups.add(top_k=group.top_k)
        if group.hot_size is not None:
            to.hot_size = group.hot_size
        for layer in group.layers:
            row = to.layers.add(row_format=int(layer.row_format), row_bytes=layer.row_bytes,
                                scale_bytes=layer.scale_bytes)
            for name in ("row_stride_bytes", "page_bytes"):
                if getattr(layer, name) is not None:
                    setattr(row, name, getattr(layer, name))
    return message


def _layer_of(message: Any) -> Layer:
    contiguous = message.row_format == RowFormat.CONTIGUOUS
    return Layer(message.row_bytes, RowFormat(message.row_format),
                 message.row_stride_bytes if contiguous else None,
                 message.scale_bytes, None if contiguous else message.page_bytes)


def from_message(message: Any) -> CacheLayout:
    """From an answer, which has every default filled in and was checked."""
    return CacheLayout(
        groups=tuple(LayerGroup(tuple(_layer_of(layer) for layer in group.layers), group.top_k,
                                group.hot_size) for group in message.groups),
        block_count=message.block_count, max_requests=message.max_requests,
        dtype_tag=message.dtype_tag, eviction_policy=EvictionPolicy(message.eviction_policy),
        share_rows=message.share_rows,
        **{name: getattr(message, name) for name in _OPTIONAL})


def check_given(asked: Any, given: Any, path: str = "layout") -> None:
    """Everything that `asked` says must be as it says in `given`. Raises InternalError."""
    for field, value in asked.ListFields():
        name = "%s.%s" % (path, field.name)
        answer = getattr(given, field.name)
        if field.name in ("groups", "layers"):
            if len(value) != len(answer):
                raise malformed_answer("%s has %d entries, and %d were asked for" %
                                       (name, len(answer), len(value)))
            for index, (one, other) in enumerate(zip(value, answer)):
                check_given(one, other, "%s[%d]" % (name, index))
        elif value != answer:
            raise malformed_answer("%s is %s, and %s was asked for" % (name, answer, value))
    # Absent is a value of these.
    if path == "layout" and (asked.dtype_tag, asked.share_rows) != (given.dtype_tag,
                                                                    given.share_rows):
        raise malformed_answer("layout.dtype_tag or share_rows is not the one that was asked for")
