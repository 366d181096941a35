"""Errors of the package.

Every error of the daemon, and those that the package makes in its place, is a KvtierError with the
canonical code, a reason of proto/kvtier/v1/errors.proto where there is one, and its metadata:

    try:
        request.assign_blocks(4)
    except kvtier.ResourceExhaustedError as error:
        if error.reason == "BLOCKS_EXHAUSTED":
            preempt(int(error.metadata["requested"]))

Nothing is CANCELLED: where the daemon's gRPC cancels a call, at the end of a shutdown, that is
UNAVAILABLE / DRAINING. (A coroutine that is cancelled ends with asyncio.CancelledError.)
Without a reason: UNAVAILABLE, the daemon cannot be reached or is lost; DEADLINE_EXCEEDED, it did not
answer in time; FAILED_PRECONDITION, the call is made where it cannot be.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple, Type


class KvtierError(Exception):
    """What went wrong: `code` ("NOT_FOUND"), `reason` ("SESSION_UNKNOWN" or ""), `metadata`,
    `retry_delay` (seconds, or None), and `message`, for people."""

    code = "UNKNOWN"

    def __init__(self, message: str, *, code: str = "", reason: str = "",
                 metadata: Optional[Mapping[str, str]] = None,
                 retry_delay: Optional[float] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.reason = reason
        self.metadata: Dict[str, str] = dict(metadata or {})
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        head = self.code + (" / " + self.reason if self.reason else "")
        return "%s: %s" % (head, self.message)

    def __reduce__(self) -> Tuple[Any, ...]:
        state = {"code": self.code, "reason": self.reason, "metadata": self.metadata,
                 "retry_delay": self.retry_delay}
        return (_rebuild, (type(self), self.message, state))


def _rebuild(kind: Type[KvtierError], message: str, state: dict) -> KvtierError:
    return kind(message, **state)


class InvalidArgumentError(KvtierError, ValueError):
    """An argument is out of range; nothing was done."""
    code = "INVALID_ARGUMENT"


class DeadlineExceededError(KvtierError, TimeoutError):
    """No answer in time."""
    code = "DEADLINE_EXCEEDED"


class NotFoundError(KvtierError):
    """The session, cache, request or ticket is not there."""
    code = "NOT_FOUND"


class AlreadyExistsError(KvtierError):
    """The name is in use with other parameters."""
    code = "ALREADY_EXISTS"


class PermissionDeniedError(KvtierError):
    """It belongs to others."""
    code = "PERMISSION_DENIED"


class ResourceExhaustedError(KvtierError):
    """Blocks, regions, memory or a limit are used up."""
    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(KvtierError):
    """Not in this state: closed, another layout, another process."""
    code = "FAILED_PRECONDITION"


class AbortedError(KvtierError):
    """The session was closed while the call ran."""
    code = "ABORTED"


class OutOfRangeError(KvtierError, IndexError):
    """A slot outside the cache."""
    code = "OUT_OF_RANGE"


class UnimplementedError(KvtierError):
    """The other side, or this build, cannot do it."""
    code = "UNIMPLEMENTED"


class InternalError(KvtierError):
    """A device failed, or the daemon answered what it must not."""
    code = "INTERNAL"


class UnavailableError(KvtierError, ConnectionError):
    """The daemon cannot be reached, is lost, drains, or still pins its pool."""
    code = "UNAVAILABLE"


# google.rpc.Code by number.
_NAMES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
          "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
          "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
          "UNAUTHENTICATED")

_KINDS: Dict[str, Type[KvtierError]] = {
    kind.code: kind for kind in (
        InvalidArgumentError, DeadlineExceededError, NotFoundError, AlreadyExistsError,
        PermissionDeniedError, ResourceExhaustedError, FailedPreconditionError, AbortedError,
        OutOfRangeError, UnimplementedError, InternalError, UnavailableError)}


def code_name(number: int) -> str:
    """The name of a google.rpc.Code."""
    return _NAMES[number] if 0 <= number < len(_NAMES) else "UNKNOWN"


def make_error(code: str, message: str, reason: str = "",
               metadata: Optional[Mapping[str, str]] = None,
               retry_delay: Optional[float] = None) -> KvtierError:
    """The error of `code`, to be raised."""
    return _KINDS.get(code, KvtierError)(message, code=code, reason=reason, metadata=metadata,
                                         retry_delay=retry_delay)


def argument_error(field: str, value: object, limit: str) -> InvalidArgumentError:
    """INVALID_ARGUMENT / FIELD_INVALID about an argument of a call."""
    return InvalidArgumentError("%s is %s; it must be %s" % (field, value, limit),
                                reason="FIELD_INVALID",
                                metadata={"field": field, "value": str(value), "limit": limit})


def malformed_answer(what: str) -> InternalError:
    """INTERNAL / INTERNAL: the daemon answered what it must not."""
    return InternalError("the daemon's answer makes no sense: " + what, reason="INTERNAL")
