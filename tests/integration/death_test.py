"""Workers that are killed, again and again, and workers that only seem dead.

Names like D01 are those of the public bug reports that the cases come from."""
import os
import signal
import subprocess
import threading
import time
import unittest

from daemon import (ADMIN, PATIENCE_SECONDS, Daemon, Session, keeps_freed_memory, layout,
                    wait_until)
from reflection import to_json

CACHE = {"cache": "c"}
STEP = {**CACHE, "inline": {"rows": [{"request_id": "mine", "topk": [0, 1]}]}}
MIB = 1 << 20


class Death(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self)

    def start_worker(self, cache="c", blocks=3):
        """One that has so many blocks: 3, or 0 if attaching is all that it has done."""
        worker = subprocess.Popen(
            ["/usr/bin/python3", "tests/integration/worker.py", self.daemon.socket, cache,
             *(["attach"] if blocks == 0 else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for clean_up in (worker.stdout.close, worker.stdin.close,
                         lambda: worker.wait(PATIENCE_SECONDS), worker.kill):
            self.addCleanup(clean_up)
        self.assertEqual(worker.stdout.readline(), b"%d\n" % blocks)
        return worker

    def test_d01_twenty_dead_workers_leave_nothing(self):
        """All that one held is back within a second, and another session never notices."""
        witness = Session(self, self.daemon, "witness")
        witness.call("AttachCache", {**CACHE, "layout": layout()})
        witness.call("AdmitRequest", {**CACHE, "request_id": "mine"})
        witness.call("SwapIn", STEP)
        before = self.held()
        failures = []
        stop = threading.Event()

        def work():
            while not stop.is_set():
                try:
                    witness.call("SwapIn", STEP)
                except Exception as error:  # of any kind: the main thread reports it
                    failures.append(error)

        # Once before: what a first worker makes for good.
        worker = self.start_worker()
        worker.kill()
        wait_until(lambda: self.held() == before, "the first is gone")
        engine = threading.Thread(target=work)
        engine.start()
        self.addCleanup(engine.join)
        self.addCleanup(stop.set)
        rss, descriptors, seconds = [], [], []
        threads, own = self.daemon.threads(), self.daemon.own_threads()
        for i in range(20):
            worker = self.start_worker()
            worker.kill()
            start = time.monotonic()
            wait_until(lambda: self.held() == before, "all is as before")
            seconds.append(time.monotonic() - start)
            if i >= 10:  # by then gRPC has opened what it polls with
                wait_until(lambda: self.daemon.descriptor_count() <= max(descriptors),
                           "no descriptor is left over")
            else:
                descriptors.append(self.daemon.descriptor_count())
            rss.append(self.daemon.rss_bytes())
            wait_until(lambda: len(self.daemon.own_threads()) <= len(own),
                       "no thread is left over")
        stop.set()
        engine.join()
        self.assertEqual(failures, [])
        # What each cycle leaves shows ten times over in the second half; the first one warms the
        # allocator up.
        if not keeps_freed_memory():
            self.assertLess(max(rss[10:]) - max(rss[:10]), 2 * MIB, rss)
        # gRPC starts some of its own as it finds more to do: not one for each worker.
        self.assertLess(len(self.daemon.threads()) - len(threads), 10)
        # A machine that does much else may be late once.
        self.assertLess(sorted(seconds)[-2], 1, seconds)

    def held(self):
        """What sessions hold, as far as the witness's steps leave it alone."""
        stats = self.daemon.stats()
        caches = []
        for cache in stats["caches"]:
            blocks = {k: v for k, v in cache.items() if k.startswith(("blocks", "largest", "host"))}
            regions = [{k: each[k] for k in ("session_id", "requests", "device_bytes")}
                       for each in cache["sessions"]]
            caches.append((cache["cache"], blocks, regions))
        node = to_json(self.daemon.client.call(ADMIN + "GetNodeInfo"))
        devices = [device["used_bytes"] for device in node["devices"]]
        return stats["sessions"], stats["pool"], stats["users"], caches, devices

    def test_d02_dead_before_its_first_call(self):
        """The lease begins with the session, not with the first use of it."""
        before = self.held()
        worker = self.start_worker(blocks=0)
        self.assertNotEqual(self.held(), before)
        worker.kill()
        start = time.monotonic()
        wait_until(lambda: self.held() == before, "it is gone")
        self.assertLess(time.monotonic() - start, 3)  # a lease of 2 s and 1 s more, were there one

    def test_d02_an_idle_worker_is_never_reaped(self):
        """Not even one that answers no ping: stopped by a debugger, or busy with its own locks.

        It would take gRPC's own keepalive 15 s to give it up, and this waits for 17."""
        worker = self.start_worker()
        worker.send_signal(signal.SIGSTOP)
        self.addCleanup(worker.send_signal, signal.SIGCONT)
        Session(self, self.daemon, "idle")
        threading.Event().wait(17)
        names = [s["client_name"] for s in
                 to_json(self.daemon.client.call(ADMIN + "ListSessions"))["sessions"]]
        self.assertEqual(sorted(names), ["idle", "victim"])

    def test_a_pid_means_nothing(self):
        """Two workers that say the same name and die one by one are two."""
        first, second = self.start_worker(), self.start_worker("d")
        listed = to_json(self.daemon.client.call(ADMIN + "ListSessions"))["sessions"]
        self.assertEqual(sorted(s["peer_pid"] for s in listed), sorted([first.pid, second.pid]))
        first.kill()
        wait_until(lambda: self.daemon.stats()["sessions"] == 1, "one is gone")
        left = to_json(self.daemon.client.call(ADMIN + "ListSessions"))["sessions"]
        self.assertEqual([s["peer_pid"] for s in left], [second.pid])
        self.assertTrue(os.path.exists("/proc/%d" % second.pid))


if __name__ == "__main__":
    unittest.main()
