"""What a driver that hangs, or a GPU that is lost, does to the real process.

Names like D23 are those of the public bug reports that the cases come from; exit codes are in
server/main.cc."""
import os
import signal
import subprocess
import time
import unittest

from daemon import (ADMIN, PATIENCE_SECONDS, Daemon, Process, Session, layout, new_folder,
                    wait_until)
from memory import Memory
from reflection import CallError, Client

DEVICE_LOST, STUCK = 6, 7
FAULTY = "tests/integration/faulty_kvtierd"
CACHE = {"cache": "c"}
STEP = {**CACHE, "inline": {"rows": [{"request_id": "r", "topk": [0]}]}}


class Faults(unittest.TestCase):
    def setUp(self):
        self.start()

    def start(self, *flags):
        folder = new_folder(self)
        self.fifo = folder + "/faults"
        os.mkfifo(self.fifo)
        self.told = 0
        self.daemon = Daemon(self, ["--shutdown_grace=1s", *flags], socket=folder + "/d.sock",
                             binary=FAULTY,
                             env={**os.environ, "KVTIER_TEST_FAULTS": self.fifo})

    def tell(self, command):
        with open(self.fifo, "w", encoding="ascii") as commands:
            commands.write(command + "\n")
        self.told += 1
        wait_until(lambda: self.obeyed() == str(self.told), "the backend obeys")

    def obeyed(self):
        try:
            with open(self.fifo + ".obeyed", encoding="ascii") as count:
                return count.read()
        except FileNotFoundError:
            return ""

    def attach(self, cache="c"):
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": cache, "layout": layout()})
        session.call("AdmitRequest", {"cache": cache, "request_id": "r"})
        return session

    def assert_alive(self):
        """Liveness and what operators read are answered at once."""
        start = time.monotonic()
        self.assertEqual(self.daemon.health("liveness"), "SERVING")
        self.daemon.stats()
        self.daemon.client.call(ADMIN + "GetNodeInfo")
        self.assertLess(time.monotonic() - start, 2)

    def test_d23_a_lost_device_ends_the_process_for_its_supervisor(self):
        session = self.attach()
        start = time.monotonic()
        self.tell("lose an illegal address was accessed")
        with self.assertRaises(CallError) as caught:
            session.call("SwapIn", STEP)  # the first one that comes after it
        # By the step, by the daemon that has begun to stop, or by the connection's end: whichever
        # this call came to. What gRPC's server has read but not begun when it ends is CANCELLED
        # (kvtier.proto), and this client takes it as it is.
        self.assertIn((caught.exception.code, caught.exception.reason),
                      (("UNAVAILABLE", "DEVICE_LOST"), ("UNAVAILABLE", "DRAINING"),
                       ("UNAVAILABLE", ""), ("CANCELLED", "")), caught.exception)
        self.assertEqual(self.daemon.wait(), DEVICE_LOST)
        self.assertLess(time.monotonic() - start, 5)
        self.assertIn("an illegal address was accessed", self.daemon.text())

    def test_d23_readiness_says_why(self):
        self.assertEqual(self.daemon.client.call(ADMIN + "GetNodeInfo").not_ready_reason, "")
        self.attach()
        # The process is on its way out: what its end waits for leaves time to look.
        self.tell("hold DestroyStream")
        self.tell("lose the bus fell over")
        wait_until(lambda: "event=not_ready" in self.daemon.text(), "readiness is off")
        self.assertIn("the bus fell over", self.daemon.text())
        self.assertEqual(self.daemon.wait(), DEVICE_LOST)

    def test_without_memory_the_process_ends(self):
        """In no verb an allocation's failure is caught: that would leave the verb half done."""
        session = Session(self, self.daemon)
        attached = session.call("AttachCache", {**CACHE, "layout": layout()})
        memory = Memory(self, session, attached)
        rows = memory.bytes(attached.buffers.groups[0].layers[0].host)
        rows[5] = 7
        with open(self.fifo, "w", encoding="ascii") as commands:
            commands.write("exhaust\n")  # nobody is left to say that it was obeyed
        self.assertEqual(self.daemon.wait(), -signal.SIGABRT)
        self.assertIn("event=out_of_memory", self.daemon.text())
        # What the worker has mapped is there, for reading and for writing.
        self.assertEqual(rows[5], 7)
        rows[6] = 8
        rows.release()

    def test_d24_a_mapping_that_cannot_be_closed(self):
        """A driver that hangs while it frees a dead worker's memory holds nobody else up."""
        witness = self.attach()
        victim = self.attach("d")
        self.tell("hold Free")
        victim.close()
        wait_until(lambda: self.daemon.stats()["sessions"] == 1, "the session has ended")
        self.assert_alive()
        start = time.monotonic()
        witness.call("SwapIn", STEP)
        self.assertLess(time.monotonic() - start, 2)
        Session(self, self.daemon).call("AttachCache", {"cache": "e", "layout": layout()})
        self.tell("release")
        wait_until(lambda: [c["cache"] for c in self.daemon.stats()["caches"]] == ["c", "e"],
                   "the victim's cache has ended")

    def test_a_driver_that_hangs_in_a_call(self):
        """Attach stands still in the driver, and a step on the device: the rest goes on."""
        witness = self.attach()
        other = Session(self, self.daemon)
        for operation, call in (("Allocate", ("AttachCache", {"cache": "d", "layout": layout()})),
                                ("SwapIn", None)):
            self.tell("hold " + operation)
            if call is not None:
                stuck = other.start(call[0], call[1], timeout=PATIENCE_SECONDS)
            else:
                stuck = witness.start("SwapIn", STEP, timeout=PATIENCE_SECONDS)
            self.assert_alive()
            self.assertEqual(self.daemon.health(), "SERVING")
            self.assertFalse(stuck.done())
            self.tell("release")
            stuck.result(PATIENCE_SECONDS)

    def test_d18_calls_behind_a_driver_that_hangs_hear_of_the_end(self):
        """Those whose turn never came are answered; who is in the driver loses its connection."""
        self.daemon.stop()
        self.start("--control_threads=1")
        session = Session(self, self.daemon)
        self.tell("hold Allocate")
        calls = [session.start("AttachCache", {"cache": "c%d" % i, "layout": layout()},
                               timeout=PATIENCE_SECONDS) for i in range(4)]
        wait_until(lambda: self.daemon.stats()["control_queue_depth"] == 3, "three wait")
        self.assertEqual(self.daemon.stop(), STUCK)
        errors = []
        for call in calls:
            call.exception(PATIENCE_SECONDS)
            errors.append(self.daemon.client.error_of(call))
        self.assertEqual(sorted((error.code, error.reason) for error in errors),
                         [("UNAVAILABLE", "")] + [("UNAVAILABLE", "DRAINING")] * 3)

    def test_d24_a_cache_that_stands_still_leaves_threads_to_others(self):
        """Blocks are assigned when every session's copies are gone: a device stream that hangs
        holds up its own cache, until each call's deadline, and no other."""
        stuck = self.attach()
        sharing = Session(self, self.daemon)
        sharing.call("AttachCache", {**CACHE, "layout": layout()})
        request = {**CACHE, "request_id": "s"}
        sharing.call("AdmitRequest", request)
        # Blocks that were never anybody's have no copies to be looked for.
        used = sharing.call("AssignBlocks", {**request, "count": 8}).block_ids
        sharing.call("FreeBlocks", {**request, "block_ids": list(used)})
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_free"] == 8, "all are free")
        self.tell("hold SwapIn")
        step = stuck.start("SwapIn", STEP, timeout=PATIENCE_SECONDS)
        wait_until(lambda: "1" in [of["operations_in_flight"] for of in
                                   self.daemon.stats()["caches"][0]["sessions"]], "it hangs")
        assigning = [sharing.start("AssignBlocks", {**request, "count": 1}, timeout=3)
                     for _ in range(20)]
        wait_until(lambda: self.daemon.stats()["control_queue_depth"] > 0, "all wait")
        start = time.monotonic()
        self.attach("other").call("AssignBlocks", {"cache": "other", "request_id": "r",
                                                   "count": 1})
        self.assertLess(time.monotonic() - start, 1)
        self.assertFalse(all(call.done() for call in assigning))
        for call in assigning:
            self.assertEqual(call.exception(PATIENCE_SECONDS).code().name, "DEADLINE_EXCEEDED")
        # The daemon's clock may be behind the callers'.
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_used"] == 0, "all taken back")
        self.tell("release")
        step.result(PATIENCE_SECONDS)
        # Nothing of what was late has stayed.
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_free"] == 8, "all are free")

    def test_d24_a_process_whose_caches_all_stand_still_leaves_threads_to_others(self):
        """Each cache may have six of the eight: two would have all."""
        assigning, held = [], []
        for cache in ("c", "d"):
            session = self.attach(cache)
            request = {"cache": cache, "request_id": "r"}
            used = session.call("AssignBlocks", {**request, "count": 8}).block_ids
            session.call("FreeBlocks", {**request, "block_ids": list(used)})
            self.tell("hold SwapIn")
            held.append(session.start("SwapIn", {**STEP, "cache": cache},
                                      timeout=PATIENCE_SECONDS))
            wait_until(lambda: "1" in [of["operations_in_flight"]
                                       for each in self.daemon.stats()["caches"]
                                       if each["cache"] == cache
                                       for of in each["sessions"]], "it hangs")
            assigning += [session.start("AssignBlocks", {**request, "count": 1},
                                        timeout=PATIENCE_SECONDS) for _ in range(20)]
        wait_until(lambda: self.daemon.stats()["control_queue_depth"] == 33, "seven have a thread")
        other = subprocess.Popen(["/usr/bin/python3", "tests/integration/worker.py",
                                  self.daemon.socket, "e"], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(other.communicate)
        self.assertEqual(other.stdout.readline(), "3\n")  # blocks; it would wait with the others
        self.assertFalse(any(call.done() for call in assigning))
        self.tell("release")
        for call in held:
            call.result(PATIENCE_SECONDS)
        for call in assigning:  # eight of each cache have blocks
            call.exception(PATIENCE_SECONDS)

    def test_d18_the_exit_is_bounded_whatever_hangs(self):
        """Also by a second signal: it changes nothing."""
        witness = self.attach()
        self.tell("hold SwapIn")
        stuck = witness.start("SwapIn", STEP, timeout=PATIENCE_SECONDS)
        wait_until(lambda: self.daemon.stats()["caches"][0]["sessions"][0]
                   ["operations_in_flight"] == "1", "the step is enqueued")
        start = time.monotonic()
        self.daemon.process.terminate()
        wait_until(lambda: "event=stopping" in self.daemon.text(), "it stops")
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.wait(), STUCK, self.daemon.text())
        self.assertLess(time.monotonic() - start, 3)  # a grace of 1 s, and the watchdog's margin
        self.assertIn("SwapIn", self.daemon.text())
        self.assertIsNotNone(stuck.exception())


class Pinning(unittest.TestCase):
    def test_d18_sigterm_while_the_pool_is_pinned(self):
        """Its driver is busy with the first of two chunks of 1 GiB; the second one never comes."""
        folder = new_folder(self)
        socket, hold = folder + "/d/d.sock", folder + "/hold"
        os.mkdir(folder + "/d", 0o755)
        os.mkfifo(hold)
        process = Process(self, socket, ["--pool_bytes=2GiB", "--shutdown_grace=20s"],
                          binary=FAULTY, env={**os.environ, "KVTIER_TEST_HOLD_PIN": hold})
        process.wait_for_event("listening")
        client = Client("unix:" + socket)
        self.addCleanup(client.close)
        self.assertNotEqual(client.call(ADMIN + "GetNodeInfo").not_ready_reason, "")
        process.process.terminate()
        wait_until(lambda: not os.path.exists(socket), "nobody new")
        start = time.monotonic()
        with open(hold, "w", encoding="ascii"):
            pass
        self.assertEqual(process.wait(), 0, process.text())
        self.assertLess(time.monotonic() - start, 10)
        self.assertNotIn("event=ready", process.text())
        self.assertNotIn("pinned_bytes=%d" % (2 << 30), process.text())
        self.assertEqual(os.listdir(folder + "/d"), [])


if __name__ == "__main__":
    unittest.main()
