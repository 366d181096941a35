"""What can become of a session."""
from __future__ import annotations

import enum
from dataclasses import dataclass


class SessionState(enum.Enum):
    """Of a session; what its calls say then is in Session.check."""
    OPEN = "open"
    DRAINING = "draining"  # the daemon admits nothing new; what runs goes on: finish and leave
    REVOKED = "revoked"    # ended by the daemon: its memory may be in other hands
    LOST = "lost"          # the daemon died, or the connection broke
    CLOSED = "closed"      # ended by this process


@dataclass(frozen=True)
class SessionEvent:
    """A change of state that this process did not make: to DRAINING, REVOKED or LOST."""
    state: SessionState
    message: str  # why, for people
