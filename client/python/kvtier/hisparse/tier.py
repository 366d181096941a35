"""One model's HiSparse cache on the daemon: what all its layers share.

    tier = HiSparseTier(session, "model", config, max_num_reqs=64, device="cuda:0")
    leader = HiSparseCoordinator(config, 64, 656, "fp8_ds_mla", tier=tier)     # for each layer
    follower = HiSparseCoordinator(config, 64, 656, "fp8_ds_mla", tier=tier)
    follower.join_group(leader)
    kv_caches = tier.bind()                                    # after the last layer

Between steps the scheduler says who has which blocks and rows; `HiSparseCoordinator` has the steps.
With device="cpu" arrays are numpy's, and nothing needs torch.
"""
from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from kvtier import CacheLayout, Layer, LayerGroup, UnavailableError
from kvtier._frameworks import frameworks_for
from kvtier.hisparse.blocks import Assignment, BlockBook
from kvtier.hisparse.config import HiSparseConfig, kv_cache_shape, num_blocks_of_pool
from kvtier.hisparse.ranks import Ranks
from kvtier.hisparse.rows import RowBook
from kvtier.hisparse.steps import StepBook


class HiSparseTier:
    """The layers of one model in one worker process.

    Not thread-safe. Device work goes to torch's current stream; use one stream, or order several.
    """

    def __init__(
        self,
        session: Any,
        cache: str,
        config: HiSparseConfig,
        *,
        max_num_reqs: int,
        device: str = "cpu",
        copy_followers_with_leader: bool = False,
        ranks: Ranks = Ranks(),
        attach_options: dict[str, Any] | None = None,
        layout_options: dict[str, Any] | None = None,
    ):
        """Nothing is asked of the daemon before `bind`.

        session         kvtier.Session
        cache           its name on the node; workers that name the same cache share its rows
        device          "cpu" (numpy), "torch" (torch on the CPU backend), "cuda", "cuda:N"
        copy_followers_with_leader
                        one launch copies the misses of all layers of a group; `apply_plan` then has
                        nothing left to copy
        ranks           workers that share the rows (tensor parallelism)
        attach_options  of Session.attach: device_uuid, kernel_threads, wait_for_pool
        layout_options  of CacheLayout: eviction_policy, share_rows, step_rows
        """
        if max_num_reqs < 1:
            raise ValueError("max_num_reqs is %d; at least 1" % max_num_reqs)
        self.config = config
        self.max_num_reqs = max_num_reqs
        self.copy_followers_with_leader = copy_followers_with_leader
        self.device = str(device)
        self.arrays = frameworks_for(self.device)
        self._ranks = ranks
        self.cache: Any = None
        self._session = session
        self._cache_name = cache
        self._attach_options = dict(attach_options or {})
        self._layout_options = dict(layout_options or {})
        self._coordinators: list[Any] = []
        self._books: tuple[BlockBook, RowBook, StepBook] | None = None

    # ---- Start and end.

    def add(self, coordinator: Any) -> None:
        """Called by HiSparseCoordinator's constructor, in the order of layers."""
        if self.cache is not None:
            raise ValueError("the tier is bound; layers must be made before bind()")
        if coordinator.config != self.config or coordinator.max_num_reqs != self.max_num_reqs:
            raise ValueError("the layer's config and max_num_reqs are not those of its tier")
        self._coordinators.append(coordinator)

    def check_device(self, device: Any) -> None:
        """ValueError if `device` is of another kind than the tier's."""
        mine, theirs = self.device.split(":")[0], str(device).split(":")[0]
        if ("cuda" in (mine, theirs)) and mine != theirs:
            raise ValueError("a layer on %s, and its tier is on %s" % (device, self.device))

    def bind(self, num_blocks: int | None = None) -> list[Any]:
        """Creates the cache with `num_blocks` blocks, or as many as host_pool_gib has room for.

        Returns each layer's rows in the host pool, in the order of the layers:
        (num_blocks, block_size, row_width) of kv_dtype, as the engine would have allocated them.
        They are host memory, pinned on a GPU; blocks have the engine's ids.
        """
        leaders = [c for c in self._coordinators if c.leader is None]
        if not leaders:
            raise ValueError("a tier without layers")
        if num_blocks is None:
            num_blocks = num_blocks_of_pool(
                self.config, [c.row_shape.row_bytes for c in self._coordinators]
            )
        layout = CacheLayout(
            groups=[
                LayerGroup(
                    layers=[Layer(row_bytes=c.row_shape.row_bytes) for c in (leader, *followers)],
                    top_k=self.config.top_k,
                    hot_size=self.config.hot_size,
                )
                for leader, followers in ((c, c.group_shared) for c in leaders)
            ],
            block_count=num_blocks,
            max_requests=self.max_num_reqs + 1,  # and the keeper of BlockBook
            block_size=self.config.block_size,
            dtype_tag=leaders[0].row_shape.dtype,
            **{"step_rows": self.max_num_reqs, **self._layout_options},
        )
        if not self._ranks.first:
            self._ranks.barrier()  # the first has all blocks then
        self.cache = self._session.attach(
            self._cache_name,
            layout,
            **{"device_uuid": self.arrays.device_uuid(self._session), **self._attach_options},
        )
        blocks = BlockBook(self.cache, num_blocks, self.arrays.fence, self._ranks)
        if self._ranks.first:
            self._ranks.barrier()
        newest_row = self.cache.groups[0].newest_hot_row
        rows = RowBook(
            self.arrays,
            self.max_num_reqs,
            newest_row,
            scrap_row=newest_row(blocks.keeper_region),
            num_real_rows=self.arrays.view(self.cache.num_real_rows),
        )
        self._books = blocks, rows, StepBook(self.arrays, rows, self.cache)
        for index, leader in enumerate(leaders):
            for layer, coordinator in enumerate((leader, *leader.group_shared)):
                first = coordinator is self._coordinators[0]
                coordinator.bound(self.cache.groups[index], layer, first)
        return [c.kv_cache for c in self._coordinators]

    def host_rows(self, group: Any, layer: int, row_shape: Any) -> Any:
        """(num_blocks, block_size, row_width) of a layer's rows in the host pool."""
        view = self.arrays.view(group.layers[layer].host, row_shape.dtype)
        shape = kv_cache_shape(
            self.cache.layout.block_count,
            self.config.block_size,
            row_shape.width,
            row_shape.dtype,
        )
        return view.reshape(shape)

    def close(self) -> None:
        """Waits for what is enqueued, releases all requests and leaves the cache. Tensors that the
        engine still has keep the memory mapped."""
        for coordinator in self._coordinators:
            coordinator.unbound()
        try:
            if self._books is not None:
                self._books[0].close()
        except UnavailableError:
            pass  # a daemon that is gone has nothing to take back
        finally:
            self._books = None
            if self.cache is not None:
                self.cache.close()

    def __enter__(self) -> "HiSparseTier":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    @property
    def blocks(self) -> BlockBook:
        return self._bound()[0]

    @property
    def rows(self) -> RowBook:
        return self._bound()[1]

    # ---- Between steps, from the scheduler. Outside of graphs.

    def assign_blocks(
        self, request_id: str, block_ids: Sequence[int], reused_blocks: int = 0
    ) -> None:
        """Appends blocks to a request's table, in the order of its positions; a new id is admitted
        and gets an empty region. All but the first `reused_blocks`, whose rows stay (a prefix that
        the engine has cached), are invalidated everywhere, and their rows must be written before
        they are selected."""
        self.assign([Assignment(request_id, [int(b) for b in block_ids], reused_blocks)])

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """assign_blocks of several requests: one call to the daemon for each, and one for all the
        blocks that were others' before."""
        self.blocks.assign(assignments)

    def truncate_blocks(self, request_id: str, block_count: int = 0) -> None:
        """Takes all but the first `block_count` blocks from a request that goes on: preempted, or
        rewound. The blocks are then the engine's to give to others."""
        self.blocks.truncate(request_id, block_count)

    def finish_request(self, request_id: str) -> None:
        """Ends a request; its blocks are the engine's to give to others."""
        self.rows.set(
            [None if r == request_id else r for r in self.rows.request_ids],
            self.blocks.region_of,
        )
        self.blocks.finish(request_id)

    def set_batch(self, request_ids: Sequence[str | None]) -> None:
        """Row i of the next steps is request_ids[i]; None and rows behind are padding. Any order,
        any step; nothing of a request's state moves."""
        self.rows.set(request_ids, self.blocks.region_of)

    def invalidate_blocks(self, block_ids: Sequence[int]) -> int | None:
        """Drops cached copies, in all sessions, of blocks whose host rows were rewritten in place
        by others than backups (RDMA). Returns how many hot rows (None but on the first rank).
        Waits for enqueued steps."""
        self.arrays.fence().wait()
        return self.blocks.once(lambda: self.cache.invalidate_blocks(list(block_ids)))

    def mark_loaded(self, block_ids: Sequence[int]) -> None:
        """Says that all rows of `block_ids` were written through the host caches (RDMA, a copy by
        the CPU): they may be selected from now on."""
        size = self.config.block_size
        slots = np.array([b * size + offset for b in block_ids for offset in range(size)], np.int32)
        self.blocks.once(
            lambda: [self.cache.mark_backed(group.index, slots) for group in self.cache.groups]
        )

    def reset_rows(self, row_ids: Sequence[int]) -> None:
        """Empties the hot buffers of the requests in these batch rows."""
        ids = self.rows.request_ids
        for row in row_ids:
            request_id = ids[row]
            if request_id is not None:
                self.blocks.reset(request_id)
        self.rows.set(ids, self.blocks.region_of)

    def check(self) -> None:
        """Raises if host rows may not be written any more (the daemon is lost or ended the
        session). Once a step, as nobody else checks the backups in a graph."""
        self.cache.check_backup()

    # ---- In a step. May be captured.

    @property
    def step(self) -> StepBook:
        return self._bound()[2]

    def backup_step(self) -> None:
        """Copies the newest rows of this step, all layers in one launch, to the host pool. After
        the last layer; rows whose slot is -1 are skipped. May be captured."""
        self.cache.backup_newest(self.step.end())

    def _bound(self) -> tuple[BlockBook, RowBook, StepBook]:
        if self._books is None:
            raise ValueError("the tier is not bound: call bind() after the last layer")
        return self._books
