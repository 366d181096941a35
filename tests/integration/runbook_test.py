"""The runbook of docs/OPERATIONS.md, rehearsed: each situation is made on a live daemon, the page's
own commands are run in it, and what they show and change is what the page says."""
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import page
import scene
from daemon import (PATIENCE_SECONDS, POOL_BYTES, TIER, Daemon, Process, Session, layout,
                    new_folder, wait_until)
from reflection import CallError
from stranger import Stranger

RUNBOOK = ["Hit rate fell", "Pool full", "Worker stuck", "GPU lost", "Upgrade",
           "Upgrade without losing the pool", "Small pages", "Rows that should not be",
           "Access denied"]
NO_BACKEND, DEVICE_LOST = 4, 6


class Rehearsal(unittest.TestCase):
    """One section. `section` is its heading; all of its commands must be run."""

    section = None

    def setUp(self):
        self.socket = new_folder(self) + "/kvtierd.sock"
        self.daemon = self.start()
        self.shell = page.Shell(("-unix", self.socket))
        self.left = list(page.sections()[self.section])

    def start(self, **more):
        return Daemon(self, socket=self.socket, **more)

    def run_next(self, contains, status=0, **words):
        """The answer of the page's next command, which must be this one."""
        example = self.left.pop(0)
        self.assertIn(contains, example.command)
        answer = self.shell.run(example, **words)
        self.assertEqual(answer.status, status, answer.text)
        return answer

    def run_to_the_end(self):
        self.assertEqual([example.command for example in self.left], [])

    def victim(self):
        """A worker that is a process of its own, and holds three blocks and five more."""
        worker = subprocess.Popen(["/usr/bin/python3", "tests/integration/worker.py", self.socket],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for clean_up in (worker.stdout.close, worker.stdin.close,
                         lambda: worker.wait(PATIENCE_SECONDS), worker.kill):
            self.addCleanup(clean_up)
        self.assertEqual(worker.stdout.readline(), b"3\n")
        return worker

    def refused(self, method, fields, session=None):
        """The reason with which a call is refused."""
        with self.assertRaises(CallError) as caught:
            session.call(method, fields) if session else self.daemon.client.call(method, fields)
        return caught.exception.reason


def cache_of(answer, name=scene.CACHE):
    return next(cache for cache in answer.json["caches"] if cache["cache"] == name)


class HitRateFell(Rehearsal):
    section = "Hit rate fell"

    def test(self):
        worker = scene.Worker(self, self.daemon)
        worker.admit()
        scene.decode(worker, steps=32, spread=1)
        before = cache_of_stats(self.daemon)
        scene.decode(worker, steps=64, spread=7)  # looks at twice what the hot buffer holds
        after = cache_of(self.run_next("GetStats"))["counters"]
        self.assertLess(after["hit_rate"], before["hit_rate"])
        # What the first row of the table is about.
        grown = {name: int(after[name]) - int(before[name]) for name in ("misses", "evictions")}
        self.assertGreater(grown["misses"], 100)
        self.assertGreater(grown["evictions"], 0.8 * grown["misses"])

        group = self.run_next("ListCaches").json["caches"][0]["layout"]["groups"][0]
        self.assertEqual(group["hot_size"], 32)
        # The same cache with another layout is refused; another cache with it is the remedy.
        other = {"cache": scene.CACHE, "layout": scene.cache_layout(hot_size=64)}
        second = Session(self, self.daemon, "second")
        self.assertEqual(self.refused("AttachCache", other, second), "LAYOUT_MISMATCH")
        worker.session.close()
        wait_until(lambda: not self.daemon.stats()["caches"], "the cache has ended")
        larger = scene.Worker(self, self.daemon, hot_size=64)
        larger.admit()
        scene.decode(larger, steps=64, spread=7)
        self.assertGreater(cache_of_stats(self.daemon)["hit_rate"], 0.85)
        self.run_to_the_end()


def cache_of_stats(daemon):
    return daemon.stats()["caches"][0]["counters"]


class PoolFull(Rehearsal):
    section = "Pool full"

    def test(self):
        # 656 bytes a row, so that the first has half of the pool and the second the rest of it.
        old = Session(self, self.daemon, "forgotten")
        rows = POOL_BYTES // 2 // 656 // 16 - 8
        old.call("AttachCache", {"cache": "old", "layout": scene.cache_layout(block_count=rows)})
        new = Session(self, self.daemon, "new")
        wanted = {"cache": "new", "layout": scene.cache_layout(block_count=int(1.5 * rows))}
        self.assertEqual(self.refused("AttachCache", wanted, new), "POOL_EXHAUSTED")

        stats = self.run_next("GetStats").json
        largest = int(stats["pool"]["largest_free_bytes"])
        self.assertLess(largest, int(1.5 * rows) * 16 * 656)
        self.assertGreater(int(stats["caches"][0]["host_bytes"]), POOL_BYTES // 3)
        who = stats["caches"][0]["sessions"][0]
        self.assertEqual(who["client_name"], "forgotten")

        self.run_next("EvictSession", SESSION=who["session_id"])
        wait_until(lambda: self.daemon.stats()["pool"]["used_bytes"] == "0", "its part is back")
        self.assertTrue(new.call("AttachCache", wanted).created)
        self.run_to_the_end()


class WorkerStuck(Rehearsal):
    section = "Worker stuck"

    def test(self):
        bystander = Session(self, self.daemon, "bystander")
        bystander.call("AttachCache", {"cache": "c", "layout": layout()})
        worker = self.victim()
        worker.send_signal(signal.SIGSTOP)

        self.assertEqual(self.run_next("liveness").json, {"status": "SERVING"})
        self.assertEqual(cache_of(self.run_next("GetStats"), "c")["blocks_used"], 3)
        sessions = self.run_next("ListSessions").json["sessions"]
        stuck = next(s for s in sessions if s["peer_pid"] == worker.pid)
        self.assertEqual(stuck["client_name"], "victim")

        def stopped():
            with open("/proc/%d/stat" % worker.pid) as file:
                return file.read().rpartition(")")[2].split()[0] == "T"
        wait_until(stopped, "the worker is stopped")
        seen = self.run_next("ps -o", PID=str(worker.pid)).text.splitlines()[1].split()
        self.assertEqual((seen[0], seen[1][0]), (str(worker.pid), "T"))

        self.run_next("EvictSession", SESSION=stuck["session_id"])
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_used"] == 0, "its blocks")
        self.assertEqual(self.daemon.stats()["caches"][0]["blocks_free"], 8)
        # Others noticed nothing.
        bystander.call("AdmitRequest", {"cache": "c", "request_id": "r"})
        bystander.call("AssignBlocks", {"cache": "c", "request_id": "r", "count": 8})
        self.run_to_the_end()


class GpuLost(Rehearsal):
    """A CPU in place of the GPU, on a backend that can be told to lose it."""

    section = "GPU lost"

    def start(self, **more):
        self.faults = new_folder(self) + "/faults"
        os.mkfifo(self.faults)
        return super().start(binary="tests/integration/faulty_kvtierd",
                             env={**os.environ, "KVTIER_TEST_FAULTS": self.faults}, **more)

    def test(self):
        worker = scene.Worker(self, self.daemon, client=self.daemon.connect(self))
        worker.admit()
        with open(self.faults, "w", encoding="ascii") as faults:
            faults.write("lose GPU 0 has fallen off the bus\n")
        with self.assertRaises(CallError) as caught:
            while True:
                worker.step(list(range(8)))
        self.assertEqual(caught.exception.code, "UNAVAILABLE")
        self.assertEqual(self.daemon.wait(), DEVICE_LOST)
        self.assertIn(" event=failed exit_code=6 ", self.daemon.text())
        self.assertIn("GPU 0 has fallen off the bus", self.daemon.text())
        worker.session.wait_until_ended()

        daemon = self.start()
        info = self.run_next("GetNodeInfo").json
        self.assertEqual(info["devices"][0]["backend"], "cpu")
        self.assertEqual(info["pid"], daemon.pid)
        self.assertEqual(self.run_next("Health/Check").json, {"status": "SERVING"})
        scene.Worker(self, daemon, client=worker.session.client)  # by its old connection
        self.run_to_the_end()

    def test_no_gpu_is_exit_code_4(self):
        self.left = []
        process = Process(self, self.socket + "2", ["--backend=cuda"])
        wait_until(lambda: not process.running() or " event=listening" in process.text(), "a word")
        if process.running():
            self.skipTest("there is a GPU here")
        self.assertEqual(process.wait(), NO_BACKEND, process.text())

    def test_the_exit_codes_are_in_the_help(self):
        text = subprocess.run(["server/kvtierd", "--help"], capture_output=True, text=True,
                              check=False).stdout
        self.assertIn("6  a device was lost", text)
        self.assertIn("4  there is no such device backend", text)


class Upgrade(Rehearsal):
    section = "Upgrade"

    def test(self):
        worker = scene.Worker(self, self.daemon)
        worker.admit()
        self.assertEqual(self.run_next("Drain").json, {"sessions": 1})
        self.assertEqual(self.run_next("Health/Check").json, {"status": "NOT_SERVING"})
        self.assertEqual(self.daemon.health("liveness"), "SERVING")
        # Those who are there are told, and go on; nobody new.
        self.assertEqual(worker.session.events.get(timeout=PATIENCE_SECONDS).WhichOneof("event"),
                         "draining")
        scene.decode(worker, steps=5, spread=1)
        self.assertEqual(self.refused("AdmitRequest", {"cache": scene.CACHE, "request_id": "r2"},
                                      worker.session), "DRAINING")
        self.assertEqual(self.new_session_is_refused(), "DRAINING")

        worker.session.close()
        wait_until(lambda: not self.daemon.stats()["sessions"], "the worker has left")
        self.assertEqual(self.run_next("ListSessions").json, {})
        self.run_next("kvtierctl drain --wait=10m")  # at once, as nobody is left
        self.assertEqual(self.daemon.stop(), 0)
        daemon = self.start()
        scene.Worker(self, daemon, client=worker.session.client)
        self.run_to_the_end()

    def new_session_is_refused(self):
        stream = self.daemon.client.stream(TIER + "OpenSession", {}, timeout=PATIENCE_SECONDS)
        try:
            next(stream)
        except Exception as error:  # grpc's own, which is both an error and a call
            return self.daemon.client.error_of(error).reason
        return None


class UpgradeWithoutLosingThePool(Rehearsal):
    section = "Upgrade without losing the pool"

    def start(self, **more):
        if not hasattr(self, "folder"):
            self.folder = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
            self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        return Daemon(self, ["--pool_path=%s/pool" % self.folder], socket=self.socket, **more)

    def test(self):
        worker = scene.Worker(self, self.daemon)
        request = {"cache": scene.CACHE, "request_id": "r1"}
        worker.session.call("AdmitRequest", request)
        held = worker.session.call("AssignBlocks", {**request, "count": 4})
        slots = range(held.block_ids[0] * scene.BLOCK_SIZE, scene.BLOCK_SIZE * 4)
        worker.session.call("Backup", {"cache": scene.CACHE, "inline": {"rows": [
            {"request_id": "r1", "slot": slot, "source_hot_row": 0} for slot in slots]}})
        self.assertEqual(self.daemon.stop(), 0)

        daemon = self.start()
        self.assertIn(" event=pool_kept ", daemon.text())
        self.assertEqual(cache_of(self.run_next("ListCaches"))["blocks_kept"], 4)
        again = scene.Worker(self, daemon, client=daemon.connect(self))
        again.session.call("AdmitRequest", request)
        again.session.call("AssignBlocks", {**request, "shared_block_ids": list(held.block_ids),
                                            "shared_generations": list(held.generations)})
        again.step(list(range(8)))
        counters = cache_of_stats(daemon)
        # Rows that were backed up before the restart, and are copied from the pool after it.
        self.assertEqual((counters["rows_copied"], counters["unbacked_reads"]), ("8", "0"))
        self.run_to_the_end()


class SmallPages(Rehearsal):
    section = "Small pages"

    def start(self, **more):
        return Daemon(self, ["--huge_pages=never"], socket=self.socket, **more)

    def test(self):
        pool = self.run_next("GetNodeInfo").json["pool"]
        self.assertEqual(pool["page_bytes"], "4096")
        if not os.path.exists(self.left[0].command.split()[1]):
            self.skipTest("no transparent huge pages here")
        self.assertIn("[", self.run_next("shmem_enabled").text)
        self.run_to_the_end()


class RowsThatShouldNotBe(Rehearsal):
    section = "Rows that should not be"

    def test(self):
        worker = scene.Worker(self, self.daemon)
        worker.session.call("AdmitRequest", {"cache": scene.CACHE, "request_id": "r1"})
        worker.session.call("AssignBlocks", {"cache": scene.CACHE, "request_id": "r1", "count": 4})
        scene.Worker(self, self.daemon, "well-behaved").admit("r2")
        worker.step([0, 1, 2, 3, 4, 5, 6, 7])  # before any backup
        cache = cache_of(self.run_next("GetStats"))
        self.assertEqual(cache["counters"]["unbacked_reads"], "8")
        self.assertEqual({s["client_name"]: s["counters"]["unbacked_reads"]
                          for s in cache["sessions"]}, {"vLLM rank 0": "8", "well-behaved": "0"})
        self.run_to_the_end()


class AccessDenied(Rehearsal):
    section = "Access denied"

    def start(self, **more):
        return Daemon(self, ["--socket_mode=0666", "--allow_world_writable_socket"],
                      socket=self.socket, **more)

    def test(self):
        scene.Worker(self, self.daemon)
        cache = self.run_next("kvtierctl caches").json["caches"][0]
        self.assertEqual(cache["owner_uid"], os.getuid())
        self.run_to_the_end()
        os.chmod(os.path.dirname(self.socket), 0o755)
        stranger = Stranger(self, self.socket, uid=4711)
        refused = stranger.call(TIER + "AttachCache", {
            "session_id": stranger.open(), "cache": scene.CACHE, "layout": scene.cache_layout()})
        self.assertEqual((refused["reason"], refused["metadata"]["needs"]),
                         ("ACCESS_DENIED", "owner"))


class ThePage(unittest.TestCase):
    def test_each_section_is_rehearsed(self):
        known = {each.section for each in Rehearsal.__subclasses__()}
        self.assertEqual(known, set(RUNBOOK))
        sections = list(page.sections())
        first = sections.index("Runbook") + 1
        self.assertEqual(sections[first:first + len(RUNBOOK)], RUNBOOK)


if __name__ == "__main__":
    unittest.main()
