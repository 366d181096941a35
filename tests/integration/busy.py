"""A device stream that is busy for as long as a test needs.

    busy = BusyStream(case, daemon)
    busy.enqueue(seconds=3)
    free = busy.session.start("FreeBlocks", ...)   # waits behind it
"""
import time

import memory
from daemon import PATIENCE_SECONDS, Session, layout, wait_until

CACHE = {"cache": "busy"}
_ROWS = 512
_TOP_K = 2048
_REQUESTS = 8
_IN_FLIGHT_MAX = 1000  # the daemon takes 1024 of a session


class BusyStream:
    """A session with steps of some milliseconds each, and a request "r0" for the test."""

    def __init__(self, case, daemon):
        self.session = Session(case, daemon, "busy")
        attached = self.session.call("AttachCache", {**CACHE, "layout": layout(
            block_count=64, block_size=64, max_requests=512, top_k=_TOP_K, hot_size=_TOP_K,
            row_bytes=16, step_rows=_ROWS)})
        mapped = memory.Memory(case, self.session, attached)
        for region in range(_REQUESTS):
            self.session.call("AdmitRequest", {**CACHE, "request_id": "r%d" % region})
        # Every row asks for the same: hits, after the first step.
        order = b"".join(i.to_bytes(4, "little") for i in range(_TOP_K))
        mapped.bytes(mapped.groups[0].topk)[:] = order * _ROWS
        regions = b"".join(i.to_bytes(4, "little") for i in range(_ROWS))
        mapped.bytes(mapped.buffers.row_to_request)[:] = regions
        mapped.int32s(mapped.buffers.num_real_rows)[0] = _ROWS
        self._step(wait=True)
        start = time.monotonic()
        self._step(wait=True)
        self._step_seconds = time.monotonic() - start

    def _step(self, wait):
        return self.session.call("SwapIn", {
            **CACHE, "use_slots": True, "step": {"num_rows": _ROWS}, "wait": wait},
            timeout=PATIENCE_SECONDS)

    def enqueue(self, seconds):
        """Work for about so long; the ticket of the last step."""
        count = min(_IN_FLIGHT_MAX, 1 + int(seconds / self._step_seconds))
        for _ in range(count):
            answer = self._step(wait=False)
        if answer.completed:
            raise AssertionError("%d steps of %g s were over at once" % (count,
                                                                       self._step_seconds))
        return answer.ticket

    def start_step(self):
        """A waiting step that the daemon has taken: a future of grpc."""
        ticket = self._step(wait=False).ticket
        call = self.session.start("SwapIn", {
            **CACHE, "use_slots": True, "step": {"num_rows": 1}, "wait": True})

        def is_taken():
            # Tickets are numbers in a row; one is missing.
            nonlocal ticket
            before, ticket = ticket, self._step(wait=False).ticket
            return ticket > before + 1
        wait_until(is_taken, "the step is in the queue")
        return call

    def wait(self, ticket, timeout_seconds):
        return self.session.call("WaitTicket", {**CACHE, "ticket": ticket,
                                                "timeout": "%gs" % timeout_seconds})
