"""The demo, short: it sums up right, notices what is wrong, and leaves nothing behind."""

import os
import pathlib
import re
import select
import signal
import subprocess
import unittest

SECONDS = 100  # of a run; only a failure takes so long
SHORT = ["--documents=2", "--steps=48", "--groups=2", "--requests=2"]
LONGER = ["--documents=2", "--steps=256", "--groups=4"]

LAST_LINE = re.compile(
    r"^demo: steps=(\d+) rows_checked=(\d+) mismatched_rows=(\d+) hits=(\d+) misses=(\d+)"
    r" hit_rate=(0\.\d{3})$")


def finish(process):
    if process.poll() is None:
        process.terminate()
        process.communicate(timeout=SECONDS)


def start(case, arguments):
    command = ["/usr/bin/python3", "client/demo/demo.py", "--daemon=server/kvtierd",
               "--worker=client/demo/worker", "--traces=tests/traces", "--backend=cpu"]
    process = subprocess.Popen(command + arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True)
    # A test that fails half-way: the demo cleans up after itself.
    case.addCleanup(finish, process)
    return process


def run(case, arguments):
    process = start(case, arguments)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def folder_of(out):
    return os.path.dirname(re.search(r"-unix (\S+) ", out).group(1))


def processes_in(folder):
    """Pids of processes that were started with a path in `folder`."""
    pids = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (NotADirectoryError, FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if folder in words:
            pids[int(entry.name)] = words
    return pids


class DemoTest(unittest.TestCase):
    def expect_nothing_left(self, out):
        folder = folder_of(out)
        self.assertFalse(os.path.exists(folder), folder)
        self.assertEqual(processes_in(folder), {})

    def read_until_running(self, process):
        """What the demo said until its workers were started and at work."""
        out = ""
        while "rows checked" not in out:
            line = process.stdout.readline()
            if not line:
                self.fail(out + process.stderr.read())
            out += line
        return out

    def test_every_row_and_count_is_right(self):
        status, out, err = run(self, SHORT)
        self.assertEqual(status, 0, out + err)
        match = LAST_LINE.match(out.splitlines()[-1])
        self.assertTrue(match, out)
        steps, rows, mismatched, hits, misses = (int(match.group(i)) for i in range(1, 6))
        self.assertEqual(steps, 2 * 48)
        self.assertEqual(rows, 2 * 48 * 2 * 2 * 256)
        self.assertEqual(mismatched, 0)
        self.assertGreater(hits, misses)
        # Every position was a hit, a miss or the newest row.
        self.assertLessEqual(rows // 2 - hits - misses, steps * 2)
        self.assertEqual(match.group(6), "%.3f" % (hits / (hits + misses)))
        self.assertIn("grpcurl -plaintext -unix ", out)
        self.expect_nothing_left(out)

    def test_fewer_misses_with_aged_scores(self):
        misses = {}
        for eviction in ("lru", "aged"):
            status, out, err = run(self, SHORT + ["--eviction=" + eviction])
            self.assertEqual(status, 0, out + err)
            match = LAST_LINE.match(out.splitlines()[-1])
            self.assertEqual(match.group(3), "0")
            misses[eviction] = int(match.group(5))
        self.assertLess(misses["aged"], misses["lru"])

    def test_a_spoiled_row_is_found(self):
        status, out, err = run(self, SHORT + ["--inject=corrupt_row"])
        self.assertEqual(status, 1, out + err)
        self.assertGreater(int(LAST_LINE.match(out.splitlines()[-1]).group(3)), 0)
        self.assertIn("rows hold other bytes", err)
        self.expect_nothing_left(out)

    def test_interrupt_cleans_up(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = start(self, LONGER)
            out = self.read_until_running(process)
            self.assertEqual(len(processes_in(folder_of(out))), 3)
            process.send_signal(number)
            process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, 128 + number)
            self.expect_nothing_left(out)

    def test_a_killed_demo_leaves_no_process(self):
        process = start(self, LONGER)
        out = self.read_until_running(process)
        folder = folder_of(out)
        # One descriptor a process, which becomes readable when it has ended.
        watched = [os.pidfd_open(pid) for pid in processes_in(folder)]
        self.assertEqual(len(watched), 3)
        process.kill()
        process.communicate(timeout=SECONDS)
        for fd in watched:
            ready, _, _ = select.select([fd], [], [], SECONDS)
            os.close(fd)
            self.assertTrue(ready, processes_in(folder))
        subprocess.run(["rm", "-r", folder], check=True)

    def test_a_worker_that_dies_is_reported(self):
        process = start(self, LONGER)
        out = self.read_until_running(process)
        victims = [pid for pid, words in processes_in(folder_of(out)).items()
                   if "--plane=rpc" in words]
        self.assertEqual(len(victims), 1)
        os.kill(victims[0], signal.SIGKILL)
        _, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertIn("worker demo-worker-b ended with status -9", err)
        self.expect_nothing_left(out)

    def test_a_daemon_that_does_not_start_is_reported(self):
        status, out, err = run(self, SHORT + ["--daemon_flag=--no_such_flag=1"])
        self.assertEqual(status, 1, out + err)
        self.assertIn("kvtierd ended with status", err)
        self.assertIn("no_such_flag", err)


if __name__ == "__main__":
    unittest.main()
