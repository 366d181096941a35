"""Sessions, caches and requests whose control calls are coroutines.

    async with await kvtier.aio.open_session(path) as session:
        async with await session.attach("kv", layout) as cache:
            request = await cache.admit("request-1")
            await request.assign_blocks(2)
            cache.swap_in(0, num_rows=1)      # in process: a plain call, which enqueues

The names are those of kvtier.session and kvtier.cache, and so are the errors. A session belongs to the
event loop that opened it.
"""
from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import grpc
import grpc.aio

from kvtier import messages, segments, verbs
from kvtier.connection import API_VERSION, LOG, Connection
from kvtier.errors import KvtierError, argument_error, make_error, malformed_answer
from kvtier.layout import CacheLayout, Retention, Sharing
from kvtier.results import AssignedBlocks, Device, KeptBlock, Ticket
from kvtier.session import attach_message, map_answer
from kvtier.state import SessionEvent, SessionState
from kvtier.wire import CHANNEL_OPTIONS, error_of

_POOL_RETRY_SECONDS = 0.1


async def open_session(socket_path: str, *, client_name: str = "", call_timeout: float = 5.0,
                       wait_for_daemon: bool = False, fd_socket_path: str = "",
                       on_event: Optional[Callable[[SessionEvent], None]] = None
                       ) -> "AsyncSession":
    """As kvtier.open_session. `on_event` is called on the event loop."""
    session = AsyncSession(Connection(socket_path, client_name, call_timeout, fd_socket_path,
                                      on_event))
    await session.open(wait_for_daemon)
    return session


class AsyncSession(verbs.SessionBase):
    """Made by open_session; an asynchronous context manager that closes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()
        self._caches: Dict[str, Any] = {}  # weak references
        self._methods: Dict[str, Tuple[Any, Any]] = {}
        self._channel = grpc.aio.insecure_channel("unix:" + connection.socket_path,
                                                  options=CHANNEL_OPTIONS)
        self._stream: Any = None
        self._reader: Optional["asyncio.Task[None]"] = None
        self._end: List[KvtierError] = []

    async def open(self, wait_for_daemon: bool) -> None:
        """Opens the session's call."""
        connection = self.connection
        path, request, event = messages.method("KvTier", "OpenSession")
        self._stream = self._channel.unary_stream(
            path, request_serializer=request.SerializeToString,
            response_deserializer=event.FromString)(
                request(client_name=connection.client_name, api_version=API_VERSION),
                wait_for_ready=wait_for_daemon)
        opened = asyncio.Event()
        self._reader = self._loop.create_task(
            _read_events(connection, self._stream, opened, self._end))
        try:
            await asyncio.wait_for(opened.wait(), connection.call_timeout)
        except asyncio.TimeoutError:
            self._end = [make_error("DEADLINE_EXCEEDED",
                                    "no answer within %gs" % connection.call_timeout)]
        if connection.opened is not None:
            return
        end = self._end
        await self._hang_up()
        raise connection.opening_error(
            end[0] if end else malformed_answer("OpenSession ended before it said `opened`"))

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def call(self, name: str, fields: dict, timeout: Optional[float] = None) -> Any:
        """As Session.call."""
        connection = self.connection
        connection.check_call()
        if name not in self._methods:
            path, request, response = messages.method("KvTier", name)
            self._methods[name] = self._channel.unary_unary(
                path, request_serializer=request.SerializeToString,
                response_deserializer=response.FromString), request
        method, request = self._methods[name]
        try:
            message = request(**fields)
        except (TypeError, ValueError) as error:
            raise argument_error(name, error, "as kvtier.proto says") from error
        seconds = connection.call_timeout if timeout is None else timeout
        try:
            return await method(message, timeout=seconds)
        except grpc.RpcError as error:
            raise error_of(error, name, connection.socket_path, seconds) from None

    async def attach(self, cache: str, layout: CacheLayout, *, device_uuid: str = "",
                     kernel_threads: int = 1, wait_for_pool: float = 60.0,
                     attach_timeout: float = 60.0,
                     retain: Optional[Retention] = None,
                     replace_kept: bool = False,
                     share: Optional[Sharing] = None) -> "AsyncCache":
        """As Session.attach. Mapping and pinning run on another thread."""
        connection = self.connection
        connection.check_call()
        holder: Dict[str, Any] = {}
        connection.claim_cache(cache, lambda: _release(holder))
        try:
            device = connection.find_device(device_uuid)
            memory = None if device is None else segments.Memory(device, kernel_threads)
            message = attach_message(connection, cache, layout, device_uuid, retain,
                                     replace_kept, share)
            answer = await self._attach_when_pinned(message, wait_for_pool, attach_timeout)
            try:
                arrays = await self._loop.run_in_executor(
                    None, map_answer, answer, message, device, memory, connection.redeem_token)
                assert device is not None
                found = AsyncCache(self, cache, answer, arrays, device)
            except BaseException:
                await self.detach(cache)
                raise
        except BaseException:
            connection.disclaim_cache(cache)
            raise
        holder["cache"] = weakref.ref(found)
        self._caches[cache] = weakref.ref(found)
        return found

    async def _attach_when_pinned(self, message: dict, wait_for_pool: float,
                                  timeout: float) -> Any:
        if not timeout > 0:
            raise argument_error("attach_timeout", timeout, "> 0")
        deadline = time.monotonic() + wait_for_pool
        while True:
            try:
                return await self.call("AttachCache", message, timeout)
            except KvtierError as error:
                left = deadline - time.monotonic()
                if error.reason != "POOL_PINNING" or left <= 0:
                    raise
                delay = error.retry_delay or _POOL_RETRY_SECONDS
            await asyncio.sleep(min(left, delay))

    async def detach(self, cache: str) -> None:
        """Tells the daemon that a cache is no longer used here."""
        try:
            if self.connection.error() is None:
                await self.call("DetachCache", {"session_id": self.id, "cache": cache})
        except KvtierError as error:
            LOG.info("detaching from %s: %s", cache, error)
        self.connection.disclaim_cache(cache)
        self._caches.pop(cache, None)
        if not self._caches and self.connection.state is SessionState.CLOSED:
            await self._hang_up()

    def detach_later(self, cache: str) -> None:
        """The same from another thread."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.detach(cache), self._loop)

    async def close(self) -> None:
        """As Session.close."""
        if self.connection.in_forked_child:
            return
        for reference in list(self._caches.values()):
            cache = reference()
            if cache is not None:
                await cache.close()
        self.connection.set_closing()
        if not self._caches:
            await self._hang_up()

    async def _hang_up(self) -> None:
        self.connection.set_closing()
        if self._stream is not None:
            self._stream.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close(None)


async def _read_events(connection: Connection, stream: Any, opened: asyncio.Event,
                       end: List[KvtierError]) -> None:
    message = "the daemon ended the session without a word"
    try:
        async for event in stream:
            if connection.opened is None and event.WhichOneof("event") == "opened":
                connection.set_opened(event.opened)
                opened.set()
            else:
                connection.handle_event(event)
    except grpc.RpcError as error:
        end.append(error_of(error, "OpenSession", connection.socket_path,
                            connection.call_timeout))
        message = end[0].message
    except asyncio.CancelledError:
        message = "the session's call was cancelled"
    connection.handle_end(message)
    opened.set()


def _release(holder: Dict[str, Any]) -> None:
    cache = holder["cache"]() if "cache" in holder else None
    if cache is not None:
        asyncio.get_running_loop().run_in_executor(None, cache.keep_releasing_waits)


class AsyncCache(verbs.CacheBase):
    """Made by AsyncSession.attach; an asynchronous context manager that closes. The in-process verbs
    are plain calls, as of Cache."""

    def __init__(self, session: AsyncSession, name: str, answer: Any, arrays: Any,
                 device: Device) -> None:
        super().__init__(session.connection, name, answer, arrays, device)
        self._session = session

    async def __aenter__(self) -> "AsyncCache":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def call(self, name: str, fields: dict) -> Any:
        """One call about this cache."""
        self.check_call()
        return await self._session.call(name, fields)

    async def admit(self, request_id: str, *, reserve_blocks: int = 0) -> "AsyncRequest":
        """As Cache.admit."""
        answer = await self.call("AdmitRequest", self.fields(request_id=request_id,
                                                             reserve_blocks=reserve_blocks))
        return AsyncRequest(self, request_id, answer.region)

    async def invalidate_blocks(self, blocks: Sequence[int]) -> int:
        """As Cache.invalidate_blocks."""
        return (await self.call("InvalidateBlocks", self.fields(
            block_ids=verbs.block_list(blocks)))).invalidated_copies

    async def list_kept_blocks(self) -> Tuple[KeptBlock, ...]:
        """As Cache.list_kept_blocks."""
        found: List[KeptBlock] = []
        token = ""
        while True:
            page = await self.call("ListKeptBlocks", self.fields(
                page_size=verbs.KEPT_BLOCKS_PAGE, page_token=token))
            found.extend(map(verbs.kept_block_of, page.blocks))
            if page.next_page_token in ("", token):  # one that leads nowhere ends it, too
                return tuple(found)
            token = page.next_page_token

    async def _verb(self, name: str, fields: dict, stream: Any) -> Ticket:
        self.check_call()
        handle = self.before_rpc(stream, fields)
        answer = await self._session.call(name, fields)
        self.after_rpc(answer.ticket, handle)
        return verbs.ticket_of(answer)

    async def swap_in_rpc(self, group: int, num_rows: int, *, use_slots: bool = False,
                          layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                          wait: bool = False) -> Ticket:
        """As Cache.swap_in_rpc."""
        return await self._verb("SwapIn", self.step_fields(
            wait, layers, group_index=group, use_slots=use_slots, step={"num_rows": num_rows}),
            stream)

    async def replay_plan_rpc(self, group: int, num_rows: int, *,
                              layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                              wait: bool = False) -> Ticket:
        """As Cache.replay_plan_rpc."""
        return await self._verb("ReplayPlan", self.step_fields(
            wait, layers, group_index=group, num_rows=num_rows), stream)

    async def backup_rpc(self, num_rows: int, *, stream: Any = None, wait: bool = False) -> Ticket:
        """As Cache.backup_rpc."""
        return await self._verb("Backup", self.step_fields(wait, step={"num_rows": num_rows}),
                                stream)

    async def wait_ticket(self, ticket: int) -> int:
        """As Cache.wait_ticket."""
        return (await self.call("WaitTicket", self.fields(ticket=int(ticket)))).completed_ticket

    async def close(self) -> None:
        """As Cache.close. Waits for a GPU on another thread."""
        session, name = self._session, self.name
        if session.connection.in_forked_child:
            return
        detach = await asyncio.get_running_loop().run_in_executor(
            None, self.drop_arrays, lambda: session.detach_later(name))
        if detach is not None:
            await session.detach(name)


class AsyncRequest(verbs.RequestBase):
    """Made by AsyncCache.admit; an asynchronous context manager that releases."""

    _cache: AsyncCache

    async def __aenter__(self) -> "AsyncRequest":
        return self

    async def __aexit__(self, *_: Any) -> None:
        if self._released:
            return
        try:
            self._cache.check_call()
        except KvtierError:
            return  # the daemon has released it, or nobody can
        await asyncio.get_running_loop().run_in_executor(None, self._cache.synchronize)
        await self.release()

    async def _call(self, name: str, **fields: Any) -> Any:
        self.check_release()
        return await self._cache.call(name, self.fields(**fields))

    async def assign_blocks(self, count: int, *, shared_blocks: Sequence[int] = (),
                            shared_generations: Sequence[int] = (),
                            tags: Sequence[int] = ()) -> AssignedBlocks:
        """As Request.assign_blocks."""
        try:
            answer = await self._call("AssignBlocks", count=count,
                                      shared_block_ids=verbs.block_list(shared_blocks),
                                      shared_generations=verbs.block_list(shared_generations),
                                      block_tags=verbs.block_list(tags))
        except KvtierError as error:
            self.failed(error)
            raise
        return self.took(answer)

    async def free_blocks(self, blocks: Sequence[int]) -> int:
        """As Request.free_blocks."""
        try:
            answer = await self._call("FreeBlocks", block_ids=verbs.block_list(blocks))
        except KvtierError as error:
            self.failed(error)
            raise
        self.gave(blocks)
        return answer.blocks_freed

    async def release(self) -> int:
        """As Request.release."""
        try:
            answer = await self._call("ReleaseRequest")
        except KvtierError as error:
            self._released = self._released or error.code == "NOT_FOUND"
            raise
        self._released = True
        return answer.blocks_freed
