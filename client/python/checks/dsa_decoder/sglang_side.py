"""The decoder over kvtierd by the calls that SGLang makes."""
from types import SimpleNamespace

import rows as row_format
import torch
from sides import Side

from kvtier.sglang import HiSparseConfig, HiSparseCoordinator


class SglangCache(Side):
    """Requests have rows of a table, and prefill leaves rows in device buffers. Batches are padded
    at their end only."""

    def __init__(self, decoder, session, cache, *, hot_size, **sizes):
        super().__init__(decoder, **sizes)
        shape, batch, device = self.shape, len(self._rows), self.device
        kv_dtype = shape.kv_dtype
        max_tokens = sizes["max_tokens"]
        self._buffers = [
            torch.zeros(
                max_tokens, row_format.row_width(kv_dtype), device=device,
                dtype=torch.uint8 if kv_dtype == "fp8_ds_mla" else torch.bfloat16,
            )
            for _ in range(shape.layers)
        ]
        # One prefill at a time: row p of a buffer is the prompt's position p.
        places = torch.arange(max_tokens, device=device).repeat(batch + 1, 1)
        self.tier = HiSparseCoordinator(
            session, cache, HiSparseConfig(shape.top_k, hot_size, block_size=self.block_size),
            row_width=row_format.row_width(kv_dtype), kv_dtype=kv_dtype,
            layer_groups=shape.layer_groups, max_num_reqs=batch, num_blocks=sizes["num_blocks"],
            device="torch" if device == "cpu" else device, kv_buffers=self._buffers,
            req_to_token=places,
        )
        self._reqs = {}
        self._pool = torch.zeros(batch, dtype=torch.int64, device=device)
        self._missing = set()

    def write_prompt(self, layer, rows, slots):
        self._buffers[layer][: rows.shape[0]] = rows

    def prefill(self, request_id, slots, seed):
        super().prefill(request_id, slots, seed)
        self._admit(request_id, len(slots))

    def rewrite(self, request_id, slots):
        super().rewrite(request_id, slots)
        self._admit(request_id, len(slots))

    def _admit(self, request_id, tokens):
        used = {req.req_pool_idx for req in self._reqs.values()}
        index = next(i for i in range(len(self._rows) + 1) if i not in used)
        req = SimpleNamespace(rid=request_id, req_pool_idx=index, fill_ids=range(tokens))
        self._reqs[request_id] = req
        self.tier.admit_request_into_staging(req)

    def truncate(self, request_id, block_count):
        super().truncate(request_id, block_count)
        self.tier.retract_req(self._reqs.pop(request_id))

    def finish(self, request_id):
        super().finish(request_id)
        self.tier.request_finished(self._reqs.pop(request_id))

    def rows_at(self, layer, slots):
        """Of the request that keep_rows is about: from the host pool, but for its newest row."""
        entry = self.tier.requests[self._reqs[self._keeping].req_pool_idx]
        host = self.tier.host_rows(layer)
        self.tier.cache.synchronize()
        rows = host[torch.from_numpy(entry.slots[: slots.numel()].astype("int64"))].to(self.device)
        if entry.backed_tokens < slots.numel():
            newest = entry.request.region * self.tier.cache.groups[0].region_stride
            newest += min(slots.numel() - 1, self.tier.config.hot_size)
            rows[-1] = self.tier.hot_rows(layer)[newest]
        return rows

    def keep_rows(self, request_id, slots):
        self._keeping = request_id
        super().keep_rows(request_id, slots)

    def batch(self, request_ids):
        super().batch(request_ids)
        real = [request_id for request_id in request_ids if request_id is not None]
        pool = [self._reqs[request_id].req_pool_idx for request_id in real]
        self._pool.copy_(torch.tensor(pool + [0] * (len(request_ids) - len(real))))
        lengths = torch.tensor([self._lengths[request_id] for request_id in real])
        self.tier.map_last_loc_to_buffer(lengths, None, self._pool, lengths, torch.tensor(pool))

    def write(self, layer, rows, inputs):
        self.tier.hot_rows(layer)[self.tier.newest_rows] = rows

    def gather(self, layer, topk, inputs):
        indices = self.tier.swap_in_selected_pages(self._pool, inputs.lengths, topk, layer)
        return self.tier.hot_rows(layer)[indices.clamp(min=0).to(torch.int64)]

    def end(self, inputs):
        pass
