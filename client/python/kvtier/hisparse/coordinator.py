"""What a layer of the model calls in each step. Needs no torch with numpy arrays."""
from __future__ import annotations

from typing import Any

from kvtier import StepInputs
from kvtier.hisparse.config import HiSparseConfig, RowShape
from kvtier.hisparse.tier import HiSparseTier


class HiSparseCoordinator:
    """One attention layer's rows: in the host pool, and hot.

    A layer with an indexer of its own is a leader and calls `swap_in`; a layer that uses the top-k
    of another one joins it and calls `apply_plan`. In a step, for each layer in order:

        coordinator.write_newest_rows(rows, slot_mapping, req_id_per_token)
        hot_cache, hot_indices = coordinator.swap_in(...)       # or apply_plan
        ...attention reads hot_cache at hot_indices...

    and after the last layer `tier.backup_step()`. Nothing waits for the device or allocates on it
    once shapes are known, and addresses stay, so the whole step may be captured in a CUDA graph.

    kv_cache   the layer's rows in the host pool, from tier.bind()
    hot_cache  [regions * region_stride, row_width] of kv_dtype: the layer's hot buffer
    """

    def __init__(
        self,
        config: HiSparseConfig,
        max_num_reqs: int,
        row_width: int,
        kv_dtype: Any,
        device: Any = None,
        *,
        tier: HiSparseTier,
    ):
        """`device` is the tier's; None, or the same."""
        self.config = config
        self.max_num_reqs = max_num_reqs
        self.row_width = row_width
        self.kv_dtype = kv_dtype
        self.row_shape = RowShape.of(row_width, kv_dtype)
        self.leader: HiSparseCoordinator | None = None
        self.group_shared: list[HiSparseCoordinator] = []
        self.kv_cache: Any = None
        self.hot_cache: Any = None
        self._tier = tier
        self._arrays = tier.arrays
        self._inputs: tuple[Any, StepInputs] | None = None  # of the last step
        self._pending_rows: dict[int, Any] = {}  # of a leader: layer -> rows of a prefill
        if device is not None:
            tier.check_device(device)
        tier.add(self)

    def join_group(self, leader: "HiSparseCoordinator") -> None:
        """This layer uses the top-k of `leader` from now on. Before bind()."""
        if self._tier.cache is not None:
            raise ValueError("layers join before the tier is bound")
        if leader is self or leader.leader is not None or self.group_shared:
            raise ValueError("a layer joins a leader, and has no followers of its own")
        self.leader = leader
        leader.group_shared.append(self)

    def bound(self, group: Any, layer: int, first: bool) -> None:
        """Called by the tier: this is layer `layer` of `group`; the model's first?"""
        self._group = group
        self._layer = layer
        self._first = first
        self.kv_cache = self._tier.host_rows(group, layer, self.row_shape)
        self.hot_cache = self._arrays.view(group.layers[layer].hot, self.row_shape.dtype)
        self._hot_indices = self._arrays.view(group.hot_indices)
        self._valid_counts = self._arrays.view(group.valid_counts)

    def unbound(self) -> None:
        """Called by the tier when it closes: lets go of the daemon's memory."""
        self.kv_cache = self.hot_cache = self._group = None
        self._hot_indices = self._valid_counts = None

    def hot_cache_paged(self, block_size: int) -> Any:
        """The hot buffer in the shape of a paged cache: [rows / block_size, block_size,
        row_width]."""
        rows = self.hot_cache.shape[0]
        if rows % block_size != 0:
            raise ValueError(
                "a hot buffer of %d rows has no pages of block_size %d" % (rows, block_size)
            )
        return self.hot_cache.reshape(rows // block_size, block_size, self.hot_cache.shape[1])

    # ---- Rows of new tokens.

    def newest_rows(self, req_id_per_token: Any, slot_mapping: Any, num_tokens: int) -> Any:
        """int32 [num_tokens]: rows of `hot_cache` where this step's rows of the tokens belong. What
        an engine's own kernel takes in place of its slot mapping."""
        self._prepare(req_id_per_token, slot_mapping, num_tokens, "write")
        return self._tier.step.newest_rows(num_tokens)

    def write_newest_rows(self, rows: Any, slot_mapping: Any, req_id_per_token: Any) -> None:
        """Writes the step's rows [num_tokens, row_width] of kv_dtype, a token for each request."""
        num_tokens = rows.shape[0]
        self.hot_cache[self.newest_rows(req_id_per_token, slot_mapping, num_tokens)] = rows

    def write_rows_to_host(self, rows: Any, slot_mapping: Any) -> None:
        """Writes a prefill's rows [num_tokens, row_width] to the host pool at their slots, -1 none.
        The blocks were assigned before, and nothing of them has been selected since.

        The rows of a group go in one launch, when its last layer has brought its own: `rows` must
        not change before.
        """
        leader = self.leader or self
        pending = leader._pending_rows
        if self._layer in pending:
            raise ValueError("a layer has written twice before all layers of its group had written")
        pending[self._layer] = rows
        if len(pending) < 1 + len(leader.group_shared):
            return
        leader._pending_rows = {}
        count = rows.shape[0]
        self._tier.cache.backup_rows(
            self._group.index,
            [pending[layer] for layer in range(len(pending))],
            self._arrays.arange(count),
            self._arrays.int32(slot_mapping[:count]),
        )

    # ---- Steps.

    def swap_in(
        self,
        *,
        kv_cache: Any = None,
        req_id_per_token: Any,
        block_table: Any = None,
        topk_indices: Any,
        block_size: int,
        slot_mapping: Any,
        return_valid_counts: bool = False,
        produce_plan: bool = False,
    ) -> tuple[Any, ...]:
        """Makes the rows that the indexer chose hot, and says where they are.

        kv_cache          None, or the layer's, as the engine's own interface has it
        req_id_per_token  int [num_tokens] batch row of each token
        block_table       not read: the tables are those of tier.assign_blocks
        topk_indices      int32 [num_tokens, top_k] positions in the request, -1 none
        block_size        tokens a block, of the paged view that is returned
        slot_mapping      int [num_tokens] slot of each newest token, -1 none; None: newest rows
                          were written to the host pool, and are looked up as all others
        produce_plan      followers will apply it

        Returns (hot_cache, hot_indices) or (hot_cache, hot_indices, valid_counts):
        hot_cache [pages, block_size, row_width], hot_indices int32 [num_tokens, top_k] rows in it,
        -1 masked, valid_counts int32 [num_tokens]. They are overwritten by the next step.
        """
        if self.leader is not None:
            raise ValueError("a layer that joined a leader applies its plan; it has no swap_in")
        num_tokens, top_k = topk_indices.shape
        if top_k != self.config.top_k:
            raise ValueError(
                "topk_indices has %d columns; top_k is %d" % (top_k, self.config.top_k)
            )
        self._check_kv_cache(kv_cache)
        self._prepare(req_id_per_token, slot_mapping, num_tokens, "swap_in")
        all_layers = self._tier.copy_followers_with_leader
        self._tier.cache.swap_in(
            self._group.index,
            num_tokens,
            layers=None if all_layers else (0, 1),
            inputs=self._inputs_of(self._arrays.int32(topk_indices)),
        )
        return self._outputs(block_size, num_tokens, return_valid_counts)

    def apply_plan(
        self,
        *,
        kv_cache: Any = None,
        block_size: int,
        num_tokens: int,
        return_valid_counts: bool = False,
    ) -> tuple[Any, ...]:
        """Copies this layer's rows to where the leader's last swap_in has put its own. Returns what
        swap_in does, with this layer's hot_cache."""
        if self.leader is None:
            raise ValueError("a layer with an indexer calls swap_in; it has no leader")
        self._check_kv_cache(kv_cache)
        if not self._tier.copy_followers_with_leader:
            self._tier.cache.replay_plan(self._group.index, num_tokens, layers=(self._layer, 1))
        return self._outputs(block_size, num_tokens, return_valid_counts)

    def _prepare(
        self, req_id_per_token: Any, slot_mapping: Any, num_tokens: int, what: str
    ) -> None:
        self._tier.step.prepare(
            req_id_per_token, slot_mapping, num_tokens, what if self._first else ""
        )

    def _inputs_of(self, topk: Any) -> StepInputs:
        """The same object for the same memory, as what it says is checked once."""
        key = self._arrays.address(topk), topk.shape
        if self._inputs is None or self._inputs[0] != key:
            self._inputs = key, StepInputs(topk=topk)
        return self._inputs[1]

    def _outputs(self, block_size: int, num_tokens: int, counts: bool) -> tuple[Any, ...]:
        found = self.hot_cache_paged(block_size), self._hot_indices[:num_tokens]
        return (*found, self._valid_counts[:num_tokens]) if counts else found

    def _check_kv_cache(self, kv_cache: Any) -> None:
        if kv_cache is None or kv_cache is self.kv_cache:
            return
        if kv_cache.shape != self.kv_cache.shape or kv_cache.dtype != self.kv_cache.dtype:
            raise ValueError(
                "kv_cache is %s of %s, and this layer's is %s of %s; it comes from tier.bind()"
                % (
                    tuple(kv_cache.shape),
                    kv_cache.dtype,
                    tuple(self.kv_cache.shape),
                    self.kv_cache.dtype,
                )
            )
