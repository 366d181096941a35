"""What a daemon does whose device has no time: deadlines, full queues, SIGTERM.

Names like D18 are those of the public bug reports that the cases come from."""
import os
import queue
import time
import unittest
from random import Random

import grpc
from busy import CACHE, BusyStream
from daemon import ADMIN, PATIENCE_SECONDS, TIER, Daemon, Session, layout, wait_until
from reflection import CallError, to_json

CONTROL_THREADS = 6  # that one cache may have, of 8
CONTROL_QUEUE_MAX = 192  # likewise, of 256


def code_of(call):
    """The code that a call of grpc ends with."""
    try:
        for _ in call:
            pass
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


class Deadlines(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self)
        self.busy = BusyStream(self, self.daemon)
        self.session = self.busy.session

    def cache(self):
        return self.daemon.stats()["caches"][0]

    def blocks(self):
        return {k: v for k, v in self.cache().items() if k.startswith(("blocks", "largest"))}

    def test_d10_an_assignment_that_comes_too_late_is_taken_back(self):
        before = self.blocks()
        ticket = self.busy.enqueue(seconds=2)
        with self.assertRaises(CallError) as caught:
            self.session.call("AssignBlocks", {**CACHE, "request_id": "r0", "count": 2},
                              timeout=0.1)
        self.assertEqual(caught.exception.code, "DEADLINE_EXCEEDED")
        self.busy.wait(ticket, PATIENCE_SECONDS)
        # The client heard of it from its own clock; the daemon's comes a little later.
        wait_until(lambda: self.blocks() == before, "the blocks are back")
        self.assertEqual(self.session.call("AssignBlocks", {
            **CACHE, "request_id": "r0", "count": 2}).table_index, 0)

    def test_a_wait_that_is_too_short_says_so(self):
        ticket = self.busy.enqueue(seconds=2)
        with self.assertRaises(CallError) as caught:
            self.busy.wait(ticket, 0.05)
        error = caught.exception
        self.assertEqual((error.code, error.reason, error.metadata),
                         ("DEADLINE_EXCEEDED", "DEADLINE", {"ticket": str(ticket)}))
        self.assertEqual(self.busy.wait(ticket, PATIENCE_SECONDS).completed_ticket, ticket)

    def test_d09_a_cancelled_call_leaves_nothing(self):
        before = self.blocks()
        ticket = self.busy.enqueue(seconds=1)
        calls = [self.session.start("AssignBlocks", {**CACHE, "request_id": "r%d" % i, "count": 2})
                 for i in range(8)]
        wait_until(lambda: self.blocks()["blocks_used"] == 16, "all are at work")
        for call in calls:
            call.cancel()
        self.busy.wait(ticket, PATIENCE_SECONDS)
        # A call whose client has gone may still have won; whatever it took goes with its request.
        for i in range(8):
            self.session.call("ReleaseRequest", {**CACHE, "request_id": "r%d" % i})
        wait_until(lambda: self.blocks() == before, "the blocks are back")
        wait_until(lambda: self.cache()["sessions"][0]["operations_in_flight"] == "0",
                   "nothing in flight")

    def test_d09_calls_that_are_cancelled_at_any_time(self):
        """A seed decides when: at once, when the other call of the round is over, or never."""
        before = self.blocks()
        random = Random(9)
        cancelled = done = 0
        for i in range(300):
            request = {**CACHE, "request_id": "q%d" % i}
            self.session.call("AdmitRequest", request)
            assign = self.session.start("AssignBlocks", {**request, "count": 2})
            backup = self.session.start("Backup", {**CACHE, "inline": {"rows": [
                {"request_id": request["request_id"], "slot": random.randrange(64 * 64)}]}})
            calls = random.sample([assign, backup], 2)
            when = random.randrange(3)
            if when == 1:
                calls[0].exception(PATIENCE_SECONDS)
            if when < 2:
                cancelled += calls[1].cancel()
            done += calls[0].exception(PATIENCE_SECONDS) is None
            self.session.call("ReleaseRequest", request)
        self.assertGreater(cancelled, 50)
        self.assertGreater(done, 250)
        wait_until(lambda: self.blocks() == before, "the blocks are back")
        wait_until(lambda: self.cache()["sessions"][0]["operations_in_flight"] == "0",
                   "nothing in flight")


class FullQueue(unittest.TestCase):
    def test_d27_health_and_steps_go_on(self):
        daemon = Daemon(self)
        busy = BusyStream(self, daemon)
        other = Session(self, daemon, "other", client=daemon.connect(self))
        other.call("AttachCache", {"cache": "other", "layout": layout()})
        other.call("AdmitRequest", {"cache": "other", "request_id": "r"})
        other.call("AssignBlocks", {"cache": "other", "request_id": "r", "count": 1})
        step = {"cache": "other", "inline": {"rows": [{"request_id": "r", "topk": [0]}]}}
        other.call("SwapIn", step)
        blocks = list(busy.session.call("AssignBlocks", {
            **CACHE, "request_id": "r0", "count": 1}).block_ids)
        threads, own = daemon.threads(), daemon.own_threads()

        ticket = busy.enqueue(seconds=4)
        # Too many for one connection, which takes 256 calls at a time.
        clients = [daemon.connect(self), daemon.connect(self)]
        excess = 36
        calls = [clients[i % 2].start(TIER + "InvalidateBlocks", busy.session.fields({
            **CACHE, "block_ids": blocks})) for i in range(
                CONTROL_THREADS + CONTROL_QUEUE_MAX + excess)]
        refused = wait_until(lambda: self.refused(calls, excess), "the excess is refused")
        for call in refused:
            error = clients[0].error_of(call)
            self.assertEqual((error.code, error.reason, error.metadata),
                             ("RESOURCE_EXHAUSTED", "LIMIT_REACHED",
                              {"limit": str(CONTROL_QUEUE_MAX)}))
            self.assertGreater(error.retry_seconds, 0)
        fresh = daemon.connect(self)
        self.assertTrue(other.call("SwapIn", step).completed)
        seconds = []
        for _ in range(10):
            for ask, answer in ((lambda: daemon.health(client=fresh), "SERVING"),
                                (lambda: daemon.health("liveness", client=fresh), "SERVING"),
                                (lambda: fresh.call(ADMIN + "GetStats").sessions, 2)):
                start = time.monotonic()
                self.assertEqual(ask(), answer)
                seconds.append(time.monotonic() - start)
        # A machine that does much else may be late once. (Who waits for a thread waits for seconds.)
        self.assertLess(sorted(seconds)[-2], 0.2, seconds)
        self.assertEqual(sum(call.done() for call in calls), excess,
                         "they answered while the others waited")
        # Calls cost no threads: gRPC has at most so many executors.
        self.assertLessEqual(len(daemon.threads()), len(threads) + 2 * os.cpu_count())

        busy.wait(ticket, PATIENCE_SECONDS)
        for call in calls:
            if call not in refused:
                call.result(PATIENCE_SECONDS)
        wait_until(lambda: daemon.own_threads() == own,
                   "the daemon's own threads are those from before")
        wait_until(lambda: daemon.stats()["caches"][0]["sessions"][0]["operations_in_flight"]
                   == "0", "nothing in flight")

    @staticmethod
    def refused(calls, count):
        done = [call for call in calls if call.done()]
        return done if len(done) >= count else None


class Sigterm(unittest.TestCase):
    def open_streams(self, daemon, session):
        """{name: call} of streams that go on until somebody ends them."""
        requests = queue.Queue()
        self.addCleanup(requests.put, None)
        client = daemon.client
        steps = client.stream(TIER + "RunSteps", iter(requests.get, None))
        requests.put(client.request(TIER + "RunSteps", {"swap_in": session.fields({
            **CACHE, "inline": {}})}))
        next(steps)
        watch = client.stream(ADMIN + "WatchStats", {})
        next(watch)
        health = client.stream("grpc.health.v1.Health/Watch", {})
        self.assertEqual(to_json(next(health))["status"], "SERVING")
        return {"RunSteps": steps, "WatchStats": watch, "Health/Watch": health}

    def test_d18_what_runs_ends_and_streams_are_told(self):
        daemon = Daemon(self, ["--shutdown_grace=20s"])
        busy = BusyStream(self, daemon)
        streams = self.open_streams(daemon, busy.session)
        busy.enqueue(seconds=1)
        last = busy.start_step()
        daemon.process.terminate()
        self.assertEqual(to_json(next(streams["Health/Watch"]))["status"], "NOT_SERVING")
        self.assertFalse(last.done(), "readiness goes before what runs has ended")
        wait_until(lambda: not os.path.exists(daemon.socket), "nobody new")
        daemon.process.terminate()  # a second one changes nothing
        self.assertTrue(last.result(PATIENCE_SECONDS).completed)
        self.assertEqual(daemon.wait(), 0, daemon.text())
        self.assertEqual(busy.session.wait_until_ended(), ["draining", "revoked"])
        for name, call in streams.items():
            with self.subTest(call=name):
                self.assertEqual(code_of(call), "UNAVAILABLE")
        with self.assertRaises(CallError) as caught:
            daemon.client.call(ADMIN + "GetStats", timeout=PATIENCE_SECONDS)
        self.assertEqual(caught.exception.code, "UNAVAILABLE")
        self.assertEqual(os.listdir(os.path.dirname(daemon.socket)), [])

    def test_d18_what_hangs_is_named(self):
        daemon = Daemon(self, ["--shutdown_grace=100ms"])
        busy = BusyStream(self, daemon)
        busy.enqueue(seconds=10)
        call = busy.start_step()
        start = time.monotonic()
        code = daemon.stop()
        seconds = time.monotonic() - start
        self.assertEqual(code, 7, daemon.text())
        self.assertIn(" event=calls_cancelled calls=SwapIn\n", daemon.text())
        self.assertIn("a device stream has not run dry", daemon.text())
        self.assertLess(seconds, 5)
        call.exception(PATIENCE_SECONDS)
        error = daemon.client.error_of(call)
        self.assertEqual((error.code, error.reason), ("UNAVAILABLE", "DRAINING"))


if __name__ == "__main__":
    unittest.main()
