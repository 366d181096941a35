"""A model's rows beside its HiSparse cache: what must be hot is known from what was written."""
import numpy as np

from kvtier.hisparse import HiSparseConfig, HiSparseCoordinator, HiSparseTier

TOP_K, HOT_SIZE, BLOCK_SIZE = 8, 12, 4
ROW_WIDTH = 24  # of uint16: 48 bytes
GROUPS = ((0, 1), (2,))  # layers 0 and 2 have indexers


class World:
    """Layers, their truth, and an engine that writes and reads rows.

    truth[layer][slot] is the row that the slot has.
    """

    def __init__(self, session, *, num_blocks=24, max_num_reqs=4, name="world", seed=1, **options):
        self.random = np.random.default_rng(seed)
        config = HiSparseConfig(TOP_K, HOT_SIZE, block_size=BLOCK_SIZE)
        self.tier = HiSparseTier(session, name, config, max_num_reqs=max_num_reqs, **options)
        self.layers = []
        for group in GROUPS:
            for layer in group:
                made = HiSparseCoordinator(
                    config, max_num_reqs, ROW_WIDTH, "bfloat16", tier=self.tier
                )
                if layer != group[0]:
                    made.join_group(self.layers[group[0]])
                self.layers.append(made)
        self.kv_caches = self.tier.bind(num_blocks)
        self.truth = np.zeros((len(self.layers), num_blocks * BLOCK_SIZE, ROW_WIDTH), np.uint16)
        self.blocks = {}  # of each request, in order
        self.lengths = {}

    def new_rows(self, count):
        return self.random.integers(0, 1 << 16, (len(self.layers), count, ROW_WIDTH), np.uint16)

    def slots(self, request_id, positions):
        blocks = np.array(self.blocks[request_id] + [-1] * 100)
        of = blocks[np.asarray(positions) // BLOCK_SIZE]
        return of * BLOCK_SIZE + np.asarray(positions) % BLOCK_SIZE

    def assign(self, request_id, blocks, reused=0):
        self.tier.assign_blocks(request_id, blocks, reused)
        self.blocks.setdefault(request_id, []).extend(blocks)

    def prefill(self, request_id, first, end):
        """Rows of positions [first, end)."""
        slots = self.slots(request_id, np.arange(first, end))
        rows = self.new_rows(end - first)
        for layer, made in enumerate(self.layers):
            made.write_rows_to_host(rows[layer], slots)
        self.truth[:, slots] = rows
        self.lengths[request_id] = end

    def start(self, request_id, blocks, tokens):
        self.assign(request_id, blocks)
        self.prefill(request_id, 0, tokens)

    def finish(self, request_id):
        self.tier.finish_request(request_id)
        del self.blocks[request_id], self.lengths[request_id]

    def step(self, request_ids, topk=None, padding=0, backup=True):
        """Decodes a token for each request; returns how many selected rows were not what the truth
        says, over all layers. `topk` by request; else random positions and the newest."""
        tokens = len(request_ids) + padding
        self.tier.set_batch(request_ids)
        slots = np.full(tokens, -1, np.int64)
        chosen = np.full((tokens, TOP_K), -1, np.int32)
        for row, request_id in enumerate(request_ids):
            if request_id is None:
                continue
            position = self.lengths[request_id]
            self.lengths[request_id] = position + 1
            slots[row] = self.slots(request_id, position)
            chosen[row] = self.choice(position) if topk is None else topk[request_id]
        rows = self.new_rows(tokens)
        # Engines fill what pads a batch with row 0.
        requests = np.where(np.arange(tokens) < len(request_ids), np.arange(tokens), 0)
        real = slots >= 0
        self.truth[:, slots[real]] = rows[:, real]
        wrong = 0
        for layer, made in enumerate(self.layers):
            made.write_newest_rows(rows[layer], slots, requests.astype(np.int32))
            if made.leader is None:
                found = made.swap_in(
                    kv_cache=self.kv_caches[layer], req_id_per_token=requests.astype(np.int32),
                    block_table=None, topk_indices=chosen, block_size=BLOCK_SIZE,
                    slot_mapping=slots, return_valid_counts=True, produce_plan=True)
            else:
                found = made.apply_plan(kv_cache=self.kv_caches[layer], block_size=BLOCK_SIZE,
                                        num_tokens=tokens, return_valid_counts=True)
            wrong += self.differences(layer, request_ids, chosen, *found)
        if backup:
            self.tier.backup_step()
        return wrong

    def choice(self, newest):
        """The newest, and random older ones; most of them near."""
        count = min(TOP_K - 1, newest)
        near = self.random.permutation(newest)[:count]
        return np.concatenate([[newest], near, np.full(TOP_K - 1 - count, -1)]).astype(np.int32)

    def differences(self, layer, request_ids, chosen, hot_cache, hot_indices, counts):
        flat = hot_cache.reshape(-1, ROW_WIDTH)
        wrong = 0
        for row in range(len(chosen)):
            request_id = request_ids[row] if row < len(request_ids) else None
            masked = (chosen[row] < 0) | (request_id is None)
            wrong += int(((hot_indices[row] < 0) != masked).sum())
            wrong += int(counts[row] != (~masked).sum())
            if request_id is None:
                continue
            slots = self.slots(request_id, chosen[row][~masked])
            rows = flat[hot_indices[row][~masked]]
            wrong += int((rows != self.truth[layer][slots]).any(1).sum())
        return wrong

    def counters(self, name):
        return sum(getattr(self.tier.cache.counters(g), name) for g in range(len(GROUPS)))

    def close(self):
        self.kv_caches = None
        self.tier.close()
