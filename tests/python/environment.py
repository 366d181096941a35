"""A wheel of the package, built from the source tree, and fresh environments that have it."""
import glob
import os
import shutil
import subprocess
import sys
import venv

TREE = os.path.abspath("client/python")
TESTS = os.path.join(TREE, "tests")


def build_wheel(folder, library, descriptors):
    """The wheel's path. `library` and `descriptors` are what Bazel has built for it."""
    prebuilt, source = os.path.join(folder, "prebuilt"), os.path.join(folder, "source")
    os.mkdir(prebuilt)
    for path in (library, descriptors):
        shutil.copy(path, prebuilt)
    shutil.copytree(TREE, source)  # pip writes beside what it builds
    wheels = os.path.join(folder, "wheels")
    pip(sys.executable, folder, "wheel", "--no-index", "--no-build-isolation", "--no-deps",
        "--wheel-dir", wheels, source, KVTIER_PREBUILT=prebuilt)
    found = glob.glob(wheels + "/*.whl")
    assert len(found) == 1, found
    return found[0]


def make(folder, name, system_packages):
    """The Python of a fresh environment."""
    environment = os.path.join(folder, name)
    venv.create(environment, system_site_packages=system_packages, with_pip=not system_packages)
    return os.path.join(environment, "bin", "python")


def pip(python, folder, *arguments, **variables):
    """Runs pip of `python`, at home in `folder`. Raises CalledProcessError with what it said."""
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
                   env={**os.environ, "HOME": folder, **variables}, check=True, cwd=folder,
                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def packages_of(python):
    """The folder that `python` imports installed packages from."""
    result = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                            stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout.strip()
