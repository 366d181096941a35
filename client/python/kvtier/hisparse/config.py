"""Sizes of a HiSparse cache, checked before anything is allocated. Needs no torch."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtier._frameworks import ITEM_BYTES, dtype_name

# A row of DeepSeek's sparse attention in fp8: 512 values, 4 float scales, 64 bf16 of RoPE.
FP8_DS_MLA_ROW_BYTES = 656

ROW_ALIGNMENT_BYTES = 16

# Hot slots are int16.
DEVICE_BUFFER_SIZE_MAX = 32768


@dataclass(frozen=True)
class HiSparseConfig:
    """What an operator chooses, and the model's top_k.

    top_k               positions that the indexer chooses for a token
    device_buffer_size  rows of the hot buffer under LRU for each request; None: 2 * top_k
    host_pool_gib       GiB of host memory for the rows of all layers; None: the engine says how
                        many blocks there are
    block_size          tokens a block
    """

    top_k: int
    device_buffer_size: int | None = None
    host_pool_gib: float | None = None
    block_size: int = 64

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ValueError("top_k is %d; at least 1" % self.top_k)
        if self.block_size < 1:
            raise ValueError("block_size is %d; at least 1" % self.block_size)
        if self.host_pool_gib is not None and not self.host_pool_gib > 0:
            raise ValueError("host_pool_gib is %g; more than 0" % self.host_pool_gib)
        if self.hot_size < self.top_k:
            raise ValueError(
                "device_buffer_size is %d, and a step may ask for top_k = %d rows at once; "
                "at least %d, 2 * top_k = %d is usual"
                % (self.hot_size, self.top_k, self.top_k, 2 * self.top_k)
            )
        if self.hot_size > DEVICE_BUFFER_SIZE_MAX:
            raise ValueError(
                "device_buffer_size is %d; at most %d, as hot slots are 16 bits"
                % (self.hot_size, DEVICE_BUFFER_SIZE_MAX)
            )

    @property
    def hot_size(self) -> int:
        """device_buffer_size with its default."""
        if self.device_buffer_size is not None:
            return self.device_buffer_size
        return min(2 * self.top_k, DEVICE_BUFFER_SIZE_MAX)


@dataclass(frozen=True)
class RowShape:
    """One token's row in one layer: `width` elements of `dtype`."""

    width: int
    dtype: str

    @classmethod
    def of(cls, row_width: int, kv_dtype: Any) -> "RowShape":
        """Checked: a row is a multiple of 16 bytes, and "fp8_ds_mla" has 656 of them."""
        name = dtype_name(kv_dtype)
        row_bytes = row_width * ITEM_BYTES[name]
        if row_bytes < 1 or row_bytes % ROW_ALIGNMENT_BYTES != 0:
            raise ValueError(
                "a row of row_width %d and kv_dtype %s has %d bytes; a multiple of %d is required"
                % (row_width, name, row_bytes, ROW_ALIGNMENT_BYTES)
            )
        if name == "fp8_ds_mla" and row_bytes != FP8_DS_MLA_ROW_BYTES:
            raise ValueError(
                "a row of fp8_ds_mla has %d bytes, and row_width is %d"
                % (FP8_DS_MLA_ROW_BYTES, row_width)
            )
        return cls(row_width, name)

    @property
    def row_bytes(self) -> int:
        return self.width * ITEM_BYTES[self.dtype]


def kv_cache_shape(
    num_blocks: int, block_size: int, head_size: int, kv_dtype: Any
) -> tuple[int, int, int]:
    """Shape of a layer's cache: (num_blocks, block_size, 656) of bytes for "fp8_ds_mla", else
    (num_blocks, block_size, head_size) of kv_dtype."""
    if dtype_name(kv_dtype) == "fp8_ds_mla":
        return (num_blocks, block_size, FP8_DS_MLA_ROW_BYTES)
    return (num_blocks, block_size, head_size)


def num_blocks_of_pool(config: HiSparseConfig, row_bytes_of_layers: list[int]) -> int:
    """Blocks of all layers that fit into host_pool_gib."""
    if config.host_pool_gib is None:
        raise ValueError("neither host_pool_gib nor the number of blocks was given")
    block_bytes = config.block_size * sum(row_bytes_of_layers)
    blocks = int(config.host_pool_gib * 2**30) // block_bytes
    if blocks < 1:
        raise ValueError(
            "host_pool_gib = %g has no room for one block of %d layers (%d bytes)"
            % (config.host_pool_gib, len(row_bytes_of_layers), block_bytes)
        )
    return blocks
