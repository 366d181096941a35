"""A cache that this process is attached to, and its requests.

Two planes do the same work on the same state. In process (swap_in, replay_plan, backup_newest,
backup_rows): the kernels run here, on mapped memory; on a CPU they have completed when the call
returns, on a GPU they are enqueued on the caller's stream, and a CUDA graph may capture them. By RPC
(the same names with _rpc): the daemon runs them on the session's device stream, and a ticket says
which work it was. Both read the step buffers and write there, so the planes of one cache must not
overlap: wait for tickets before an in-process call.

Errors are those that proto/kvtier/v1/kvtier.proto lists for the RPC, as KvtierError.
"""
from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

from kvtier import verbs
from kvtier.errors import KvtierError
from kvtier.results import AssignedBlocks, KeptBlock, Ticket

if TYPE_CHECKING:
    from kvtier.session import Session

LOG = logging.getLogger("kvtier")


class Cache(verbs.CacheBase):
    """Made by Session.attach; a context manager that closes."""

    def __init__(self, session: "Session", name: str, answer: Any, arrays: Any,
                 device: Any) -> None:
        super().__init__(session.connection, name, answer, arrays, device)
        self._session = session

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_arrays_or_none", None) is not None and not sys.is_finalizing():
            self.close()

    def _call(self, name: str, fields: dict) -> Any:
        self.check_call()
        return self._session.call(name, fields)

    def admit(self, request_id: str, *, reserve_blocks: int = 0) -> "Request":
        """Gives a request a region. `request_id`: 1..128 bytes, unique in this session and cache.
        `reserve_blocks` blocks can then be assigned without fail. Errors: as AdmitRequest."""
        answer = self._call("AdmitRequest", self.fields(request_id=request_id,
                                                        reserve_blocks=reserve_blocks))
        return Request(self, request_id, answer.region)

    def invalidate_blocks(self, blocks: Sequence[int]) -> int:
        """Drops every session's cached copies of `blocks`, whose host rows were written by other
        means than a backup. The hot rows dropped. Errors: as InvalidateBlocks."""
        return self._call("InvalidateBlocks",
                          self.fields(block_ids=verbs.block_list(blocks))).invalidated_copies

    def list_kept_blocks(self) -> Tuple[KeptBlock, ...]:
        """Blocks that nobody holds, whose rows are still there: of sessions that have ended, or of
        the daemon before this one. By id. Errors: as ListKeptBlocks."""
        found: List[KeptBlock] = []
        token = ""
        while True:
            page = self._call("ListKeptBlocks", self.fields(page_size=verbs.KEPT_BLOCKS_PAGE,
                                                            page_token=token))
            found.extend(map(verbs.kept_block_of, page.blocks))
            if page.next_page_token in ("", token):  # one that leads nowhere ends it, too
                return tuple(found)
            token = page.next_page_token

    # ---- RPC plane. `wait`: the call returns after completion. `stream`, on a GPU: the daemon's
    # work comes after all that the stream has now, and what is enqueued on it afterwards comes after
    # the daemon's work; no host waits. None: PyTorch's current stream; without PyTorch the caller
    # sees to the order.

    def _verb(self, name: str, fields: dict, stream: Any) -> Ticket:
        self.check_call()
        handle = self.before_rpc(stream, fields)
        answer = self._session.call(name, fields)
        self.after_rpc(answer.ticket, handle)
        return verbs.ticket_of(answer)

    def swap_in_rpc(self, group: int, num_rows: int, *, use_slots: bool = False,
                    layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                    wait: bool = False) -> Ticket:
        """As swap_in, by the daemon. Errors: as SwapIn."""
        return self._verb("SwapIn", self.step_fields(
            wait, layers, group_index=group, use_slots=use_slots, step={"num_rows": num_rows}),
            stream)

    def replay_plan_rpc(self, group: int, num_rows: int, *,
                        layers: Optional[Tuple[int, int]] = None, stream: Any = None,
                        wait: bool = False) -> Ticket:
        """As replay_plan, by the daemon. Errors: as ReplayPlan."""
        return self._verb("ReplayPlan", self.step_fields(
            wait, layers, group_index=group, num_rows=num_rows), stream)

    def backup_rpc(self, num_rows: int, *, stream: Any = None, wait: bool = False) -> Ticket:
        """As backup_newest, by the daemon. Errors: as Backup."""
        return self._verb("Backup", self.step_fields(wait, step={"num_rows": num_rows}), stream)

    def wait_ticket(self, ticket: int) -> int:
        """Returns when `ticket` is done, with the newest ticket that is. Errors: as WaitTicket."""
        return self._call("WaitTicket", self.fields(ticket=int(ticket))).completed_ticket

    def close(self) -> None:
        """Waits for what this process has enqueued and detaches; the daemon then releases requests
        that are still admitted. While tensors on the memory are alive that is put off until the last
        of them is gone; calls are refused at once. Idempotent."""
        session, name = self._session, self.name
        if session.connection.in_forked_child:
            return
        detach = self.drop_arrays(lambda: _detach(session, name))
        if detach is not None:
            detach()


def _detach(session: "Session", name: str) -> None:
    connection = session.connection
    try:
        if connection.error() is None:
            session.call("DetachCache", {"session_id": connection.opened.session_id,
                                         "cache": name})
    except KvtierError as error:
        # A daemon that is gone, or has ended the session, has nothing to be told.
        LOG.info("detaching from %s: %s", name, error)
    connection.disclaim_cache(name)
    session.forget(name)


class Request(verbs.RequestBase):
    """Made by Cache.admit; a context manager that waits for enqueued work and releases."""

    _cache: Cache

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._released:
            return
        try:
            self._cache.check_call()
        except KvtierError:
            return  # the daemon has released it, or nobody can
        self._cache.synchronize()
        self.release()

    def _call(self, name: str, **fields: Any) -> Any:
        self.check_release()
        return self._cache._call(name, self.fields(**fields))  # pylint: disable=protected-access

    def assign_blocks(self, count: int, *, shared_blocks: Sequence[int] = (),
                      shared_generations: Sequence[int] = (),
                      tags: Sequence[int] = ()) -> AssignedBlocks:
        """Appends shared blocks (other requests', or kept ones, which need their generations), then
        `count` new ones, all or nothing. `tags`: none, or a number for each new block, which
        list_kept_blocks tells. When it returns, no worker
        can hit on the old rows of the new blocks. DeadlineExceededError without a reason: the answer
        was lost; block_table() shows what happened. Errors: as AssignBlocks."""
        try:
            answer = self._call("AssignBlocks", count=count,
                                shared_block_ids=verbs.block_list(shared_blocks),
                                shared_generations=verbs.block_list(shared_generations),
                                block_tags=verbs.block_list(tags))
        except KvtierError as error:
            self.failed(error)
            raise
        return self.took(answer)

    def free_blocks(self, blocks: Sequence[int]) -> int:
        """Takes `blocks` out of the table, all or nothing; how many nobody holds any more.
        In-process work that reads or writes them must be done (on a GPU: on the device). Errors: as
        FreeBlocks."""
        try:
            answer = self._call("FreeBlocks", block_ids=verbs.block_list(blocks))
        except KvtierError as error:
            self.failed(error)
            raise
        self.gave(blocks)
        return answer.blocks_freed

    def release(self) -> int:
        """Frees blocks and region; how many blocks nobody holds any more. In-process work on the
        request must be done, as for free_blocks. Errors: as ReleaseRequest."""
        try:
            answer = self._call("ReleaseRequest")
        except KvtierError as error:
            self._released = self._released or error.code == "NOT_FOUND"
            raise
        self._released = True
        return answer.blocks_freed
