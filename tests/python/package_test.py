"""Installs the package from the source tree into a fresh environment, and runs its tests there.

    package_test.py LIBRARY DESCRIPTORS

The cases are those of client/python/tests, and run in this process on the installed package. grpcio, protobuf and numpy are the system's: nothing is downloaded.
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
import venv

TREE = os.path.abspath("client/python")
TESTS = os.path.join(TREE, "tests")
_FOLDER = tempfile.mkdtemp(prefix="kvt-package-")
unittest.addModuleCleanup(shutil.rmtree, _FOLDER, ignore_errors=True)


def prebuilt():
    """A folder with what Bazel has built."""
    folder = os.path.join(_FOLDER, "prebuilt")
    os.mkdir(folder)
    for path in sys.argv[1:3]:
        shutil.copy(path, folder)
    return folder


def install():
    """The environment's folder of packages."""
    source = os.path.join(_FOLDER, "source")  # pip writes beside what it builds
    shutil.copytree(TREE, source)
    environment = os.path.join(_FOLDER, "environment")
    venv.create(environment, system_site_packages=True)
    python = os.path.join(environment, "bin", "python")
    wheels = os.path.join(_FOLDER, "wheels")
    pip = [python, "-m", "pip"]
    variables = {**os.environ, "KVTIER_PREBUILT": prebuilt(), "HOME": _FOLDER}
    for command in (pip + ["wheel", "--quiet", "--no-index", "--no-build-isolation", "--no-deps",
                           "--wheel-dir", wheels, source],
                    pip + ["install", "--quiet", "--no-index", "--no-deps", "--find-links",
                       wheels, "kvtier"]):
        subprocess.run(command, env=variables, check=True, cwd=_FOLDER)
    found = glob.glob(os.path.join(environment, "lib", "*", "site-packages", "kvtier"))
    assert len(found) == 1, found
    return os.path.dirname(found[0]), glob.glob(wheels + "/*.whl"), python


PACKAGES, WHEELS, PYTHON = install()
sys.path.insert(0, PACKAGES)


class PackageTest(unittest.TestCase):
    def test_one_wheel_for_every_python_of_this_platform(self):
        self.assertEqual(len(WHEELS), 1)
        self.assertRegex(os.path.basename(WHEELS[0]), r"^kvtier-[\d.]+-py3-none-linux_x86_64.whl$")

    def test_the_installed_package_is_tested(self):
        kvtier = importlib.import_module("kvtier")
        self.assertTrue(kvtier.__file__.startswith(PACKAGES), kvtier.__file__)
        for name in ("py.typed", "_native/descriptors.bin", "_native/libkvtier_data_plane.so"):
            self.assertTrue(os.path.exists(os.path.join(PACKAGES, "kvtier", name)), name)

    def test_it_imports_no_framework(self):
        code = ("import kvtier, kvtier.aio, kvtier.admin, sys;"
                "assert 'torch' not in sys.modules; print(kvtier.__version__)")
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                env={**os.environ, "PYTHONPATH": PACKAGES}, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_the_source_tree_says_that_it_must_be_installed(self):
        result = subprocess.run([sys.executable, "-c", "import kvtier"], capture_output=True,
                                text=True, check=False,
                                env={**os.environ, "PYTHONPATH": os.path.join(_FOLDER, "source")})
        self.assertIn("install it again (pip install client/python)", result.stderr)

    def test_a_library_of_another_build_is_refused(self):
        native = importlib.import_module("kvtier.native")
        with self.assertRaises(ImportError) as raised:
            native.load_library(os.path.join(_FOLDER, "none.so"))
        self.assertIn("install it again", str(raised.exception))
        with unittest.mock.patch.object(native, "ABI_VERSION", 2):
            with self.assertRaises(ImportError) as raised:
                native.load_library()
        self.assertIn("install the package again", str(raised.exception))


def load_tests(loader, standard, _):
    """Adds the cases of client/python/tests."""
    sys.path.insert(0, TESTS)
    for path in sorted(glob.glob(os.path.join(TESTS, "*_test.py"))):
        module = importlib.import_module(os.path.basename(path)[:-len(".py")])
        standard.addTests(loader.loadTestsFromModule(module))
    return standard


if __name__ == "__main__":
    unittest.main()
