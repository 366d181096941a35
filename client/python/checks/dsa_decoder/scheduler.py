"""A scheduler that makes trouble: requests finish, others get their blocks, batch rows change
places, requests are preempted and resume in the same blocks in another order. Needs no torch.

It drives listeners: objects with the functions of `Listener`. All get the same calls.
"""
import random
from dataclasses import dataclass, field


class Listener:
    """What happens between steps."""

    def assign(self, request_id, blocks):
        """The request has these blocks behind those that it has."""

    def prefill(self, request_id, slots, seed):
        """The rows of the prompt, whose slots these are, are made from `seed` and written."""

    def keep_rows(self, request_id, slots):
        """The request loses its blocks; its rows at `slots` will be written again."""

    def truncate(self, request_id, block_count):
        """The request has only its first block_count blocks."""

    def rewrite(self, request_id, slots):
        """The rows that were kept are written to `slots`."""

    def finish(self, request_id):
        """The request is gone."""

    def batch(self, request_ids):
        """The rows of the next step; None is padding."""


@dataclass
class Request:
    request_id: str
    length: int
    end: int  # tokens at which it finishes
    blocks: list = field(default_factory=list)


class Scheduler:
    def __init__(self, listeners, *, batch, num_blocks, block_size, max_tokens, seed,
                 compact=False):
        """`compact`: only the last rows of a batch are padding."""
        self._listeners = listeners
        self._batch, self._block_size, self._max_tokens = batch, block_size, max_tokens
        self._compact = compact
        self._random = random.Random(seed)
        self._free = list(range(num_blocks))
        self._random.shuffle(self._free)
        self._rows = [None] * batch
        self._made = 0
        self.counts = {"finished": 0, "reordered": 0, "resumed": 0, "recycled_blocks": 0}
        self._ever = set()
        for _ in range(batch):
            self._start()

    @property
    def rows(self):
        """The requests of this step by batch row, None padding."""
        return list(self._rows)

    def slots(self, request):
        size = self._block_size
        return [request.blocks[p // size] * size + p % size for p in range(request.length)]

    def begin_step(self, step):
        """Each running request gets a token; what else happens in between happens first."""
        if step % 5 == 3:
            self._random.shuffle(self._rows)
            self.counts["reordered"] += 1
        if step % 9 == 4:
            self._resume(self._random.choice([r for r in self._rows if r is not None]))
        if None in self._rows and step % 4 == 1:
            self._start()
        for row, request in enumerate(self._rows):
            if request is None:
                continue
            if request.length == request.end:
                self._finish(row)
                continue
            request.length += 1
            if request.length > len(request.blocks) * self._block_size:
                self._assign(request, 1)
        if self._compact:
            self._rows.sort(key=lambda request: request is None)
        self._tell("batch", [None if r is None else r.request_id for r in self._rows])

    def _start(self):
        row = self._rows.index(None)
        longest = self._max_tokens * 3 // 4
        if self._made % 4 == 3:  # some fit into a hot buffer, at first
            tokens = self._random.randint(8, longest // 8)
        else:
            tokens = self._random.randint(longest // 2, longest)
        needed = -(-(tokens + 60) // self._block_size)
        if needed > len(self._free):
            return
        end = min(self._max_tokens, tokens + self._random.randint(20, 60))
        request = Request("request-%d" % self._made, tokens, end)
        self._made += 1
        self._rows[row] = request
        self._assign(request, -(-tokens // self._block_size))
        self._tell("prefill", request.request_id, self.slots(request), self._random.getrandbits(30))

    def _finish(self, row):
        request = self._rows[row]
        self._rows[row] = None
        self._tell("finish", request.request_id)
        self._free.extend(request.blocks)  # the next to be taken
        self.counts["finished"] += 1

    def _resume(self, request):
        """Preempted, and back at once: the same blocks, in another order."""
        self._tell("keep_rows", request.request_id, self.slots(request))
        self._tell("truncate", request.request_id, 0)
        count = len(request.blocks)
        self._free.extend(request.blocks)
        request.blocks = []
        taken = self._free[-count:]
        del self._free[-count:]
        self._random.shuffle(taken)
        self._free.extend(taken)
        self._assign(request, count)
        self._tell("rewrite", request.request_id, self.slots(request))
        self.counts["resumed"] += 1

    def _assign(self, request, count):
        blocks = [self._free.pop() for _ in range(count)]
        self.counts["recycled_blocks"] += len(self._ever.intersection(blocks))
        self._ever.update(blocks)
        request.blocks.extend(blocks)
        self._tell("assign", request.request_id, blocks)

    def _tell(self, what, *arguments):
        for listener in self._listeners:
            getattr(listener, what)(*arguments)
