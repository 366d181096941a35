"""The worked example of a swap-in, by a client that learned the API from the daemon itself."""
import json
import queue
import unittest

import memory
from daemon import ADMIN, PATIENCE_SECONDS, TIER, Daemon, Session, layout
from reflection import to_json

LAYERS = 2

with open("tests/golden/worked_example.json") as f:
    EXAMPLE = json.load(f)


def row_bytes(slot, layer):
    return bytes((31 * slot + 7 * j + 13 * layer) & 0xff for j in range(EXAMPLE["row_bytes"]))


def setup_steps():
    """Top-k of the steps that build the state before the example (worked_example.h)."""
    owners = EXAMPLE["owner_before"]
    half = EXAMPLE["top_k"]
    return [owners[:half], owners[half:]] + [[owners[slot]] for slot in EXAMPLE["lru_before"]]


class Golden(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self)
        self.session = Session(self, self.daemon, "golden")
        self.attached = self.session.call("AttachCache", {"cache": "golden", "layout": layout(
            block_count=EXAMPLE["slot_count"] // EXAMPLE["block_size"],
            block_size=EXAMPLE["block_size"], max_requests=1, top_k=EXAMPLE["top_k"],
            hot_size=EXAMPLE["hot_size"], row_bytes=EXAMPLE["row_bytes"], layers=LAYERS)})
        self.memory = memory.Memory(self, self.session, self.attached)
        self.group = self.memory.groups[0]
        request = {"cache": "golden", "request_id": "r"}
        self.assertEqual(self.session.call("AdmitRequest", request).region, 0)
        blocks = self.session.call("AssignBlocks", {
            **request, "count": EXAMPLE["slot_count"] // EXAMPLE["block_size"]}).block_ids
        # Positions and slots are the same numbers then.
        self.assertEqual(list(blocks), list(range(len(blocks))))
        self.back_up(sorted({*EXAMPLE["owner_before"], *EXAMPLE["owner_after"]}))

    def back_up(self, slots):
        """Writes rows to the hot buffer and has them copied to the host pool."""
        rows_max = EXAMPLE["hot_size"] + 1
        for first in range(0, len(slots), rows_max):
            some = slots[first:first + rows_max]
            for hot_row, slot in enumerate(some):
                for layer in range(LAYERS):
                    self.hot_row(hot_row, layer)[:] = row_bytes(slot, layer)
            self.session.call("Backup", {"cache": "golden", "inline": {"rows": [
                {"request_id": "r", "slot": slot, "source_hot_row": hot_row}
                for hot_row, slot in enumerate(some)]}})

    def hot_row(self, row, layer):
        size = EXAMPLE["row_bytes"]
        return self.memory.bytes(self.group.layers[layer].hot)[row * size:(row + 1) * size]

    def owners(self):
        return list(self.memory.int32s(self.group.owner)[:EXAMPLE["hot_size"]])

    def lru(self):
        return list(self.memory.int16s(self.group.lru)[:EXAMPLE["hot_size"]])

    def counters(self):
        return self.daemon.client.call(ADMIN + "GetStats").counters

    def step(self, topk, newest, use_slots):
        return {"cache": "golden", "use_slots": use_slots, "inline": {"rows": [
            {"request_id": "r", "topk": topk, "newest_slot": newest}]}}

    def swap_in(self, topk, newest, use_slots):
        """By a call of its own. The one row of the answer."""
        answer = self.session.call("SwapIn", self.step(topk, newest, use_slots))
        self.assertTrue(answer.completed)
        return answer.rows[0]

    def replay(self, run, use_slots=True):
        """The example by way of run(topk, newest, use_slots)."""
        for topk in setup_steps():
            run(topk, EXAMPLE["setup_newest_slot"], use_slots)
        self.assertEqual(self.owners(), EXAMPLE["owner_before"])
        self.assertEqual(self.lru(), EXAMPLE["lru_before"])
        before = self.counters()
        self.assertEqual(before.hits, EXAMPLE["setup_hits"])
        self.assertEqual(before.misses, EXAMPLE["setup_misses"])
        row = run(EXAMPLE["slots"], EXAMPLE["newest_slot"], use_slots)
        for name in ("hot_indices", "miss_mask", "plan_slots", "plan_hot_rows"):
            self.assertEqual(list(getattr(row, name)), EXAMPLE[name], name)
        self.assertEqual(row.valid_count, EXAMPLE["valid_count"])
        self.assertEqual(self.owners(), EXAMPLE["owner_after"])
        self.assertEqual(self.lru(), EXAMPLE["lru_after"])
        for hot_row, slot in enumerate(EXAMPLE["owner_after"]):
            for layer in range(LAYERS):
                self.assertEqual(bytes(self.hot_row(hot_row, layer)), row_bytes(slot, layer),
                                 "slot %d, layer %d" % (slot, layer))
        self.expect_counters(before, self.counters())

    def expect_counters(self, before, after):
        for name in ("hits", "misses", "newest", "invalid", "evictions"):
            self.assertEqual(getattr(after, name) - getattr(before, name), EXAMPLE[name], name)
        self.assertEqual(after.steps - before.steps, 1)
        self.assertEqual(after.rows_copied - before.rows_copied, EXAMPLE["misses"])
        self.assertEqual(after.bytes_copied - before.bytes_copied,
                         EXAMPLE["misses"] * EXAMPLE["row_bytes"] * LAYERS)
        self.assertEqual(after.unbacked_reads, 0)
        hits = EXAMPLE["setup_hits"] + EXAMPLE["hits"]
        misses = EXAMPLE["setup_misses"] + EXAMPLE["misses"]
        self.assertEqual(after.hit_rate, hits / (hits + misses))

    def test_slots(self):
        self.replay(self.swap_in)

    def test_positions(self):
        self.replay(self.swap_in, use_slots=False)

    def test_a_stream_of_steps(self):
        requests, answers = queue.Queue(), queue.Queue()
        client = self.daemon.client
        call = client.stream(TIER + "RunSteps", iter(requests.get, None),
                             timeout=PATIENCE_SECONDS)
        self.addCleanup(requests.put, None)
        self.addCleanup(call.cancel)

        def run(topk, newest, use_slots):
            number = answers.qsize() + 1
            requests.put(client.request(TIER + "RunSteps", {
                "step_id": number,
                "swap_in": self.session.fields(self.step(topk, newest, use_slots))}))
            answer = next(call)
            answers.put(answer)
            self.assertEqual(answer.step_id, number)
            self.assertEqual(answer.WhichOneof("result"), "swap_in", answer)
            return answer.swap_in.rows[0]
        self.replay(run)

    def test_every_view_of_the_numbers_is_the_same(self):
        """The node's, the cache's, the group's and the session's; and in JSON, in quotes."""
        self.replay(self.swap_in)
        stats = to_json(self.daemon.client.call(ADMIN + "GetStats"))
        cache = stats["caches"][0]
        session = cache["sessions"][0]
        for part in (cache, cache["groups"][0], session, session["groups"][0]):
            self.assertEqual(part["counters"], stats["counters"])
        self.assertEqual(stats["counters"]["hits"],
                         str(EXAMPLE["setup_hits"] + EXAMPLE["hits"]))
        # What is watched is what is read.
        watched = to_json(next(self.daemon.client.stream(ADMIN + "WatchStats", {},
                                                         timeout=PATIENCE_SECONDS)))
        self.assertEqual(watched["counters"], stats["counters"])


if __name__ == "__main__":
    unittest.main()
