"""What the package says to the daemon's sockets: channels, errors, tokens for descriptors."""
from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from typing import Any, List, Optional

import grpc

from kvtier import messages
from kvtier.errors import (KvtierError, UnavailableError, argument_error, code_name, make_error)

# sockaddr_un.sun_path holds 108 bytes with the terminator.
SOCKET_PATH_BYTES_MAX = 107
_ANSWER_BYTES_MAX = 40 << 20
_DETAILS_KEY = "grpc-status-details-bin"
_REFUSAL_BYTES_MAX = 512
# A daemon that is not there yet is looked for this often. gRPC's "minimal back-off" is left alone: it
# is the time that an attempt to connect gets, and a daemon on a busy node may need more.
_RECONNECT_MILLISECONDS_MIN = 50
_RECONNECT_MILLISECONDS_MAX = 1000

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _ANSWER_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS_MIN),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS_MAX),
    # Channels of one address otherwise share a connection, with the back-off of the last failure
    # and the fate of each other's.
    ("grpc.use_local_subchannel_pool", 1),
)


def check_socket_path(field: str, path: str) -> str:
    """`path` without a leading "unix:". Raises InvalidArgumentError."""
    for prefix in ("unix://", "unix:"):
        if path.startswith(prefix):
            path = path[len(prefix):]
            break
    if not path:
        raise argument_error(field, "empty", "the path of a Unix socket")
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        raise argument_error(field, repr(path), "a path without control characters")
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise argument_error(field, "%d bytes long (%s)" % (size, path),
                             "at most %d bytes" % SOCKET_PATH_BYTES_MAX)
    return path


def diagnose_socket(path: str) -> str:
    """Why nobody answers at `path`, in words, by trying."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return "%s is no socket: is it the path that kvtierd was given as --socket?" % path
    except OSError:
        pass  # what is wrong shows when connecting
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(1)
        error = trial.connect_ex(path)
    return {
        0: "something accepts connections at %s but does not open a session: is it kvtierd?" % path,
        errno.ENOENT: "%s does not exist: is kvtierd running, with this --socket?" % path,
        errno.ECONNREFUSED: "nobody listens at %s: the kvtierd that made it has died; start it "
                            "again" % path,
        errno.EACCES: "user %d may not connect to %s: see the permissions of the socket and its "
                      "folder" % (os.geteuid(), path),
        errno.EAGAIN: "kvtierd at %s does not accept connections fast enough" % path,
    }.get(error, "cannot connect to %s: %s" % (path, os.strerror(error)))


def error_of(call: Any, name: str, socket_path: str, timeout: Optional[float]) -> KvtierError:
    """The error of a failed call of grpc, synchronous or not."""
    code, text = call.code(), call.details() or ""
    status = messages.message_class("google.rpc.Status")()
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            status.ParseFromString(value)
    reason, metadata, retry_delay = "", {}, None
    for detail in status.details:
        kind = detail.type_url.rpartition("/")[2]
        if kind == "google.rpc.ErrorInfo":
            info = messages.message_class(kind).FromString(detail.value)
            reason, metadata = info.reason, dict(info.metadata)
        elif kind == "google.rpc.RetryInfo":
            delay = messages.message_class(kind).FromString(detail.value).retry_delay
            retry_delay = delay.seconds + delay.nanos / 1e9
    if not reason and code == grpc.StatusCode.CANCELLED:
        # Nobody here has: the daemon's gRPC begins no more calls.
        return make_error("UNAVAILABLE", "%s: the kvtierd behind %s stops and did not begin the call "
                          "(%s)" % (name, socket_path, text), "DRAINING")
    if not reason and code == grpc.StatusCode.DEADLINE_EXCEEDED:
        text = "%s: the kvtierd behind %s did not answer within %gs" % (
            name, socket_path, timeout or 0)
    elif not reason:
        text = "%s: %s" % (name, text)
    return make_error(code.name, text, reason, metadata, retry_delay)


def error_of_step(step: Any) -> KvtierError:
    """From kvtier.v1.StepError."""
    return make_error(code_name(step.code), step.message, step.reason, dict(step.metadata))


def _refusal_of(answer: bytes) -> KvtierError:
    """What the daemon says in place of a descriptor: a text, or a google.rpc.Code (int32, little
    endian) and a text. No text begins like a code."""
    code = "NOT_FOUND"
    if len(answer) >= 4 and 0 < answer[0] <= 16 and answer[1:4] == b"\0\0\0":
        code, answer = code_name(answer[0]), answer[4:]
    text = answer.decode("utf-8", "replace") or (
        "it is not known, was used before, or is another user's")
    return make_error(code, "the daemon gave no descriptor for a token: " + text,
                      "SESSION_UNKNOWN" if code == "NOT_FOUND" else "")


def fd_socket_candidates(configured: str, announced: str, socket_path: str) -> List[str]:
    """Where to look for the descriptor socket: only `configured`, if that is given; else where the
    daemon says it is, then that name beside `socket_path`, for a process that sees the daemon's
    folder under another path."""
    if configured:
        return [configured]
    sibling = os.path.join(os.path.dirname(socket_path), os.path.basename(announced))
    return [announced] if sibling == announced else [announced, sibling]


def _no_descriptor_left() -> KvtierError:
    return make_error("RESOURCE_EXHAUSTED", "this process has no descriptor left for a segment; "
                      "raise its limit (ulimit -n)", "LIMIT_REACHED", {"limit": "file descriptors"})


def _new_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise _no_descriptor_left() from error


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), max(int(seconds % 1 * 1e6), 1))


def redeem_token(paths: List[str], token: str, timeout: float) -> int:
    """The descriptor of a token, which the caller closes."""
    refusals = []
    for path in paths:
        with _new_socket() as channel:
            # Where many connect at once this waits for its turn; with settimeout it would not.
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
            try:
                channel.connect(path)
                channel.settimeout(timeout)
            except OSError as error:
                refusals.append("%s: %s" % (path, error.strerror))
                continue
            try:
                channel.send(token.encode())
                answer, descriptors, flags, _ = socket.recv_fds(channel, _REFUSAL_BYTES_MAX, 4)
            except socket.timeout:
                raise make_error("DEADLINE_EXCEEDED", "no descriptor came from %s within %gs" %
                                 (path, timeout)) from None
            except OSError as error:
                raise UnavailableError("the descriptor socket %s broke: %s" %
                                       (path, error.strerror)) from error
        for extra in descriptors[1:]:
            os.close(extra)
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
        if not answer:
            raise UnavailableError("the daemon closed the descriptor socket %s" % path)
        # The kernel keeps a descriptor back that has no place here, and says so in this way.
        if flags & socket.MSG_CTRUNC:
            raise _no_descriptor_left()
        raise _refusal_of(answer)
    raise UnavailableError("cannot connect to the descriptor socket: %s. If the daemon's folder "
                           "has another path here, name the socket in fd_socket_path" %
                           "; ".join(refusals))
