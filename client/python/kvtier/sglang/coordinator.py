"""The calls that SGLang's scheduler and sparse attention make, over rows that kvtierd holds.

With device="cpu" arrays are numpy's, and nothing needs torch.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from kvtier import CacheLayout, Layer, LayerGroup, StepInputs, UnavailableError
from kvtier._frameworks import frameworks_for
from kvtier.hisparse.config import HiSparseConfig, RowShape, num_blocks_of_pool
from kvtier.sglang.requests import PoolRequest, RequestBook
from kvtier.sglang.steps import StepBlock


@dataclass(frozen=True)
class TokenStats:
    """How full hot buffers and host pool are, in tokens."""

    device_tokens: int
    device_token_usage: float
    host_tokens: int
    host_token_usage: float


class HiSparseCoordinator:
    """One model in one worker process.

    A request is *short* while its tokens fit into its hot buffer. Position p of a short request is
    in hot row base + p: its top-k need no lookup and its rows no copy (the fast path). The newest
    token of a short one is written there, too; that of a longer one into the reserved row.

    A step is: `map_last_loc_to_buffer` outside of graphs; then, for each layer, the engine writes
    the newest rows at the rows it returned and calls `swap_in_selected_pages`, which a graph may
    capture.

    newest_rows   int32 [max_num_reqs]: what map_last_loc_to_buffer returned last, and scrap_row for
                  the rows behind; its address never changes
    scrap_row     a row of `hot_rows` that nobody reads
    Not thread-safe; device work goes to torch's current stream.
    """

    def __init__(
        self,
        session: Any,
        cache: str,
        config: HiSparseConfig,
        *,
        row_width: int,
        kv_dtype: Any,
        layer_groups: Sequence[Sequence[int]],
        max_num_reqs: int,
        req_pool_size: int | None = None,
        num_blocks: int | None = None,
        device: str = "cpu",
        kv_buffers: Sequence[Any] = (),
        req_to_token: Any = None,
        loc_mapping: Any = None,
        attach_options: dict[str, Any] | None = None,
        layout_options: dict[str, Any] | None = None,
    ):
        """Creates or joins the cache.

        layer_groups   layer ids that share one top-k, leader first; [[0], [1], ...] where every
                       layer has an indexer
        req_pool_size  rows of the engine's request table; None: max_num_reqs + 1
        kv_buffers     [rows, row_width] of each layer: where prefill leaves its rows on the device
        req_to_token   int [req_pool_size, ...]: rows of kv_buffers of each request's tokens
        loc_mapping    int, by out_cache_loc; `map_last_loc_to_buffer` writes hot rows into it. All
                       of it is filled with `scrap_row` here
        """
        self.config = config
        self.row_shape = RowShape.of(row_width, kv_dtype)
        self.arrays = frameworks_for(str(device))
        self._kv_buffers, self._req_to_token = kv_buffers, req_to_token
        self._loc_mapping = loc_mapping
        self._place = _places_of(layer_groups)  # layer id -> (group, layer)
        if num_blocks is None:
            num_blocks = num_blocks_of_pool(config, [self.row_shape.row_bytes] * len(self._place))
        layer = Layer(row_bytes=self.row_shape.row_bytes)
        layout = CacheLayout(
            groups=[
                LayerGroup([layer] * len(ids), top_k=config.top_k, hot_size=config.hot_size)
                for ids in layer_groups
            ],
            block_count=num_blocks,
            max_requests=max_num_reqs + 1,  # and the one whose rows nobody reads
            block_size=config.block_size,
            dtype_tag=self.row_shape.dtype,
            **{"step_rows": max_num_reqs, **(layout_options or {})},
        )
        self.cache = session.attach(
            cache,
            layout,
            **{"device_uuid": self.arrays.device_uuid(session), **(attach_options or {})},
        )
        self.requests = RequestBook(
            self.cache,
            max_num_reqs + 1 if req_pool_size is None else req_pool_size,
            self.arrays.fence,
        )
        self._staging: list[tuple[Any, Any]] = []
        self._all_short = False
        self._bind_step_buffers()

    def _bind_step_buffers(self) -> None:
        view = self.arrays.view
        self._groups = self.cache.groups
        self._layer_groups: dict[int, list[int]] = {}
        for layer_id, (group, _) in self._place.items():
            self._layer_groups.setdefault(group, []).append(layer_id)
        self._region_stride = self._groups[0].region_stride
        self._hot_indices = [view(group.hot_indices) for group in self._groups]
        self._hot = {
            layer_id: view(self._groups[g].layers[l].hot, self.row_shape.dtype)
            for layer_id, (g, l) in self._place.items()
        }
        # Tokens that pad a captured batch are written somewhere.
        self._scrap = self.cache.admit("kvtier.sglang.scrap")
        self.scrap_row = self._groups[0].newest_hot_row(self._scrap.region)
        self._step = StepBlock(self.arrays, self.cache.layout.step_rows, self.scrap_row)
        self.newest_rows = self._step.newest_rows
        if self._loc_mapping is not None:
            self._loc_mapping[:] = self.scrap_row
        self._selected: list[Any] = [None] * len(self._groups)
        # Of admissions, which come between the beginning of a step and the step.
        self._region_of_one, self._slot_of_one, self._one = self.arrays.full((3, 1), -1)
        self.arrays.upload(self._one, [1])

    # ---- Where rows are.

    def hot_rows(self, layer_id: int) -> Any:
        """[rows, row_width]: the layer's hot buffer, which its attention reads."""
        return self._hot[layer_id]

    def host_rows(self, layer_id: int) -> Any:
        """[slots, row_width]: the layer's rows in the host pool, host memory."""
        group, layer = self._place[layer_id]
        return self.arrays.view(self._groups[group].layers[layer].host, self.row_shape.dtype)

    # ---- Requests.

    def admit_request_into_staging(self, req: Any, reserve_tokens: int = 0) -> None:
        """After prefill: copies the request's rows from kv_buffers to the host pool. The request
        may decode once `collect_ready_reqs` returns it; its rows of kv_buffers are then free.
        `reserve_tokens` (prompt and output) are sure to get blocks later."""
        tokens = _tokens_of(req)
        entry = self.requests.admit(str(req.rid), req.req_pool_idx, tokens, reserve_tokens)
        rows = self.arrays.int32(self._req_to_token[req.req_pool_idx, :tokens])
        slots = self.arrays.int32(entry.slots[:tokens])
        for group, layer_ids in self._layer_groups.items():
            sources = [self._kv_buffers[layer_id] for layer_id in layer_ids]
            self.cache.backup_rows(group, sources, rows, slots)
        entry.backed_tokens = tokens
        self._preload(entry)
        self._staging.append((self.arrays.fence(), req))
        req.hisparse_staging = True

    def reserve_host_rows(self, req: Any, tokens: int, reserve_tokens: int = 0) -> np.ndarray:
        """For rows that arrive in host memory (RDMA): int32 [tokens] rows of `host_rows` to write.
        Then `admit_request_direct`."""
        entry = self.requests.admit(str(req.rid), req.req_pool_idx, tokens, reserve_tokens)
        return entry.slots[:tokens]

    def admit_request_direct(self, req: Any) -> None:
        """The rows that reserve_host_rows named are written; the request may decode at once."""
        entry = self.requests[req.req_pool_idx]
        tokens = _tokens_of(req)
        for group in self._layer_groups:
            self.cache.mark_backed(group, entry.slots[:tokens])
        entry.backed_tokens = tokens
        self._preload(entry)
        req.hisparse_staging = False

    def has_ongoing_staging(self) -> bool:
        return len(self._staging) > 0

    def collect_ready_reqs(self) -> list[Any]:
        """Requests whose rows have arrived in the host pool since the last call."""
        ready = []
        while self._staging and self._staging[0][0].done():
            req = self._staging.pop(0)[1]
            req.hisparse_staging = False
            ready.append(req)
        return ready

    def request_finished(self, req: Any) -> None:
        """Ends the request, from whatever state. Does not wait for the device."""
        self._staging = [(fence, other) for fence, other in self._staging if other is not req]
        req.hisparse_staging = False
        if req.req_pool_idx in self.requests:
            self.requests.finish(req.req_pool_idx)

    abort_staging_request = request_finished
    retract_req = request_finished

    def close(self) -> None:
        """Waits for what is enqueued, releases all requests and leaves the cache. Tensors that the
        engine still has keep the memory mapped."""
        self.arrays.fence().wait()
        self._hot, self._hot_indices, self._selected = {}, [], []
        try:
            self.requests.close()
            self._scrap.release()
        except UnavailableError:
            pass  # a daemon that is gone has nothing to take back
        finally:
            self.cache.close()

    def __enter__(self) -> "HiSparseCoordinator":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    # ---- Steps.

    def map_last_loc_to_buffer(
        self,
        seq_lens: Any,
        out_cache_loc: Any,
        req_pool_indices: Any,
        seq_lens_cpu: Any,
        req_pool_indices_cpu: Any,
    ) -> Any:
        """Begins a step in which each request gets its token at position seq_len - 1: backs up the
        tokens before, and says where the new rows go. Outside of graphs.

        Returns int32 [requests] rows of `hot_rows` of every layer, which are also written to
        loc_mapping[out_cache_loc]. One small copy to the device, and a launch for each layer group;
        a call to the daemon where a request needs a block.
        """
        lengths = np.asarray(seq_lens_cpu, np.int64).tolist()
        entries = [self.requests[index] for index in np.asarray(req_pool_indices_cpu).tolist()]
        for entry, length in zip(entries, lengths):
            self.requests.grow(entry, length)
        backups = self._previous_tokens(entries, lengths)
        short = [length <= self.config.hot_size for length in lengths]
        self._all_short = len(short) > 0 and all(short)
        self._step.write(
            newest_rows=[self._row_of_newest(e, length) for e, length in zip(entries, lengths)],
            newest_slots=[e.slots[length - 1] for e, length in zip(entries, lengths)],
            regions=[e.request.region for e in entries],
            is_short=short,
            bases=[self._base_of(e) for e in entries],
            backups=backups,
        )
        self._backup_previous_tokens(len(backups))
        rows = self.newest_rows[: len(entries)]
        if self._loc_mapping is not None:
            self._loc_mapping[out_cache_loc] = self.arrays.cast(rows, self._loc_mapping)
        return rows

    def wait_for_pending_backup(self) -> None:
        """Nothing to do: backups are in the order of the stream."""

    def swap_in_selected_pages(
        self, req_pool_indices: Any, seq_lens: Any, top_k_result: Any, layer_id: int
    ) -> Any:
        """Makes the chosen rows of a layer hot, and says where they are. May be captured.

        req_pool_indices  as map_last_loc_to_buffer had them, and so are seq_lens; only how many
                          there are is read, and those behind the batch are padding
        top_k_result      int32 [rows, top_k] positions, -1 none
        Returns int32 [rows, top_k] rows of hot_rows(layer_id), -1 masked. A follower gets its
        leader's.
        """
        group, layer = self._place[layer_id]
        rows = top_k_result.shape[0]
        topk = self.arrays.int32(top_k_result)
        if layer > 0:
            if not self._skips_kernels():
                inputs = self._step.inputs(topk)
                self.cache.replay_plan(group, rows, layers=(layer, 1), inputs=inputs)
            return self._selected[group]
        found = self._step.short_rows(topk)
        if self._skips_kernels():
            selected = self.arrays.where((topk >= 0) & (found >= 0), found, -1)
        else:
            inputs = self._step.inputs(topk)
            self.cache.swap_in(group, rows, layers=(0, 1), inputs=inputs)
            # Of each row one of both is -1 or below.
            found = self.arrays.maximum(found, self._hot_indices[group][:rows])
            selected = self.arrays.where(topk >= 0, found, -1)
        self._selected[group] = selected
        return selected

    def get_token_stats(self) -> TokenStats:
        """Of requests that are admitted; nothing is asked of device or daemon."""
        layout = self.cache.layout
        host = sum(e.backed_tokens for e in self.requests)
        device = sum(min(e.backed_tokens, self.config.hot_size) for e in self.requests)
        host_capacity = layout.block_count * layout.block_size
        device_capacity = (layout.max_requests - 1) * self.config.hot_size
        return TokenStats(device, device / device_capacity, host, host / host_capacity)

    def _skips_kernels(self) -> bool:
        return self._all_short and not self.arrays.capturing()

    def _base_of(self, entry: PoolRequest) -> int:
        return entry.request.region * self._region_stride

    def _row_of_newest(self, entry: PoolRequest, length: int) -> int:
        return self._base_of(entry) + min(length - 1, self.config.hot_size)

    def _previous_tokens(
        self, entries: list[PoolRequest], lengths: list[int]
    ) -> list[tuple[int, int, int]]:
        """(hot row, slot, region) of the rows that each request's last step has written."""
        for entry, length in zip(entries, lengths):
            if not length - 2 <= entry.backed_tokens <= length - 1:
                raise ValueError(
                    "request %r has %d tokens in the host pool and comes with seq_len %d; %d or %d "
                    "was expected"
                    % (
                        entry.rid,
                        entry.backed_tokens,
                        length,
                        entry.backed_tokens + 1,
                        entry.backed_tokens + 2,
                    )
                )
        backups = []
        for entry, length in zip(entries, lengths):
            if entry.backed_tokens == length - 1:
                continue  # prefill has brought it
            slot = int(entry.slots[length - 2])
            backups.append((self._row_of_newest(entry, length - 1), slot, entry.request.region))
            entry.backed_tokens = length - 1
        return backups

    def _backup_previous_tokens(self, count: int) -> None:
        if count == 0:
            return
        step = self._step
        for group, layer_ids in self._layer_groups.items():
            self.cache.backup_rows(
                group,
                [self._hot[layer_id] for layer_id in layer_ids],
                step.backup_rows[:count],
                step.backup_slots[:count],
                step.backup_regions[:count],
            )

    def _preload(self, entry: PoolRequest) -> None:
        """Puts the rows of a short request where the fast path looks: misses of an empty region
        take its hot slots in order, so position p gets hot slot p."""
        tokens = entry.backed_tokens
        if tokens > self.config.hot_size:
            return
        top_k = self.config.top_k
        self.arrays.upload(self._region_of_one, [entry.request.region])
        for first in range(0, tokens, top_k):
            positions = np.full((1, top_k), -1, np.int32)
            count = min(top_k, tokens - first)
            positions[0, :count] = np.arange(first, first + count)
            inputs = StepInputs(
                topk=self.arrays.int32(positions),
                row_to_request=self._region_of_one,
                newest_slot=self._slot_of_one,
                num_real_rows=self._one,
            )
            for group in self._layer_groups:
                self.cache.swap_in(group, 1, inputs=inputs)


def _places_of(layer_groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    places: dict[int, tuple[int, int]] = {}
    for group, layer_ids in enumerate(layer_groups):
        for layer, layer_id in enumerate(layer_ids):
            if layer_id in places:
                raise ValueError("layer %d is in two groups" % layer_id)
            places[layer_id] = (group, layer)
    if not places:
        raise ValueError("no layers")
    return places


def _tokens_of(req: Any) -> int:
    """Tokens of a request that prefill is done with, however the engine's version says it."""
    extend = getattr(req, "extend_range", None)
    if extend is not None:
        return int(extend.end)
    return len(req.fill_ids)
