"""HiSparse on the daemon: what SGLang's scheduler and sparse attention call.

docs/sglang.md beside the package says which lines of the engine change.
"""
from kvtier.hisparse.config import HiSparseConfig
from kvtier.sglang.coordinator import HiSparseCoordinator, TokenStats

__all__ = ["HiSparseConfig", "HiSparseCoordinator", "TokenStats"]
