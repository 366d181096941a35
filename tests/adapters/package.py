"""The Python package as pip would install it, out of what Bazel has built. Import it first.

PYTHON_PATH names the folder, for processes that need it as well.
"""
import atexit
import os
import shutil
import sys
import tempfile

NATIVE = ("client/data_plane/libkvtier_data_plane.so", "client/python/descriptors.bin")


def _assemble():
    folder = tempfile.mkdtemp(prefix="kvtier-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = os.path.join(folder, "kvtier")
    shutil.copytree("client/python/kvtier", package)
    native = os.path.join(package, "_native")
    os.makedirs(native, exist_ok=True)
    for file in NATIVE:
        os.symlink(os.path.abspath(file), os.path.join(native, os.path.basename(file)))
    return folder


PYTHON_PATH = _assemble()
sys.path.insert(0, PYTHON_PATH)
