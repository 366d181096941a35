"""The decoder of checks/dsa_decoder on the CPU backend. Needs torch >= 2.4: skipped without it."""
import os
import subprocess
import sys
import unittest

import daemon

MAIN = os.path.join("client", "python", "checks", "dsa_decoder", "main.py")
NO_TORCH = 77  # main.py's status


class DsaDecoderTest(unittest.TestCase):
    def decode(self, *flags, steps=60):
        """Status and output of a run on a daemon of the test's."""
        found = subprocess.run(
            [sys.executable, "-B", MAIN, "--socket", daemon.start(self).socket, "--device", "cpu",
             "--steps", str(steps), *flags],
            env=dict(os.environ, PYTHONPATH=daemon.PYTHON_PATH, OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=500)
        if found.returncode == NO_TORCH:
            self.skipTest(found.stdout.strip())
        return found

    def test_outputs_are_those_of_a_full_cache(self):
        found = self.decode()
        self.assertEqual(found.returncode, 0, found.stdout)

    def test_without_invalidation_they_are_not(self):
        found = self.decode("--mutate")
        self.assertEqual(found.returncode, 0, found.stdout)

    def test_two_processes_share_a_daemon(self):
        found = self.decode("--workers", "2")
        self.assertEqual(found.returncode, 0, found.stdout)
        self.assertEqual(found.stdout.count(": OK"), 2, found.stdout)

    def test_two_ranks_share_the_rows(self):
        found = self.decode("--ranks", "2")
        self.assertEqual(found.returncode, 0, found.stdout)
        self.assertEqual(found.stdout.count("of 2: OK"), 2, found.stdout)


if __name__ == "__main__":
    unittest.main()
