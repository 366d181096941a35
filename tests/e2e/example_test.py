"""client/example.cc runs against a daemon, and says what is wrong where there is none."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

SECONDS = 60


class ExampleTest(unittest.TestCase):
    def setUp(self):
        # Bazel's own folders are too deep for a socket path.
        self.folder = tempfile.mkdtemp(prefix="kvtier-example-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        self.socket = os.path.join(self.folder, "kvtierd.sock")

    def run_example(self):
        return subprocess.run(["client/example", self.socket], capture_output=True, text=True,
                              timeout=SECONDS, check=False)

    def test_without_a_daemon(self):
        result = self.run_example()
        self.assertEqual(result.returncode, 1)
        self.assertIn("is kvtierd running", result.stderr)

    def test_with_a_daemon(self):
        daemon = subprocess.Popen(["server/kvtierd", "--socket=" + self.socket, "--backend=cpu",
                                   "--pool_bytes=%d" % (16 << 20)])
        self.addCleanup(daemon.wait, SECONDS)
        self.addCleanup(daemon.terminate)
        while not os.path.exists(self.socket):
            self.assertIsNone(daemon.poll(), "kvtierd ended")
        result = self.run_example()
        self.assertEqual(result.returncode, 0, result.stderr)
        hits, misses = map(int, re.match(r"hits (\d+), misses (\d+)", result.stdout).groups())
        # What the example asks for in each step: the last 32 tokens, the newest one apart, and
        # every ninth before them as far as the request reaches.
        lookups = sum(31 + len(range(position - 32, -1, -9)[:16])
                      for position in range(128, 128 + 64))
        self.assertEqual(hits + misses, lookups)
        self.assertGreater(hits, misses)


if __name__ == "__main__":
    unittest.main()
