"""The requests of calls on a cache, and what their answers mean: the same for both kinds of client."""
from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy

from kvtier import native
from kvtier.connection import Connection
from kvtier.errors import KvtierError, NotFoundError, malformed_answer
from kvtier.plane import Arrays, LocalPlane
from kvtier.results import AssignedBlocks, Device, KeptBlock, Ticket
from kvtier.state import SessionState
from kvtier.tensors import stream_handle

LOG = logging.getLogger("kvtier")

KEPT_BLOCKS_PAGE = 1000

# The device of a daemon that was killed stops within this time.
_RELEASES = 10
_RELEASE_INTERVAL_SECONDS = 0.02


class SessionBase:
    """What a session is, as Session and AsyncSession say it."""

    connection: Connection

    @property
    def id(self) -> str:
        """Names the session; begins with boot_id."""
        return self.connection.opened.session_id

    @property
    def boot_id(self) -> str:
        """Another one with every start of the daemon."""
        return self.connection.opened.boot_id

    @property
    def daemon_version(self) -> str:
        """Like "0.1.0"."""
        return self.connection.opened.daemon_version

    @property
    def devices(self) -> Tuple[Device, ...]:
        """What a cache can be attached on."""
        return self.connection.devices

    @property
    def state(self) -> SessionState:
        """What has become of it."""
        return self.connection.state

    def check(self) -> None:
        """Raises unless calls can be made: UnavailableError (lost), NotFoundError (revoked),
        FailedPreconditionError (closed, or another process after fork())."""
        self.connection.check_call()


class CacheBase(LocalPlane):
    """What Cache and AsyncCache share: the in-process plane, and the order of the two planes."""

    def __init__(self, connection: Connection, name: str, answer: Any, arrays: Arrays,
                 device: Device) -> None:
        super().__init__(arrays, connection.check_memory)
        self._connection = connection
        self.name = name
        self.device = device
        self.created: bool = answer.created
        # Blocks that nobody held when this attached: list_kept_blocks has them.
        self.blocks_kept: int = answer.blocks_kept
        self._order = threading.Lock()
        self._signalled = 0  # last number for the daemon
        self._awaited = 0    # furthest ticket waited for

    @property
    def session_id(self) -> str:
        """The session that this cache belongs to."""
        return self._connection.opened.session_id

    def check_call(self) -> None:
        """Raises unless a call about this cache may be made."""
        self._connection.check_call()
        _ = self._arrays

    def fields(self, **fields: Any) -> dict:
        """The fields of a request about this cache."""
        return {"session_id": self.session_id, "cache": self.name, **fields}

    def step_fields(self, wait: bool, layers: Optional[Tuple[int, int]] = None,
                    **fields: Any) -> dict:
        """The fields of a verb on the step buffers."""
        if layers is not None:
            fields["layers"] = {"first_layer": layers[0], "layer_count": layers[1]}
        return self.fields(wait=wait, **fields)

    # ---- The daemon's device stream and the worker's.

    def before_rpc(self, stream: Any, fields: dict) -> Optional[int]:
        """Adds the number that the daemon waits for; the stream's handle, None without order."""
        if stream is None and (self._device_name == "cpu" or not _torch_is_there()):
            return None
        handle = stream_handle(stream, self._device_name)
        memory, progress = self.memory, self._arrays.progress
        with self._order:
            number = ctypes.c_int32(self._signalled + 1).value  # cyclic
            native.check(native.LIBRARY.kvtier_signal(
                memory.handle, progress.address, number, handle))
            self._signalled = number
        fields["after_worker"] = number
        return handle

    def after_rpc(self, ticket: int, handle: Optional[int]) -> None:
        """What is enqueued on the stream from now on comes after `ticket`."""
        if handle is None:
            return
        memory, progress = self.memory, self._arrays.progress
        # Before the wait is there: whoever releases must know of it.
        with self._order:
            self._awaited = max(self._awaited, ticket)
        native.check(native.LIBRARY.kvtier_wait(
            memory.handle, progress.address + 4, ctypes.c_int32(ticket).value, handle))
        # It may have died since it answered.
        error = self._connection.error()
        if error is not None:
            self.release_waits()
            raise error

    def release_waits(self) -> None:
        """The daemon is gone: lets streams go on that wait for it. Takes no lock, because whoever
        enqueues may be held up by such a stream."""
        arrays, awaited = self._arrays_or_none, self._awaited
        if arrays is None or not awaited:
            return
        try:
            memory = arrays.holder.memory
        except KvtierError:
            return  # closed meanwhile
        if memory is not None:
            native.LIBRARY.kvtier_release_wait(arrays.progress.address + 4,
                                               ctypes.c_int32(awaited).value)

    def keep_releasing_waits(self) -> None:
        """The same for a while, for what the daemon's device still writes after its death."""
        self.release_waits()
        if not self._awaited:
            return
        pause = threading.Event()
        for _ in range(_RELEASES):
            self.release_waits()
            pause.wait(_RELEASE_INTERVAL_SECONDS)

    # ---- The end.

    def drop_arrays(self, released: Callable[[], None]) -> Optional[Callable[[], None]]:
        """Refuses calls from now on and gives the memory up. `released`, to tell the daemon, is
        returned if nobody else uses the memory, and called when nobody does any more if somebody
        does: until then it stays the session's."""
        arrays = self._arrays_or_none
        if arrays is None:
            return None
        if self._connection.error() is not None:
            self.release_waits()
        try:
            memory = arrays.holder.memory
            native.check(native.LIBRARY.kvtier_finish(memory.handle))
        except KvtierError as error:
            LOG.warning("cache %s: %s", self.name, error)
        # Whatever was enqueued has ended, so that nobody needs these any more.
        self._arrays_or_none, self._inputs = None, []
        arrays.holder.drop()
        reference, pid = weakref.ref(memory), os.getpid()
        del memory
        alive = reference()
        if alive is None:
            return released
        LOG.warning("cache %s is closed, but tensors on its memory are alive: the daemon keeps it "
                    "for this session until they are gone", self.name)
        weakref.finalize(alive, _tell_later, released, pid).atexit = False
        return None


def _torch_is_there() -> bool:
    import sys  # pylint: disable=import-outside-toplevel
    return "torch" in sys.modules


def _tell_later(released: Callable[[], None], pid: int) -> None:
    """From the end of an object, where no call may wait."""
    if os.getpid() == pid:
        threading.Thread(target=released, name="kvtier detach", daemon=True).start()


class RequestBase:
    """What Request and AsyncRequest share."""

    def __init__(self, cache: CacheBase, request_id: str, region: int) -> None:
        # The region becomes an index into the block table.
        if not 0 <= region < cache.layout.max_requests:
            raise malformed_answer("AdmitRequest gave region %d of %d" % (
                region, cache.layout.max_requests))
        self._cache = cache
        self.id = request_id
        self.region = region
        self._released = False
        # On a GPU a copy, as of the last assign or free.
        self._table = (None if cache.tensor_device == "cpu" else
                       numpy.full(cache.layout.max_blocks_per_request or 0, -1, numpy.int32))

    @property
    def cache(self) -> CacheBase:
        """The cache that it was admitted to."""
        return self._cache

    def fields(self, **fields: Any) -> dict:
        """The fields of a request message about this one."""
        return self._cache.fields(request_id=self.id, **fields)

    def block_table(self) -> numpy.ndarray:
        """int32 [max_blocks_per_request]: a copy of the block ids as the kernels see them, -1 none;
        on a GPU as of the last assign_blocks or free_blocks."""
        if self._table is not None:
            return self._table.copy()
        return self._cache.block_table.numpy()[self.region].copy()

    def slot_of(self, position: int) -> int:
        """The slot of `position`; -1 if it is negative or no block covers it."""
        return int(self.slots_of([position])[0])

    def slots_of(self, positions: Sequence[int]) -> numpy.ndarray:
        """int32: the slots of `positions`, -1 where one is negative or no block covers it."""
        block_size = self._cache.layout.block_size
        assert block_size is not None
        table = self._table if self._table is not None else (
            self._cache.block_table.numpy()[self.region])
        wanted = numpy.asarray(positions, dtype=numpy.int64)
        index = wanted // block_size
        inside = (wanted >= 0) & (index < len(table))
        blocks = table[numpy.where(inside, index, 0)].astype(numpy.int64)
        slots = blocks * block_size + wanted % block_size
        return numpy.where(inside & (blocks >= 0), slots, -1).astype(numpy.int32)

    def set_sequence_length(self, length: int) -> None:
        """Positions at or past `length` are masked from now on; -1: unknown, none are. On a GPU a
        small copy that is done when this returns: engines write sequence_lengths on their stream."""
        lengths, memory = self._cache.sequence_lengths, self._cache.memory
        value = ctypes.c_int32(length)
        native.check(native.LIBRARY.kvtier_write(
            memory.handle,
            lengths.address + 4 * self.region, ctypes.byref(value), 4))

    def took(self, answer: Any) -> AssignedBlocks:
        """From AssignBlocksResponse."""
        count = self._cache.layout.block_count
        for block in answer.block_ids:
            if not 0 <= block < count:
                raise malformed_answer("AssignBlocks gave block %d of %d" % (block, count))
        if self._table is not None:
            for i, block in enumerate(answer.block_ids):
                if 0 <= answer.table_index + i < len(self._table):
                    self._table[answer.table_index + i] = block
        return AssignedBlocks(tuple(answer.block_ids), tuple(answer.generations),
                              answer.table_index, answer.invalidated_copies)

    def gave(self, blocks: Sequence[int]) -> None:
        """FreeBlocks has succeeded; the daemon's own write may still be behind other work."""
        if self._table is not None:
            self._table[numpy.isin(self._table, numpy.asarray(list(blocks), numpy.int32))] = -1

    def failed(self, error: KvtierError) -> None:
        """AssignBlocks or FreeBlocks has failed: perhaps only the answer is lost."""
        if error.reason or self._table is None:
            return
        table, memory = self._cache.block_table, self._cache.memory
        code = native.LIBRARY.kvtier_read(
            memory.handle, self._table.ctypes.data, table.address + self._table.nbytes * self.region,
            self._table.nbytes)
        if code:  # a device that cannot be read any more has no blocks for anybody
            self._table.fill(-1)

    def check_release(self) -> None:
        """Raises if it was released."""
        if self._released:
            raise NotFoundError("request '%s' of cache '%s' was released" % (
                self.id, self._cache.name), reason="REQUEST_UNKNOWN",
                metadata={"request_id": self.id})


def kept_block_of(block: Any) -> KeptBlock:
    """From kvtier.v1.KeptBlock."""
    return KeptBlock(block.block_id, block.generation, block.tag, block.rows_backed)


def ticket_of(answer: Any) -> Ticket:
    """From the answer of a verb."""
    return Ticket(answer.ticket, answer.completed)


def block_list(blocks: Sequence[int]) -> List[int]:
    """Numbers of any integer type, as protobuf wants them."""
    return [int(block) for block in blocks]
