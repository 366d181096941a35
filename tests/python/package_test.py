"""Installs the package from the source tree into a fresh environment, and runs its tests there.

    package_test.py LIBRARY DESCRIPTORS

The cases are those of client/python/tests, and run in this process on the installed package. grpcio,
protobuf and numpy are the system's: nothing is downloaded.
"""
import glob
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import environment

FOLDER = tempfile.mkdtemp(prefix="kvt-package-")
unittest.addModuleCleanup(shutil.rmtree, FOLDER, ignore_errors=True)
WHEEL = environment.build_wheel(FOLDER, *sys.argv[1:3])
PYTHON = environment.make(FOLDER, "fresh", system_packages=True)
environment.pip(PYTHON, FOLDER, "install", "--no-index", "--no-deps", WHEEL)
PACKAGES = environment.packages_of(PYTHON)
sys.path.insert(0, PACKAGES)


def run(code, packages):
    """A Python of its own that imports from `packages`."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": packages}, check=False)


class PackageTest(unittest.TestCase):
    def test_one_wheel_for_every_python_of_this_platform(self):
        self.assertRegex(os.path.basename(WHEEL), r"^kvtier-[\d.]+-py3-none-linux_x86_64.whl$")

    def test_the_installed_package_is_tested(self):
        kvtier = importlib.import_module("kvtier")
        self.assertTrue(kvtier.__file__.startswith(PACKAGES), kvtier.__file__)
        for name in ("py.typed", "_native/descriptors.bin", "_native/libkvtier_data_plane.so"):
            self.assertTrue(os.path.exists(os.path.join(PACKAGES, "kvtier", name)), name)

    def test_it_imports_no_framework(self):
        result = run("import kvtier, kvtier.aio, kvtier.admin, sys;"
                     "assert 'torch' not in sys.modules; print(kvtier.__version__)", PACKAGES)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_the_source_tree_says_that_it_must_be_installed(self):
        result = run("import kvtier", os.path.join(FOLDER, "source"))
        self.assertIn("install it again (pip install client/python)", result.stderr)

    def test_a_library_of_another_build_is_refused(self):
        native = importlib.import_module("kvtier.native")
        with self.assertRaises(ImportError) as raised:
            native.load_library(os.path.join(FOLDER, "none.so"))
        self.assertIn("install it again", str(raised.exception))
        with unittest.mock.patch.object(native, "ABI_VERSION", native.ABI_VERSION + 1):
            with self.assertRaises(ImportError) as raised:
                native.load_library()
        self.assertIn("install the package again", str(raised.exception))


def load_tests(loader, standard, _):
    """Adds the cases of client/python/tests."""
    sys.path.insert(0, environment.TESTS)
    for path in sorted(glob.glob(os.path.join(environment.TESTS, "*_test.py"))):
        module = importlib.import_module(os.path.basename(path)[:-len(".py")])
        standard.addTests(loader.loadTestsFromModule(module))
    return standard


if __name__ == "__main__":
    unittest.main()
