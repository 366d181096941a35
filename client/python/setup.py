"""Builds the wheel of kvtier: the package and what it loads.

The data plane and the descriptors are built by Bazel from the tree around this folder (--config=portable: the
library then needs glibc alone), or taken from the folder $KVTIER_PREBUILT, which has both files.
"""
import os
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE = {  # file -> target
    "libkvtier_data_plane.so": "//client/data_plane:libkvtier_data_plane.so",
    "descriptors.bin": "//client/python:descriptors",
}


def build_native():
    """Has Bazel build the files; the folder with them."""
    tree = os.path.normpath(os.path.join(HERE, "..", ".."))
    if not os.path.exists(os.path.join(tree, "WORKSPACE")):
        raise SystemExit("kvtier: %s is not in kvtierd's tree; build there, or name a folder with "
                         "%s in KVTIER_PREBUILT" % (HERE, " and ".join(NATIVE)))
    config = "--config=portable"
    subprocess.run(["bazel", "build", config, *NATIVE.values()], cwd=tree, check=True)
    found = subprocess.run(["bazel", "info", config, "bazel-bin"], cwd=tree, check=True,
                           stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()
    folder = os.path.join(HERE, "build", "native")
    os.makedirs(folder, exist_ok=True)
    for name, target in NATIVE.items():
        path = os.path.join(found, target[2:].partition(":")[0], name)
        copy = os.path.join(folder, name)
        if os.path.exists(copy):
            os.remove(copy)
        shutil.copyfile(path, copy)
    return folder


class BuildPy(build_py):
    """Adds the files to the package."""

    def finalize_options(self):
        super().finalize_options()
        self.force = True  # what an earlier build left is older than it looks

    def run(self):
        super().run()
        source = os.environ.get("KVTIER_PREBUILT") or build_native()
        folder = os.path.join(self.build_lib, "kvtier", "_native")
        os.makedirs(folder, exist_ok=True)
        for name in NATIVE:
            shutil.copyfile(os.path.join(source, name), os.path.join(folder, name))
        library = os.path.join(folder, "libkvtier_data_plane.so")
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", library], check=True)


class BinaryDistribution(Distribution):
    """One that belongs to a platform."""

    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    """Of any Python 3 on this platform: the library has a C interface and knows no Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(distclass=BinaryDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel})
