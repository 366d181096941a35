"""A real kvtierd on the CPU backend for a test, and sessions on it."""
import package  # first: it makes kvtier importable
import os
import shutil
import subprocess
import tempfile

import kvtier

BINARY = "server/kvtierd"
PATIENCE_SECONDS = 30  # only a failure waits so long
PYTHON_PATH = package.PYTHON_PATH


class Daemon:
    """Lives as long as the test `case`."""

    def __init__(self, case, pool_bytes):
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")  # Bazel's are too deep for a socket
        case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.socket = os.path.join(folder, "kvtierd.sock")
        self._process = subprocess.Popen(
            [BINARY, "--socket=" + self.socket, "--backend=cpu", "--pool_bytes=%d" % pool_bytes],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        case.addCleanup(self.kill)

    def kill(self):
        """kill -9, and gone when this returns."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)


def start(case, pool_bytes=64 << 20):
    return Daemon(case, pool_bytes)


def open_session(case, daemon):
    opened = kvtier.open_session(daemon.socket, client_name=case.id()[-100:],
                                 wait_for_daemon=True, call_timeout=PATIENCE_SECONDS)
    case.addCleanup(opened.close)
    return opened


def start_and_open(case):
    """A daemon and a session on it."""
    daemon = start(case)
    return daemon, open_session(case, daemon)


def session(case):
    """On a daemon of its own."""
    return start_and_open(case)[1]
