"""HiSparse on the daemon: what vLLM's sparse attention calls, over rows that kvtierd holds.

docs/vllm.md beside the package says which lines of the engine change.
"""
from kvtier.hisparse.blocks import Assignment
from kvtier.hisparse.config import HiSparseConfig, kv_cache_shape
from kvtier.hisparse.coordinator import HiSparseCoordinator
from kvtier.hisparse.ranks import Ranks
from kvtier.hisparse.tier import HiSparseTier

__all__ = [
    "Assignment",
    "HiSparseConfig",
    "HiSparseCoordinator",
    "HiSparseTier",
    "Ranks",
    "kv_cache_shape",
]
