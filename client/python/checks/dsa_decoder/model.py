"""A small decoder with DeepSeek's sparse attention: an indexer chooses top_k positions, attention
reads their rows alone. Random weights; float32 arithmetic.

Two of them run on different caches, step by step. A cache is an object with

    write(layer, rows, inputs)       this step's row of each token
    gather(layer, topk, inputs)      rows [batch, top_k, width] of the positions, in their order;
                                     a layer without an indexer gets its leader's topk
    end(inputs)                      after the last layer
"""
from dataclasses import dataclass

import rows as row_format
import torch


@dataclass(frozen=True)
class Shape:
    layer_groups: tuple = ((0, 1), (2, 3))  # leader first
    hidden: int = 256
    heads: int = 4
    index_width: int = 64
    top_k: int = 512
    kv_dtype: str = "bfloat16"

    @property
    def layers(self):
        return sum(len(group) for group in self.layer_groups)


class Inputs:
    """A step's inputs, at addresses that stay."""

    def __init__(self, batch, max_blocks, hidden, device):
        def ints(*shape):
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.hidden = torch.zeros(batch, hidden, device=device)
        self.lengths = ints(batch)  # tokens, the newest included; 0: padding
        self.slots = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.request_of_token = torch.arange(batch, dtype=torch.int32, device=device)
        self.block_table = ints(batch, max_blocks)


class Indexer:
    """The indexer's keys of all slots, on the device; and what the decoder's engine keeps there."""

    def __init__(self, shape, num_slots, block_size, device):
        self.block_size = block_size
        self.keys = torch.zeros(
            len(shape.layer_groups), num_slots + 1, shape.index_width, device=device
        )  # the last slot is for padding

    def slot_table(self, inputs):
        """int64 [batch, positions]: the slot of each position of each row."""
        offsets = torch.arange(self.block_size, device=inputs.block_table.device)
        table = inputs.block_table.to(torch.int64)[:, :, None] * self.block_size + offsets
        return table.reshape(table.shape[0], -1)


def _norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Decoder:
    def __init__(self, shape, seed, device):
        generator = torch.Generator().manual_seed(seed)

        def weight(rows, columns):
            made = torch.randn(rows, columns, generator=generator) / rows**0.5
            return made.to(device)

        width = row_format.ROW_WIDTH
        self.shape = shape
        self.query = [weight(shape.hidden, shape.heads * width) for _ in range(shape.layers)]
        self.key = [weight(shape.hidden, width) for _ in range(shape.layers)]
        self.out = [
            weight(shape.heads * row_format.LATENT, shape.hidden) for _ in range(shape.layers)
        ]
        self.index_query = [weight(shape.hidden, shape.index_width) for _ in shape.layer_groups]
        self.index_key = [weight(shape.hidden, shape.index_width) for _ in shape.layer_groups]

    def step(self, inputs, cache, indexer):
        """Returns (attention outputs [layers, batch, hidden], next hidden [batch, hidden])."""
        x = inputs.hidden
        outputs = []
        for group, layers in enumerate(self.shape.layer_groups):
            topk = None
            for layer in layers:
                h = _norm(x)
                keys = _norm(h @ self.key[layer])
                cache.write(layer, row_format.pack(keys, self.shape.kv_dtype), inputs)
                if topk is None:
                    topk = self._choose(group, h, inputs, indexer)
                rows = cache.gather(layer, topk, inputs)
                attended = self._attend(layer, h, rows, topk)
                outputs.append(attended)
                x = x + attended
        cache.end(inputs)
        return torch.stack(outputs), _norm(0.8 * inputs.hidden + 0.4 * _norm(x))

    def _choose(self, group, h, inputs, indexer):
        """int32 [batch, top_k] positions by score, -1 where there are no more."""
        slots = torch.where(inputs.slots >= 0, inputs.slots, indexer.keys.shape[1] - 1)
        indexer.keys[group][slots] = _norm(h @ self.index_key[group])
        keys = indexer.keys[group][indexer.slot_table(inputs)]
        scores = torch.einsum("bd,bpd->bp", h @ self.index_query[group], keys)
        positions = torch.arange(scores.shape[1], device=scores.device)
        exists = positions[None, :] < inputs.lengths[:, None]
        newest = positions[None, :] == inputs.lengths[:, None] - 1
        scores = torch.where(newest, torch.inf, torch.where(exists, scores, -torch.inf))
        best = scores.topk(self.shape.top_k, dim=1, sorted=True)
        return torch.where(best.values > -torch.inf, best.indices, -1).to(torch.int32)

    def _attend(self, layer, h, rows, topk):
        batch, top_k = topk.shape
        query = (h @ self.query[layer]).reshape(batch, self.shape.heads, row_format.ROW_WIDTH)
        values = row_format.unpack(rows, self.shape.kv_dtype)
        scores = torch.einsum("bhw,bkw->bhk", query, values) / row_format.ROW_WIDTH**0.5
        masked = (topk < 0)[:, None, :]
        weights = torch.softmax(scores.masked_fill(masked, -1e30), dim=-1)
        attended = torch.einsum("bhk,bkl->bhl", weights, values[..., : row_format.LATENT])
        return attended.reshape(batch, -1) @ self.out[layer]
