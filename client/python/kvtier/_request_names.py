"""Names that a daemon's requests have on behalf of an engine's. Needs no torch."""
from __future__ import annotations

# The daemon takes 128 bytes.
_ID_BYTES_MAX = 100


class RequestNames:
    """An engine may bring an id again before its first request has left the device: to the daemon
    that would be the same request. So each admission has a name of its own."""

    def __init__(self) -> None:
        self._admitted = 0

    def next(self, request_id: str) -> str:
        self._admitted += 1
        readable = request_id.encode()[:_ID_BYTES_MAX].decode(errors="ignore")
        return "%s#%d" % (readable, self._admitted)
