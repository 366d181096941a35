"""What a session knows of its daemon, apart from how calls are made."""
from __future__ import annotations

import logging
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from kvtier.errors import (AlreadyExistsError, FailedPreconditionError, KvtierError, NotFoundError,
                           UnavailableError, UnimplementedError, argument_error)
from kvtier.results import Device, device_of
from kvtier.state import SessionEvent, SessionState
from kvtier.wire import check_socket_path, diagnose_socket, fd_socket_candidates, redeem_token

API_VERSION = 1
LOG = logging.getLogger("kvtier")


class Connection:
    """The state of one session. Thread-safe."""

    def __init__(self, socket_path: str, client_name: str, call_timeout: float,
                 fd_socket_path: str, on_event: Optional[Callable[[SessionEvent], None]]) -> None:
        self.socket_path = check_socket_path("socket_path", socket_path)
        self._fd_socket_path = fd_socket_path and check_socket_path("fd_socket_path",
                                                                    fd_socket_path)
        if not call_timeout > 0:
            raise argument_error("call_timeout", call_timeout, "> 0")
        self.client_name = client_name
        self.call_timeout = call_timeout
        self._on_event = on_event
        self._pid = os.getpid()
        self.opened: Any = None  # SessionOpened, constant afterwards
        self.devices: Tuple[Device, ...] = ()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._state = SessionState.OPEN
        self._closing = False
        self._message = ""  # why the state is what it is
        self._caches: Dict[str, Callable[[], None]] = {}  # what to do with each at the end

    # ---- The session's events.

    def set_opened(self, opened: Any) -> None:
        """The first event."""
        self.opened = opened
        self.devices = tuple(device_of(device) for device in opened.devices)
        LOG.info("session %s at %s, daemon %s", opened.session_id, self.socket_path,
                 opened.daemon_version)

    def handle_event(self, event: Any) -> None:
        """A later event."""
        kind = event.WhichOneof("event")
        with self._lock:
            if kind == "draining" and self._state is SessionState.OPEN:
                self._state, self._message = SessionState.DRAINING, event.draining.message
            elif kind == "revoked":
                self._state, self._message = SessionState.REVOKED, event.revoked.message
            else:
                return  # said before, or news of a later API
            news = SessionEvent(self._state, self._message)
        self._tell(news)

    def handle_end(self, message: str) -> None:
        """The session's call has ended."""
        with self._lock:
            hooks = list(self._caches.values())
            lost = False
            if self._state is not SessionState.REVOKED:
                lost = self.opened is not None and not self._closing
                self._state = SessionState.LOST if lost else SessionState.CLOSED
                self._message = message
        self._ended.set()
        for hook in hooks:
            hook()
        if lost:
            self._tell(SessionEvent(SessionState.LOST, message))

    def _tell(self, event: SessionEvent) -> None:
        LOG.warning("session %s is %s: %s", self.opened.session_id, event.state.value,
                    event.message)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # the engine's own; the session goes on
            LOG.exception("on_event failed")

    def set_closing(self) -> bool:
        """False if it was closing already."""
        with self._lock:
            was, self._closing = self._closing, True
            return not was

    def wait_until_ended(self, timeout: Optional[float]) -> bool:
        """Waits until the session has ended. Has it?"""
        return self._ended.wait(timeout)

    # ---- What may be done.

    @property
    def in_forked_child(self) -> bool:
        """Of the process that opened the session?"""
        return os.getpid() != self._pid

    @property
    def state(self) -> SessionState:
        """What has become of the session."""
        if self._closing or self.in_forked_child:
            return SessionState.CLOSED
        return self._state

    def error(self) -> Optional[KvtierError]:
        """Why no call can be made; None if one can."""
        state = self.state
        if state in (SessionState.OPEN, SessionState.DRAINING):
            return None
        if self.in_forked_child:
            return FailedPreconditionError(
                "the session was opened by process %d and this one, %d, was forked from it: open a "
                "session of its own" % (self._pid, os.getpid()))
        if state is SessionState.REVOKED:
            return NotFoundError(
                "the daemon ended session %s: %s; open a new one" %
                (self.opened.session_id, self._message), reason="SESSION_UNKNOWN",
                metadata={"session_id": self.opened.session_id})
        if state is SessionState.LOST:
            return UnavailableError("the kvtierd behind %s is lost: %s; open a new session and "
                                    "attach again" % (self.socket_path, self._message))
        return FailedPreconditionError("the session is closed: open a new one")

    def check_call(self) -> None:
        """Raises unless a call may be made."""
        error = self.error()
        if error is not None:
            raise error

    def check_memory(self, writes: bool) -> None:
        """Raises unless in-process work may read (or also write) the memory of a cache. A lost
        daemon's memory may be read. Written it may not be: if in truth only the connection broke,
        the daemon has given the host rows to others."""
        if self._state is SessionState.OPEN and not self._closing and os.getpid() == self._pid:
            return
        error = self.error()
        if error is None or (not writes and isinstance(error, UnavailableError)):
            return
        raise error

    def opening_error(self, error: KvtierError) -> KvtierError:
        """What it means that no session could be opened."""
        if error.code == "UNIMPLEMENTED" and not error.reason:
            return UnimplementedError(
                "the server at %s has no kvtier.v1.KvTier (%s): it is no kvtierd, or one of "
                "another API version; this package speaks version %d" %
                (self.socket_path, error.message, API_VERSION))
        if error.metadata.get("field") == "api_version":
            return UnimplementedError(
                "the daemon at %s speaks another API version than this package's %d (%s): install "
                "the kvtier of the daemon's release" %
                (self.socket_path, API_VERSION, error.message),
                reason=error.reason, metadata=error.metadata)
        if error.reason:
            return error
        return type(error)("%s (%s)" % (diagnose_socket(self.socket_path), error.message),
                           code=error.code)

    # ---- Caches.

    def claim_cache(self, cache: str, ended: Callable[[], None]) -> None:
        """Raises if this session has a cache of that name. `ended` runs when the session ends."""
        with self._lock:
            if cache in self._caches:
                raise AlreadyExistsError(
                    "this session is attached to the cache '%s' already; use that Cache, or close "
                    "it first" % cache, reason="ID_CONFLICT", metadata={"cache": cache})
            self._caches[cache] = ended

    def disclaim_cache(self, cache: str) -> None:
        """The name may be attached again."""
        with self._lock:
            self._caches.pop(cache, None)

    def find_device(self, uuid: str) -> Optional[Device]:
        """The daemon's device of that name; an empty name is the only one's. None: the daemon has
        to say what is wrong with it."""
        if not uuid and len(self.devices) == 1:
            return self.devices[0]
        found: List[Device] = [device for device in self.devices if uuid and device.uuid == uuid]
        return found[0] if found else None

    def redeem_token(self, token: str) -> int:
        """The descriptor of a token. The caller closes it."""
        paths = fd_socket_candidates(self._fd_socket_path, self.opened.fd_socket_path,
                                     self.socket_path)
        return redeem_token(paths, token, self.call_timeout)
