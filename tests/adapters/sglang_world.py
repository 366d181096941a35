"""A model's rows beside its cache, as SGLang's scheduler and attention use it."""
from types import SimpleNamespace

import numpy as np

from kvtier.sglang import HiSparseConfig, HiSparseCoordinator

TOP_K, HOT_SIZE, BLOCK_SIZE = 8, 20, 4
ROW_WIDTH = 16  # of float32
GROUPS = ((0, 1), (2,))
POOL_ROWS = 256  # of the device buffers that prefill fills


class World:
    """truth[layer][rid] are the rows of a request by position."""

    def __init__(self, session, *, name="sglang", num_blocks=40, max_num_reqs=3, seed=1, **options):
        self.random = np.random.default_rng(seed)
        layers = sum(len(group) for group in GROUPS)
        self.kv_buffers = [np.zeros((POOL_ROWS, ROW_WIDTH), np.float32) for _ in range(layers)]
        self.req_to_token = np.zeros((max_num_reqs + 1, 64), np.int64)
        self.loc_mapping = np.zeros(POOL_ROWS, np.int64)
        self.tier = HiSparseCoordinator(
            session, name, HiSparseConfig(TOP_K, HOT_SIZE, block_size=BLOCK_SIZE),
            row_width=ROW_WIDTH, kv_dtype="float32", layer_groups=GROUPS,
            max_num_reqs=max_num_reqs, num_blocks=num_blocks, kv_buffers=self.kv_buffers,
            req_to_token=self.req_to_token, loc_mapping=self.loc_mapping, **options)
        self.layers = layers
        self.truth = {}
        self.requests = {}

    def rows(self, count):
        return self.random.random((self.layers, count, ROW_WIDTH), np.float32)

    def request(self, rid, pool_index, tokens):
        req = SimpleNamespace(rid=rid, req_pool_idx=pool_index, fill_ids=[0] * tokens)
        self.requests[rid] = req
        self.truth[rid] = self.rows(tokens)
        return req

    def prefill(self, rid, pool_index, tokens, **options):
        """Rows lie scattered in kv_buffers, and go to the host pool."""
        req = self.request(rid, pool_index, tokens)
        places = self.random.permutation(POOL_ROWS)[:tokens]
        self.req_to_token[pool_index, :tokens] = places
        for layer, buffer in enumerate(self.kv_buffers):
            buffer[places] = self.truth[rid][layer]
        self.tier.admit_request_into_staging(req, **options)
        for buffer in self.kv_buffers:
            buffer[:] = -1
        return req

    def receive(self, rid, pool_index, tokens):
        """Rows arrive in the host pool by themselves."""
        req = self.request(rid, pool_index, tokens)
        slots = self.tier.reserve_host_rows(req, tokens)
        for layer in range(self.layers):
            self.tier.host_rows(layer)[slots] = self.truth[rid][layer]
        self.tier.admit_request_direct(req)
        return req

    def finish(self, rid):
        self.tier.request_finished(self.requests.pop(rid))
        del self.truth[rid]

    def length(self, rid):
        return self.truth[rid].shape[1]

    def step(self, rids, padding=0, between=lambda: None):
        """A token for each; returns how many selected rows were wrong, over all layers. `between`
        comes after the beginning of the step."""
        new = self.rows(len(rids))
        for row, rid in enumerate(rids):
            self.truth[rid] = np.concatenate([self.truth[rid], new[:, row : row + 1]], axis=1)
        lengths = np.array([self.length(rid) for rid in rids], np.int64)
        pool = np.array([self.requests[rid].req_pool_idx for rid in rids], np.int64)
        out_cache_loc = self.random.permutation(POOL_ROWS)[: len(rids)]
        rows = self.tier.map_last_loc_to_buffer(lengths, out_cache_loc, pool, lengths, pool)
        assert (self.loc_mapping[out_cache_loc] == rows).all()
        between()
        # Graphs pad a batch with request 0 of length 1.
        lengths = np.concatenate([lengths, np.ones(padding, np.int64)])
        pool = np.concatenate([pool, np.zeros(padding, np.int64)])
        chosen = np.full((len(pool), TOP_K), -1, np.int32)
        for row, length in enumerate(lengths):
            count = min(TOP_K, length)
            chosen[row, :count] = self.random.permutation(length - 1)[: count - 1].tolist() + [
                length - 1
            ]
        wrong = 0
        for layer in range(self.layers):
            self.tier.hot_rows(layer)[rows] = new[layer]
            found = self.tier.swap_in_selected_pages(pool, lengths, chosen, layer)
            for row, rid in enumerate(rids):
                masked = chosen[row] < 0
                wrong += int(((found[row] < 0) != masked).sum())
                got = self.tier.hot_rows(layer)[found[row][~masked]]
                wrong += int((got != self.truth[rid][layer][chosen[row][~masked]]).any(1).sum())
            wrong += int((found[len(rids) :] != -1).sum())
        return wrong

    def counters(self, name):
        return sum(getattr(self.tier.cache.counters(g), name) for g in range(len(GROUPS)))
