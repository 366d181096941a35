"""The same decoder twice: over a full cache on the device, and over kvtierd."""
import model
import rows as row_format
import torch
from scheduler import Listener

from kvtier.hisparse import HiSparseConfig, HiSparseCoordinator, HiSparseTier


class Side(Listener):
    """A decoder, its indexer and its inputs. Subclasses have the rows.

    decoder     model.Decoder
    max_tokens  of one request
    """

    def __init__(self, decoder, *, batch, num_blocks, block_size, max_tokens, device):
        self.shape = decoder.shape
        self.device = device
        self.block_size = block_size
        self._decoder = decoder
        self._indexer = model.Indexer(self.shape, num_blocks * block_size, block_size, device)
        self._max_blocks = -(-max_tokens // block_size)
        self._inputs = model.Inputs(batch, self._max_blocks, self.shape.hidden, device)
        self._blocks = {}
        self._lengths = {}
        self._hidden = {}
        self._kept = {}
        self._rows = [None] * batch
        self._graph = None
        self.outputs = None  # [layers, batch, hidden] of the last step

    # ---- What happens between steps.

    def assign(self, request_id, blocks):
        self._blocks.setdefault(request_id, []).extend(blocks)

    def truncate(self, request_id, block_count):
        del self._blocks[request_id][block_count:]

    def prefill(self, request_id, slots, seed):
        generator = torch.Generator(self.device).manual_seed(seed)
        slots = torch.tensor(slots, device=self.device)

        def normal(width):
            return torch.randn(slots.numel(), width, generator=generator, device=self.device)

        for layer in range(self.shape.layers):
            rows = row_format.pack(normal(row_format.ROW_WIDTH), self.shape.kv_dtype)
            self.write_prompt(layer, rows, slots)
        for group in range(len(self.shape.layer_groups)):
            self._indexer.keys[group][slots] = normal(self.shape.index_width)
        self._lengths[request_id] = slots.numel()
        self._hidden[request_id] = normal(self.shape.hidden)[0]

    def keep_rows(self, request_id, slots):
        slots = torch.tensor(slots, device=self.device)
        rows = [self.rows_at(layer, slots) for layer in range(self.shape.layers)]
        self._kept[request_id] = rows, self._indexer.keys[:, slots].clone()

    def rewrite(self, request_id, slots):
        slots = torch.tensor(slots, device=self.device)
        rows, keys = self._kept.pop(request_id)
        for layer in range(self.shape.layers):
            self.write_prompt(layer, rows[layer], slots)
        self._indexer.keys[:, slots] = keys

    def finish(self, request_id):
        for of_request in (self._blocks, self._lengths, self._hidden):
            del of_request[request_id]

    def batch(self, request_ids):
        self._rows = request_ids
        tables, slots, lengths, hidden = [], [], [], []
        for request_id in request_ids:
            blocks = self._blocks.get(request_id, [])
            tables.append(blocks + [0] * (self._max_blocks - len(blocks)))
            if request_id is None:
                slots.append(-1)
                lengths.append(0)
                hidden.append(torch.zeros(self.shape.hidden, device=self.device))
                continue
            position = self._lengths[request_id]
            self._lengths[request_id] = position + 1
            slots.append(blocks[position // self.block_size] * self.block_size
                         + position % self.block_size)
            lengths.append(position + 1)
            hidden.append(self._hidden[request_id])
        inputs = self._inputs
        inputs.block_table.copy_(torch.tensor(tables, dtype=torch.int32))
        inputs.slots.copy_(torch.tensor(slots))
        inputs.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        inputs.hidden.copy_(torch.stack(hidden))

    # ---- Steps.

    def capture(self):
        """The step becomes a CUDA graph; all rows are padding meanwhile."""
        self.batch([None] * len(self._rows))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._decoder.step(self._inputs, self, self._indexer)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._results = self._decoder.step(self._inputs, self, self._indexer)

    def run(self):
        if self._graph is not None:
            self._graph.replay()
        else:
            self._results = self._decoder.step(self._inputs, self, self._indexer)
        self.outputs, hidden = self._results
        for row, request_id in enumerate(self._rows):
            if request_id is not None:
                self._hidden[request_id] = hidden[row].clone()


class FullCache(Side):
    """Every row of every layer on the device."""

    def __init__(self, decoder, **sizes):
        super().__init__(decoder, **sizes)
        kv_dtype = self.shape.kv_dtype
        self._cache = torch.zeros(
            self.shape.layers,
            sizes["num_blocks"] * self.block_size + 1,  # the last slot is for padding
            row_format.row_width(kv_dtype),
            dtype=torch.uint8 if kv_dtype == "fp8_ds_mla" else torch.bfloat16,
            device=self.device,
        )

    def write_prompt(self, layer, rows, slots):
        self._cache[layer][slots] = rows

    def rows_at(self, layer, slots):
        return self._cache[layer][slots]

    def write(self, layer, rows, inputs):
        slots = torch.where(inputs.slots >= 0, inputs.slots, self._cache.shape[1] - 1)
        self._cache[layer][slots] = rows

    def gather(self, layer, topk, inputs):
        table = self._indexer.slot_table(inputs)
        return self._cache[layer][table.gather(1, topk.clamp(min=0).to(torch.int64))]

    def end(self, inputs):
        pass


class TieredCache(Side):
    """Rows in the daemon's host pool, and hot ones in its hot buffers."""

    def __init__(self, decoder, session, cache, *, hot_size, ranks, with_leader=False, **sizes):
        super().__init__(decoder, **sizes)
        batch = len(self._rows)
        config = HiSparseConfig(self.shape.top_k, hot_size, block_size=self.block_size)
        self.tier = HiSparseTier(
            session, cache, config, max_num_reqs=batch,
            device="torch" if self.device == "cpu" else self.device,
            copy_followers_with_leader=with_leader, ranks=ranks,
        )
        self._layers = {}
        for group in self.shape.layer_groups:
            for layer in group:
                self._layers[layer] = HiSparseCoordinator(
                    config, batch, row_format.row_width(self.shape.kv_dtype),
                    self.shape.kv_dtype, self.device, tier=self.tier,
                )
                if layer != group[0]:
                    self._layers[layer].join_group(self._layers[group[0]])
        self.tier.bind(sizes["num_blocks"])

    def assign(self, request_id, blocks):
        super().assign(request_id, blocks)
        self.tier.assign_blocks(request_id, blocks)

    def truncate(self, request_id, block_count):
        super().truncate(request_id, block_count)
        self.tier.truncate_blocks(request_id, block_count)

    def finish(self, request_id):
        super().finish(request_id)
        self.tier.finish_request(request_id)

    def batch(self, request_ids):
        super().batch(request_ids)
        self.tier.set_batch(request_ids)
        self.tier.check()

    def write_prompt(self, layer, rows, slots):
        self._layers[layer].write_rows_to_host(rows, slots)

    def rows_at(self, layer, slots):
        """From the host pool, where backups have brought them."""
        self.tier.cache.synchronize()
        host = self._layers[layer].kv_cache
        return host.reshape(-1, host.shape[-1])[slots.cpu()].to(self.device)

    def write(self, layer, rows, inputs):
        self._layers[layer].write_newest_rows(rows, inputs.slots, inputs.request_of_token)

    def gather(self, layer, topk, inputs):
        coordinator = self._layers[layer]
        if coordinator.leader is None:
            hot, indices = coordinator.swap_in(
                kv_cache=coordinator.kv_cache,
                req_id_per_token=inputs.request_of_token,
                block_table=inputs.block_table,
                topk_indices=topk,
                block_size=self.block_size,
                slot_mapping=inputs.slots,
                produce_plan=True,
            )
        else:
            hot, indices = coordinator.apply_plan(
                kv_cache=coordinator.kv_cache,
                block_size=self.block_size,
                num_tokens=topk.shape[0],
            )
        return hot.reshape(-1, hot.shape[-1])[indices.clamp(min=0).to(torch.int64)]

    def end(self, inputs):
        self.tier.backup_step()
