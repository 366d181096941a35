"""A daemon at work, for what is shown to operators: a cache, a worker, requests, steps."""
import time

from daemon import Session, layout

CACHE = "deepseek-v3.2"
BLOCK_SIZE = 16


class Worker:
    """A session that admits requests and swaps rows in, over RPC."""

    def __init__(self, case, daemon, name="vLLM rank 0", client=None, **more):
        self.session = Session(case, daemon, name, client=client)
        self.session.call("AttachCache", {"cache": CACHE, "layout": cache_layout(**more)})

    def admit(self, request_id="r1", blocks=4):
        """A request with blocks of its own; all their rows are zeros that are backed up."""
        request = {"cache": CACHE, "request_id": request_id}
        self.session.call("AdmitRequest", request)
        ids = self.session.call("AssignBlocks", {**request, "count": blocks}).block_ids
        slots = [block * BLOCK_SIZE + offset for block in ids for offset in range(BLOCK_SIZE)]
        self.session.call("Backup", {"cache": CACHE, "inline": {"rows": [
            {"request_id": request_id, "slot": slot, "source_hot_row": 0} for slot in slots]}})
        return len(slots)

    def step(self, positions, request_id="r1"):
        """A swap-in of these positions."""
        self.session.call("SwapIn", {"cache": CACHE, "inline": {"rows": [
            {"request_id": request_id, "topk": positions, "newest_slot": -1}]}})


def cache_layout(**more):
    return layout(**{"block_count": 64, "block_size": BLOCK_SIZE, "max_requests": 4, "top_k": 8,
                     "hot_size": 32, "row_bytes": 656, "dtype_tag": "fp8_ds_mla", **more})


def decode(worker, steps, spread, request_id="r1", pause=0.0):
    """Steps that each ask for eight rows: the same ones, moved on by `spread` each time."""
    for step in range(steps):
        worker.step([(step * spread + k) % 64 for k in range(8)], request_id)
        if pause:
            time.sleep(pause)
