"""A worker's session with the daemon of its node: the lease under which it holds memory.

The session is one long call, read by a thread. It breaks when either side dies: the daemon then takes
back what the worker held, and the worker hears of it through `on_event`, Session.state and
Session.check. Nothing has to be sent to keep it alive.

When the daemon is lost, the memory of attached caches stays mapped and may be read; calls fail with
UnavailableError at once. A session never comes back: open a new one, attach again, and start from
empty hot buffers. After fork() the child must not use its parent's sessions: calls fail there.
"""
from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import grpc

from kvtier import layout as layouts
from kvtier import messages, segments, verbs
from kvtier.cache import Cache
from kvtier.connection import API_VERSION, LOG, Connection
from kvtier.errors import KvtierError, argument_error, make_error, malformed_answer
from kvtier.layout import CacheLayout, Retention, Sharing
from kvtier.plane import Arrays
from kvtier.results import Device
from kvtier.state import SessionEvent, SessionState
from kvtier.wire import CHANNEL_OPTIONS, error_of

# Between two tries while the pool is being pinned, where the daemon does not say.
_POOL_RETRY_SECONDS = 0.1


def open_session(socket_path: str, *, client_name: str = "", call_timeout: float = 5.0,
                 wait_for_daemon: bool = False, fd_socket_path: str = "",
                 on_event: Optional[Callable[[SessionEvent], None]] = None) -> "Session":
    """Opens a session with the daemon at `socket_path`, a Unix socket of at most 107 bytes.

    `client_name`: for operators, at most 128 bytes. `call_timeout`: seconds that any call waits for
    the daemon, but `attach`, which has a time of its own. `wait_for_daemon`: wait so long for a
    daemon that is not there yet. `fd_socket_path`: where descriptors are passed, if this process sees
    that socket under another path than the daemon does. `on_event` hears of changes, in order, on the
    session's thread; it may make calls, and must not close the session.

    Errors: INVALID_ARGUMENT; UNAVAILABLE where no daemon answers, with what is wrong, or it drains;
    RESOURCE_EXHAUSTED; UNIMPLEMENTED where another server answers, or a daemon of another API;
    DEADLINE_EXCEEDED."""
    return Session(Connection(socket_path, client_name, call_timeout, fd_socket_path, on_event),
                   wait_for_daemon)


class Session(verbs.SessionBase):
    """Made by open_session; a context manager that closes. Thread-safe."""

    def __init__(self, connection: Connection, wait_for_daemon: bool) -> None:
        self.connection = connection
        self._caches: Dict[str, Any] = {}  # weak references
        self._channel = grpc.insecure_channel("unix:" + connection.socket_path,
                                              options=CHANNEL_OPTIONS)
        self._methods: Dict[str, Tuple[Any, Any]] = {}
        self._lock = threading.Lock()
        opened = threading.Event()  # or it has failed
        end: List[KvtierError] = []
        path, request, event = messages.method("KvTier", "OpenSession")
        self._stream = self._channel.unary_stream(
            path, request_serializer=request.SerializeToString,
            response_deserializer=event.FromString)(
                request(client_name=connection.client_name, api_version=API_VERSION),
                wait_for_ready=wait_for_daemon)
        # The thread keeps no session alive: one that nobody has any more ends.
        self._reader = threading.Thread(target=_read_events, name="kvtier session", daemon=True,
                                        args=(connection, self._stream, opened, end))
        self._hang_up = weakref.finalize(self, _hang_up, connection, self._stream, self._channel,
                                         self._reader)
        self._reader.start()
        answered = opened.wait(connection.call_timeout)
        if answered and connection.opened is not None:
            return
        self._hang_up()
        if not answered:
            end = [make_error("DEADLINE_EXCEEDED",
                              "no answer within %gs" % connection.call_timeout)]
        raise connection.opening_error(
            end[0] if end else malformed_answer("OpenSession ended before it said `opened`"))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- Its end.

    def wait_until_ended(self, timeout: Optional[float] = None) -> bool:
        """Waits until the session has ended, at most `timeout` seconds. Has it?"""
        return self.connection.wait_until_ended(timeout)

    # ---- Calls.

    def call(self, name: str, fields: dict, timeout: Optional[float] = None) -> Any:
        """One call of the service KvTier: for what has no method here. `fields` of its request;
        the answer's message."""
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
            return method(message, timeout=seconds)
        except grpc.RpcError as error:
            raise error_of(error, name, connection.socket_path, seconds) from None

    def attach(self, cache: str, layout: CacheLayout, *, device_uuid: str = "",
               kernel_threads: int = 1, wait_for_pool: float = 60.0,
               attach_timeout: float = 60.0, retain: Optional[Retention] = None,
               replace_kept: bool = False, share: Optional[Sharing] = None) -> Cache:
        """Creates or joins a cache and maps its memory.

        `cache`: 1..128 bytes of [A-Za-z0-9._/-]; sessions that name the same cache share its host
        rows. `device_uuid`: where the hot buffers go; empty: the daemon's only device.
        `kernel_threads`: of in-process calls on a CPU, 1..64. `wait_for_pool`: seconds to try while
        the daemon still pins its host pool. `attach_timeout`: seconds that one try waits for the
        daemon, in the place of `call_timeout`: the first attach on a GPU registers the whole pool
        with it (some 30 ms a GiB), and what others left in this cache's part has to be wiped (0.1 s
        a GiB); beyond 10 minutes the daemon does not go. `retain`: what stays of the cache when its
        sessions are gone, from now on; None: as it is. `replace_kept`: a cache without sessions that
        has another layout is dropped for this one. `share`: who else may attach, if this call makes
        the cache; None: nobody but this process's user, or as it is.

        Errors: as AttachCache; UNIMPLEMENTED for a GPU where the package was built without CUDA,
        DEVICE_UNKNOWN for one that this process cannot see, ALREADY_EXISTS if this session has a
        Cache of that name. Nothing stays attached then."""
        connection = self.connection
        connection.check_call()
        holder: Dict[str, Any] = {}
        connection.claim_cache(cache, lambda: _keep_releasing(holder))
        try:
            device = connection.find_device(device_uuid)
            memory = None if device is None else segments.Memory(device, kernel_threads)
            message = attach_message(connection, cache, layout, device_uuid, retain,
                                     replace_kept, share)
            answer = self._attach_when_pinned(message, wait_for_pool, attach_timeout)
            try:
                arrays = map_answer(answer, message, device, memory, connection.redeem_token)
                found = Cache(self, cache, answer, arrays, device)
            except BaseException:
                self._undo_attach(cache)
                raise
        except BaseException:
            connection.disclaim_cache(cache)
            raise
        holder["cache"] = weakref.ref(found)
        self._caches[cache] = weakref.ref(found)
        return found

    def _attach_when_pinned(self, message: dict, wait_for_pool: float,
                            timeout: float) -> Any:
        if not timeout > 0:
            raise argument_error("attach_timeout", timeout, "> 0")
        deadline = time.monotonic() + wait_for_pool
        while True:
            try:
                return self.call("AttachCache", message, timeout)
            except KvtierError as error:
                left = deadline - time.monotonic()
                if error.reason != "POOL_PINNING" or left <= 0:
                    raise
                delay = error.retry_delay or _POOL_RETRY_SECONDS
            if self.connection.wait_until_ended(min(left, delay)):
                self.connection.check_call()

    def _undo_attach(self, cache: str) -> None:
        try:
            self.call("DetachCache", {"session_id": self.id, "cache": cache})
        except KvtierError as error:
            LOG.warning("detaching from %s: %s", cache, error)

    def forget(self, cache: str) -> None:
        """A cache is detached, or nobody uses the memory of a closed one any more."""
        with self._lock:
            self._caches.pop(cache, None)
            last = not self._caches and self.connection.state is SessionState.CLOSED
        if last:
            self._hang_up()

    def close(self) -> None:
        """Closes caches and ends the session; requests are released, memory goes back. While tensors
        on a cache's memory are alive, the session goes on in the daemon until they are gone; calls
        are refused at once. Idempotent; nothing in a forked child."""
        if self.connection.in_forked_child:
            return
        for reference in list(self._caches.values()):
            cache = reference()
            if cache is not None:
                cache.close()
        with self._lock:
            self.connection.set_closing()
            last = not self._caches
        if last:
            self._hang_up()
        else:
            LOG.warning("session %s is closed, and ends when the last tensor on its caches is gone",
                        self.id)


def _hang_up(connection: Connection, stream: Any, channel: Any, reader: threading.Thread) -> None:
    if connection.in_forked_child:
        return
    connection.set_closing()
    stream.cancel()
    if threading.current_thread() is not reader and reader.is_alive():
        reader.join()
    channel.close()


def _keep_releasing(holder: Dict[str, Any]) -> None:
    cache = holder["cache"]() if "cache" in holder else None
    if cache is not None:
        cache.keep_releasing_waits()


def attach_message(connection: Connection, cache: str, layout: CacheLayout, device_uuid: str,
                   retain: Optional[Retention], replace_kept: bool,
                   share: Optional[Sharing]) -> dict:
    """The fields of AttachCacheRequest."""
    try:
        message = layouts.to_message(layout)
        kept = None if retain is None else layouts.retention_message(retain)
        shared = None if share is None else layouts.sharing_fields(share)
    except (TypeError, ValueError, AttributeError) as error:
        raise argument_error("layout, retain or share", error,
                             "a CacheLayout, Retention and Sharing with numbers in range") from error
    return {"session_id": connection.opened.session_id, "cache": cache, "layout": message,
            "device_uuid": device_uuid, "retain": kept, "replace_kept": replace_kept,
            "share": shared}


def map_answer(answer: Any, message: dict, device: Optional[Device],
               memory: Optional[segments.Memory], redeem: Callable[[str], int]) -> Arrays:
    """Checks an AttachCache answer and maps what it names."""
    layouts.check_given(message["layout"], answer.layout)
    if device is None or memory is None or answer.device.uuid != device.uuid:
        raise malformed_answer("a cache on device " + answer.device.uuid)
    return Arrays(answer, memory, redeem)


def _read_events(connection: Connection, stream: Any, opened: threading.Event,
                 end: List[KvtierError]) -> None:
    """The session's thread."""
    message = "the daemon ended the session without a word"
    try:
        for event in stream:
            if connection.opened is None and event.WhichOneof("event") == "opened":
                connection.set_opened(event.opened)
                opened.set()
            else:
                connection.handle_event(event)
    except grpc.RpcError as error:
        end.append(error_of(error, "OpenSession", connection.socket_path,
                            connection.call_timeout))
        message = end[0].message
    except Exception as error:  # nobody else would say so
        LOG.exception("the session's thread failed")
        message = str(error)
    connection.handle_end(message)
    opened.set()
