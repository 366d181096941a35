"""The package with the newest grpcio, protobuf and numpy that can be had.

    newest_test.py LIBRARY DESCRIPTORS

Downloads them into an environment of its own. Where that is impossible, as without a network, every
case is skipped, and says so.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import environment

SECONDS = 120
FOLDER = tempfile.mkdtemp(prefix="kvt-newest-")
unittest.addModuleCleanup(shutil.rmtree, FOLDER, ignore_errors=True)
WHEEL = environment.build_wheel(FOLDER, *sys.argv[1:3])
PYTHON = environment.make(FOLDER, "newest", system_packages=False)
WHY_NOT = ""
try:
    environment.pip(PYTHON, FOLDER, "install", "--retries=1", "--timeout=20",
                    "--only-binary=:all:", "grpcio", "protobuf", "numpy")
    environment.pip(PYTHON, FOLDER, "install", "--no-index", WHEEL)  # with what it depends on
except subprocess.CalledProcessError as error:
    WHY_NOT = "no newest packages to be had: " + error.stdout.strip().splitlines()[-1]


@unittest.skipIf(WHY_NOT, WHY_NOT)
class NewestTest(unittest.TestCase):
    def run_python(self, *arguments):
        result = subprocess.run([PYTHON, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
                                env={**os.environ, "PYTHONPATH": environment.TESTS})
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    def test_versions(self):
        text = self.run_python("-c", "import google.protobuf, grpc, numpy; print('protobuf', "
                               "google.protobuf.__version__, 'grpcio', grpc.__version__, 'numpy', "
                               "numpy.__version__)")
        # Newer than the system's, or the test would show nothing new.
        self.assertGreater(int(text.split()[1].split(".")[0]), 3, text)
        print(text, file=sys.stderr)


def case_of(module):
    """Runs all cases of one file."""
    def test(self):
        self.assertIn("OK", self.run_python("-m", "unittest", module))
    return test


for _path in glob.glob(os.path.join(environment.TESTS, "*_test.py")):
    _module = os.path.basename(_path)[:-len(".py")]
    if _module not in ("gpu_test", "torch_test"):  # skip themselves: PyTorch is not among these
        setattr(NewestTest, "test_" + _module[:-len("_test")], case_of(_module))


if __name__ == "__main__":
    unittest.main()
