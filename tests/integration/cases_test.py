"""Public bug reports that no other file of this folder has a test for.

Names like D19 are those of the reports; docs/TESTING.md has the table of all."""
import os
import shutil
import signal
import subprocess
import threading
import time
import unittest

from google.protobuf import json_format

from daemon import (ADMIN, BINARY, PATIENCE_SECONDS, Daemon, Process, Session, layout, new_folder,
                    wait_until)
from reflection import CallError, Client, to_json

CACHE = {"cache": "c"}
NOBODY = 65534
SOCKET_IN_USE = 3  # as in server/main.cc


class Cases(unittest.TestCase):
    def attach(self, daemon, name="worker", **more):
        session = Session(self, daemon, name)
        session.call("AttachCache", {**CACHE, "layout": layout(**more)})
        return session

    def work(self, session, topk=(0, 1, 2, 3)):
        return session.call("SwapIn", {
            **CACHE, "inline": {"rows": [{"request_id": "r", "topk": list(topk)}]}})

    def test_d14_of_twenty_starts_one_serves(self):
        """On a socket that nobody had before; lifecycle_test has what the others say."""
        socket = new_folder(self) + "/d.sock"
        starts = [Process(self, socket) for _ in range(20)]
        wait_until(lambda: sum(p.running() for p in starts) == 1, "all but one have ended")
        winner = next(p for p in starts if p.running())
        winner.wait_for_event("listening")
        self.assertEqual([p.wait() for p in starts if p is not winner], [SOCKET_IN_USE] * 19)
        client = Client("unix:" + socket)
        self.addCleanup(client.close)
        self.assertEqual(client.call(ADMIN + "GetNodeInfo").pid, winner.pid)

    def test_d19_little_may_be_locked(self):
        """Pinning counts against no limit of locked memory, which containers set to 64 KiB.

        Such a limit does not bind root: then the daemon is somebody else's, who lets root in."""
        bytes_max = 64 << 10
        before = ["prlimit", "--memlock=%d:%d" % (bytes_max, bytes_max), "--"]
        folder, binary, user = new_folder(self), BINARY, os.getuid()
        if user == 0:
            user = NOBODY
            become = ["setpriv", "--reuid=%d" % user, "--regid=%d" % user, "--clear-groups", "--"]
            if subprocess.run([*become, "true"], capture_output=True, check=False).returncode != 0:
                self.skipTest("another user's process cannot be started here")
            before += become
            os.chown(folder, user, user)
            binary = shutil.copy(BINARY, folder + "/kvtierd")
        daemon = Daemon(self, socket=folder + "/d.sock", before=before, binary=binary)
        self.assertEqual(os.stat(daemon.socket).st_uid, user)
        self.assertEqual(daemon.stats()["pool"]["pinned_bytes"], str(64 << 20))
        session = self.attach(daemon)
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": 1})
        self.assertEqual(self.work(session).rows[0].valid_count, 4)

    def test_d30_every_worker_is_number_one_in_a_namespace_of_its_own(self):
        prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this machine gives no process namespaces")
        daemon = Daemon(self)
        workers = []
        for cache in ("c", "d"):
            worker = subprocess.Popen(
                [*prefix, "/usr/bin/python3", "tests/integration/worker.py", daemon.socket, cache],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for clean_up in (worker.stdout.close, worker.stdin.close,
                             lambda each=worker: each.wait(PATIENCE_SECONDS), worker.kill):
                self.addCleanup(clean_up)
            self.assertEqual(worker.stdout.readline(), b"3\n")
            workers.append(worker)
        self.assertEqual(daemon.stats()["sessions"], 2)
        workers[0].kill()
        wait_until(lambda: [c["cache"] for c in daemon.stats()["caches"]] == ["d"], "it is gone")
        self.assertEqual(daemon.stats()["caches"][0]["blocks_used"], 3)
        self.assertEqual(daemon.stats()["sessions"], 1)
        self.assertIsNone(workers[1].poll())

    def test_o03_64_bits_are_quoted_and_32_are_not(self):
        daemon = Daemon(self)
        session = self.attach(daemon)
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": 3})
        stats = daemon.stats()
        self.assertEqual(stats["pool"]["total_bytes"], str(64 << 20))
        self.assertEqual(stats["caches"][0]["blocks_used"], 3)
        # Above 2^53, where readers that make doubles of numbers are off by one.
        large = 9007199254740993
        with self.assertRaises(CallError) as caught:
            session.call("WaitTicket", {**CACHE, "ticket": str(large)})
        self.assertEqual(caught.exception.metadata["ticket"], str(large))
        counters = daemon.client.call(ADMIN + "GetStats")
        counters.counters.hits = large
        self.assertEqual(to_json(counters)["counters"]["hits"], "9007199254740993")
        # Both forms are read, and nothing that only looks like a number.
        session.call("FreeBlocks", {**CACHE, "request_id": "r", "block_ids": ["0", 1]})
        for block in (5.5, "0x5", "five"):
            with self.assertRaises(json_format.ParseError):
                session.call("FreeBlocks", {**CACHE, "request_id": "r", "block_ids": [block]})

    def test_o07_counters_of_one_moment(self):
        """Steps of four lookups: whoever reads meanwhile never sees half a step."""
        daemon = Daemon(self)
        session = self.attach(daemon)
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": 1})
        stop = threading.Event()

        def work():
            while not stop.is_set():
                self.work(session)
        engine = threading.Thread(target=work)
        engine.start()
        self.addCleanup(engine.join)
        self.addCleanup(stop.set)
        total = 0
        for _ in range(200):
            counters = daemon.stats()["counters"]
            lookups = int(counters["hits"]) + int(counters["misses"])
            self.assertEqual(lookups % 4, 0, counters)
            self.assertGreaterEqual(lookups, total)
            total = lookups
        # Rows that nobody backed up are misses each time.
        wait_until(lambda: int(daemon.stats()["counters"]["misses"]) > 0, "steps were counted")

    def test_o07_a_restart_is_seen(self):
        """Totals begin at zero, under another name and time."""
        daemon = Daemon(self)
        session = self.attach(daemon)
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        self.work(session)
        before = daemon.stats()
        daemon.stop()
        after = Daemon(self, socket=daemon.socket).stats()
        self.assertNotEqual(before["boot_id"], after["boot_id"])
        self.assertGreater(after["start_time"], before["start_time"])
        self.assertEqual((before["counters"]["steps"], after["counters"]["steps"]), ("1", "0"))

    def test_q04_a_client_finds_the_next_daemon_five_times(self):
        """One process, one connection, and a socket that is another file each time."""
        daemon = Daemon(self)
        client, pids = daemon.client, {daemon.pid}
        for stop in ("kill", "stop", "kill", "stop", "kill"):
            getattr(daemon, stop)()
            daemon = Daemon(self, socket=daemon.socket)
            wait_until(lambda: self.pid_of(client) == daemon.pid, "the old client is served again")
            pids.add(daemon.pid)
        self.assertEqual(len(pids), 6)

    @staticmethod
    def pid_of(client):
        try:
            return client.call(ADMIN + "GetNodeInfo").pid
        except CallError as error:
            if error.code != "UNAVAILABLE":
                raise
            return None

    def test_q05_device_memory_is_back_at_once(self):
        """By SIGTERM, which a worker does not handle, and by SIGKILL; each held as much."""
        daemon = Daemon(self)

        def device_bytes():
            devices = to_json(daemon.client.call(ADMIN + "GetNodeInfo"))["devices"]
            return int(devices[0]["used_bytes"])
        seconds, held = [], set()
        for number in (signal.SIGTERM, signal.SIGKILL) * 6:
            worker = subprocess.Popen(
                ["/usr/bin/python3", "tests/integration/worker.py", daemon.socket],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(worker.stdout.close)
            self.addCleanup(worker.stdin.close)
            self.assertEqual(worker.stdout.readline(), b"3\n")
            held.add(device_bytes())
            os.kill(worker.pid, number)
            worker.wait(PATIENCE_SECONDS)
            start = time.monotonic()
            wait_until(lambda: device_bytes() == 0, "its device memory is back")
            seconds.append(time.monotonic() - start)
        self.assertLess(sorted(seconds)[6], 1, seconds)
        self.assertEqual(len(held), 1, held)
        self.assertGreater(held.pop(), 0)


if __name__ == "__main__":
    unittest.main()
