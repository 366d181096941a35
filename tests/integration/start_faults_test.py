"""Every call of the operating system fails once while the real process starts and stops.

It serves all the same, or it ends with the exit code of what it could not have and says why. Either
way the next start works, and what the pool's folder holds is still there."""
import os
import shutil
import signal
import tempfile
import unittest

from daemon import ADMIN, PATIENCE_SECONDS, Daemon, Process, Session, layout, new_folder, wait_until
from reflection import to_json

BINARY = "tests/integration/faulty_kvtierd"
STOPPED, NO_SOCKET, NO_POOL = 0, 2, 5  # as in server/main.cc
CACHE = {"cache": "c"}


class StartFaults(unittest.TestCase):
    def setUp(self):
        self.socket = os.path.join(new_folder(self), "d.sock")
        self.parent = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.parent, ignore_errors=True)

    def start_and_stop(self, number, flags):
        """The exit code, and which call failed; None: none was left."""
        process = Process(self, self.socket, flags, binary=BINARY,
                          env={**os.environ, "KVTIER_TEST_FAIL_SYSTEM_CALL": str(number)})
        wait_until(lambda: " event=ready" in process.text() or not process.running(),
                   "it serves or ends\n" + process.text())
        if process.running():
            process.process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_SECONDS)
        text = process.text()
        said = text[text.rindex("system call number"):].strip() if "system call" in text else ""
        self.assertTrue(said, text)
        if code != STOPPED:
            self.assertIn("event=failed", text)
        return code, text, None if said.endswith("did not come") else said

    def fail_each(self, flags, check, calls_min, served="event=ready"):
        refused = 0
        for number in range(1, 1000):
            with self.subTest(number=number):
                code, text, call = self.start_and_stop(number, flags)
                if call is None:
                    self.assertEqual(code, STOPPED, text)
                    break
                self.assertIn(code, (STOPPED, NO_SOCKET, NO_POOL), text)
                if code == STOPPED:
                    self.assertIn(served, text)
                else:
                    refused += 1
                    check(call)
        check("at the end")
        self.assertGreater(number, calls_min)
        self.assertGreater(refused, calls_min // 2)
        print("%d system calls failed, %d starts refused" % (number - 1, refused))

    def test_every_system_call_of_a_start(self):
        def check(call):
            code, text, _ = self.start_and_stop(10000, [])
            self.assertEqual(code, STOPPED, call + "\n" + text)
        self.fail_each([], check, 25)

    def test_every_system_call_of_a_restart_with_the_pool_kept(self):
        flags = ["--pool_path=" + self.parent + "/pool"]
        daemon = Daemon(self, flags, socket=self.socket)
        session = Session(self, daemon)
        session.call("AttachCache", {**CACHE, "layout": layout(),
                                     "retain": {"duration": "3600s"}})
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": 3})
        daemon.kill()

        def check(call):
            daemon = Daemon(self, flags, socket=self.socket)
            caches = to_json(daemon.client.call(ADMIN + "ListCaches")).get("caches", [])
            self.assertEqual([(c["cache"], c["blocks_kept"]) for c in caches], [("c", 3)],
                             call + "\n" + daemon.text())
            daemon.client.close()
            daemon.stop()
        self.fail_each(flags, check, 45, served="event=pool_kept caches=1")


if __name__ == "__main__":
    unittest.main()
