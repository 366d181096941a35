"""Client of kvtierd, the KV tiering daemon of a node.

A worker opens a session, attaches a cache, and runs its decode steps on the daemon's memory:

    with kvtier.open_session("/run/kvtierd/kvtierd.sock") as session:
        with session.attach("kv", layout) as cache, cache.admit("request-1") as request:
            request.assign_blocks(2)
            cache.swap_in(0, num_rows=1)

README.md beside this package has an example that runs. Importing this package needs grpcio,
protobuf and numpy; PyTorch is used where tensors of it come in or are asked for, and never imported
by itself. kvtier.aio has the control calls as coroutines, kvtier.torch_ops the steps as operators
that torch.compile traces, kvtier.admin what operators ask.
"""
from kvtier.arrays import Array
from kvtier.cache import Cache, Request
from kvtier.counters import Counters
from kvtier.errors import (AbortedError, AlreadyExistsError, DeadlineExceededError,
                           FailedPreconditionError, InternalError, InvalidArgumentError,
                           KvtierError, NotFoundError, OutOfRangeError, PermissionDeniedError,
                           ResourceExhaustedError, UnavailableError, UnimplementedError)
from kvtier.layout import (CacheLayout, EvictionPolicy, Layer, LayerGroup, Retention, RowFormat,
                           Sharing)
from kvtier.plane import Group, LayerRows, StepInputs
from kvtier.results import AssignedBlocks, Device, KeptBlock, Ticket
from kvtier.session import Session, open_session
from kvtier.state import SessionEvent, SessionState
from kvtier.version import __version__

__all__ = [
    "AbortedError", "AlreadyExistsError", "Array", "AssignedBlocks", "Cache", "CacheLayout",
    "Counters", "DeadlineExceededError", "Device", "EvictionPolicy", "FailedPreconditionError",
    "Group", "InternalError", "KeptBlock", "InvalidArgumentError", "KvtierError", "Layer", "LayerGroup",
    "LayerRows", "NotFoundError", "OutOfRangeError", "PermissionDeniedError", "Request",
    "ResourceExhaustedError", "Retention", "RowFormat", "Session", "SessionEvent", "SessionState", "Sharing",
    "StepInputs",
    "Ticket", "UnavailableError", "UnimplementedError", "__version__", "open_session",
]
