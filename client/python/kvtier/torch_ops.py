"""The steps of a cache as operators of PyTorch, which torch.compile traces and graphs capture.

    steps = kvtier.torch_ops.Steps(cache)

    @torch.compile(fullgraph=True)
    def decode(positions, new_rows):
        steps.write_newest(0, 0, new_rows)                    # the engine's rows of this step
        hot_indices = steps.swap_in(0, num_rows, topk=positions, layers=(0, 1))
        out = attend(steps.groups[0].hot[0], hot_indices)
        steps.replay_plan(0, num_rows, hot_indices)
        out = attend(steps.groups[0].hot[1], hot_indices)
        steps.backup_newest(num_rows)
        return out

Importing this module needs PyTorch 2.4 or later. The operators are kvtier::write_newest, swap_in,
replay_plan, backup_newest and backup_rows; they run on PyTorch's current stream.

The hot buffer is the daemon's memory and written behind the compiler's back: declared as written, it
would be copied, and rows in a copy are lost. What a compiler must know it learns by two small tensors
that operators declare to write: `order`, which keeps them in the order of the program and alive, and
the hot indices, which are ready when swap_in (for followers: replay_plan) has run. So read hot rows
through hot indices alone, write them through write_newest alone, and let a compiled function run one
step of each group: reads of one step are not ordered before the swap-in of the next.
"""
from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from kvtier.arrays import Array
from kvtier.errors import FailedPreconditionError, argument_error
from kvtier.native import ALL_LAYERS
from kvtier.plane import LocalPlane, StepInputs

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if _VERSION < (2, 4):
    raise ImportError("kvtier.torch_ops needs PyTorch 2.4 or later, and this is %s: use the calls "
                      "of kvtier.Cache" % torch.__version__)

_CACHES: Dict[int, Any] = {}  # weak references
_NUMBERS = itertools.count(1)


def _cache_of(number: int) -> LocalPlane:
    cache = _CACHES[number]() if number in _CACHES else None
    if cache is None:
        raise FailedPreconditionError("the cache of these operators is gone: make Steps of one "
                                      "that lives")
    return cache


def _own(tensor: torch.Tensor, array: Array) -> Optional[torch.Tensor]:
    """None for the step buffer's own array, which need not be checked."""
    return None if tensor.data_ptr() == array.address else tensor


def _span(first_layer: int, layer_count: int) -> Optional[Tuple[int, int]]:
    return None if first_layer == ALL_LAYERS else (first_layer, layer_count)


def _write_newest(cache: int, group: int, layer: int, rows: torch.Tensor, hot: torch.Tensor,
                  row_to_request: torch.Tensor, num_real_rows: torch.Tensor,
                  order: torch.Tensor) -> None:
    del order
    found = _cache_of(cache).groups[group]
    if hot.data_ptr() != found.layers[layer].hot.address:
        raise argument_error("hot", "a copy of the hot buffer, made by a compiler",
                             "the buffer itself: nothing else in the function may write it")
    count = rows.shape[0]
    regions = row_to_request[:count].long()
    places = torch.arange(count, device=rows.device)
    real = (regions >= 0) & (regions < found.region_count) & (places < num_real_rows)
    same = regions[:, None] == regions[None, :]
    rank = (same.tril(-1) & real[None, :]).sum(1)
    target = regions * found.region_stride + found.hot_size + rank
    # Padding writes once more what the first real row does; without one, a row stays as it is.
    first = real.int().argmax()
    any_real = real[first]
    target = torch.where(real, target, torch.where(any_real, target[first], 0))
    rows = rows.view(torch.uint8).view(count, -1)
    stay = torch.where(any_real, rows[first], hot[0])
    hot.index_copy_(0, target, torch.where(real[:, None], rows, stay[None, :]))


def _swap_in(cache: int, group: int, num_rows: int, topk: torch.Tensor,
             row_to_request: torch.Tensor, newest_slot: torch.Tensor, num_real_rows: torch.Tensor,
             use_slots: bool, first_layer: int, layer_count: int, hot_indices: torch.Tensor,
             order: torch.Tensor) -> None:
    del order
    plane = _cache_of(cache)
    arrays = plane.groups[group]
    plane.swap_in(group, num_rows, use_slots=use_slots, layers=_span(first_layer, layer_count),
                  inputs=StepInputs(_own(topk, arrays.topk),
                                    _own(row_to_request, plane.row_to_request),
                                    _own(newest_slot, plane.newest_slot),
                                    _own(num_real_rows, plane.num_real_rows),
                                    _own(hot_indices, arrays.hot_indices)))


def _replay_plan(cache: int, group: int, num_rows: int, row_to_request: torch.Tensor,
                 num_real_rows: torch.Tensor, first_layer: int, layer_count: int,
                 hot_indices: torch.Tensor, order: torch.Tensor) -> None:
    del hot_indices, order
    plane = _cache_of(cache)
    plane.replay_plan(group, num_rows, layers=_span(first_layer, layer_count),
                      inputs=StepInputs(row_to_request=_own(row_to_request, plane.row_to_request),
                                        num_real_rows=_own(num_real_rows, plane.num_real_rows)))


def _backup_newest(cache: int, num_rows: int, row_to_request: torch.Tensor,
                   newest_slot: torch.Tensor, num_real_rows: torch.Tensor,
                   order: torch.Tensor) -> None:
    del order
    plane = _cache_of(cache)
    plane.backup_newest(num_rows, inputs=StepInputs(
        row_to_request=_own(row_to_request, plane.row_to_request),
        newest_slot=_own(newest_slot, plane.newest_slot),
        num_real_rows=_own(num_real_rows, plane.num_real_rows)))


def _backup_rows(cache: int, group: int, sources: List[torch.Tensor], source_rows: torch.Tensor,
                 slots: torch.Tensor, regions: Optional[torch.Tensor],
                 order: torch.Tensor) -> None:
    del order
    _cache_of(cache).backup_rows(group, sources, source_rows, slots, regions)


_SCHEMAS = (
    ("write_newest(int cache, int group, int layer, Tensor rows, Tensor hot, "
     "Tensor row_to_request, Tensor num_real_rows, Tensor(a!) order) -> ()", _write_newest),
    ("swap_in(int cache, int group, int num_rows, Tensor topk, Tensor row_to_request, "
     "Tensor newest_slot, Tensor num_real_rows, bool use_slots, int first_layer, int layer_count, "
     "Tensor(a!) hot_indices, Tensor(b!) order) -> ()", _swap_in),
    ("replay_plan(int cache, int group, int num_rows, Tensor row_to_request, Tensor num_real_rows, "
     "int first_layer, int layer_count, Tensor(a!) hot_indices, Tensor(b!) order) -> ()",
     _replay_plan),
    ("backup_newest(int cache, int num_rows, Tensor row_to_request, Tensor newest_slot, "
     "Tensor num_real_rows, Tensor(a!) order) -> ()", _backup_newest),
    ("backup_rows(int cache, int group, Tensor[] sources, Tensor source_rows, Tensor slots, "
     "Tensor? regions, Tensor(a!) order) -> ()", _backup_rows),
)

_LIBRARY = torch.library.Library("kvtier", "DEF")


def _fake(*_: Any, **__: Any) -> None:
    """Nothing to say about shapes: no operator returns any."""


for _schema, _function in _SCHEMAS:
    _LIBRARY.define(_schema)
    _name = _schema.partition("(")[0]
    # One function for all devices: it looks at addresses alone.
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake("kvtier::" + _name, _fake, lib=_LIBRARY)


@dataclass(frozen=True)
class GroupTensors:
    """Of one layer group, as Group has them."""
    hot: List[torch.Tensor]  # one a layer: uint8 [R * region_stride, row_bytes] (or pages)
    topk: torch.Tensor
    hot_indices: torch.Tensor


class Steps:
    """The verbs of a cache as operators. Holds tensors of the cache's memory, so end it before the
    cache is to be closed. Tensors that are not given are those of the step buffers."""

    def __init__(self, cache: LocalPlane) -> None:
        number = self.number = next(_NUMBERS)
        _CACHES[number] = weakref.ref(cache, lambda _: _CACHES.pop(number, None))
        self.row_to_request = cache.row_to_request.torch()
        self.newest_slot = cache.newest_slot.torch()
        self.num_real_rows = cache.num_real_rows.torch()
        self.groups = [GroupTensors([layer.hot.torch() for layer in group.layers],
                                    group.topk.torch(), group.hot_indices.torch())
                       for group in cache.groups]
        self.order = torch.zeros(1, dtype=torch.int32, device=self.row_to_request.device)

    def write_newest(self, group: int, layer: int, rows: torch.Tensor, *,
                     row_to_request: Optional[torch.Tensor] = None,
                     num_real_rows: Optional[torch.Tensor] = None) -> None:
        """Copies rows [num_rows, ...] of a contiguous layer's bytes to the newest rows of their
        requests; padding rows are skipped."""
        torch.ops.kvtier.write_newest(
            self.number, group, layer, rows, self.groups[group].hot[layer],
            self.row_to_request if row_to_request is None else row_to_request,
            self.num_real_rows if num_real_rows is None else num_real_rows, self.order)

    def swap_in(self, group: int, num_rows: int, *, topk: Optional[torch.Tensor] = None,
                row_to_request: Optional[torch.Tensor] = None,
                newest_slot: Optional[torch.Tensor] = None,
                num_real_rows: Optional[torch.Tensor] = None,
                hot_indices: Optional[torch.Tensor] = None, use_slots: bool = False,
                layers: Optional[Tuple[int, int]] = None) -> torch.Tensor:
        """As Cache.swap_in. The hot indices: `hot_indices`, or those of the step buffers."""
        tensors = self.groups[group]
        found = tensors.hot_indices[:num_rows] if hot_indices is None else hot_indices
        first, count = (ALL_LAYERS, 0) if layers is None else layers
        torch.ops.kvtier.swap_in(
            self.number, group, num_rows, tensors.topk if topk is None else topk,
            self.row_to_request if row_to_request is None else row_to_request,
            self.newest_slot if newest_slot is None else newest_slot,
            self.num_real_rows if num_real_rows is None else num_real_rows, use_slots, first, count,
            found, self.order)
        return found

    def replay_plan(self, group: int, num_rows: int, hot_indices: torch.Tensor, *,
                    row_to_request: Optional[torch.Tensor] = None,
                    num_real_rows: Optional[torch.Tensor] = None,
                    layers: Optional[Tuple[int, int]] = None) -> torch.Tensor:
        """As Cache.replay_plan. `hot_indices` is what swap_in returned, and comes back: reads of the
        followers' rows through it come after the copies."""
        first, count = (ALL_LAYERS, 0) if layers is None else layers
        torch.ops.kvtier.replay_plan(
            self.number, group, num_rows,
            self.row_to_request if row_to_request is None else row_to_request,
            self.num_real_rows if num_real_rows is None else num_real_rows, first, count,
            hot_indices, self.order)
        return hot_indices

    def backup_newest(self, num_rows: int, *, row_to_request: Optional[torch.Tensor] = None,
                      newest_slot: Optional[torch.Tensor] = None,
                      num_real_rows: Optional[torch.Tensor] = None) -> None:
        """As Cache.backup_newest."""
        torch.ops.kvtier.backup_newest(
            self.number, num_rows,
            self.row_to_request if row_to_request is None else row_to_request,
            self.newest_slot if newest_slot is None else newest_slot,
            self.num_real_rows if num_real_rows is None else num_real_rows, self.order)

    def backup_rows(self, group: int, sources: List[torch.Tensor], source_rows: torch.Tensor,
                    slots: torch.Tensor, regions: Optional[torch.Tensor] = None) -> None:
        """As Cache.backup_rows."""
        torch.ops.kvtier.backup_rows(self.number, group, sources, source_rows, slots, regions,
                                     self.order)
