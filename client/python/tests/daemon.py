"""A real kvtierd on the CPU backend (or the one that $KVTIER_TEST_BACKEND names), and sessions on it.

$KVTIERD is the binary: server/kvtierd unless set.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time

import kvtier
import kvtier.admin

BINARY = os.environ.get("KVTIERD", "server/kvtierd")
BACKEND = os.environ.get("KVTIER_TEST_BACKEND", "cpu")
POOL_BYTES = 64 << 20
PATIENCE_SECONDS = 30  # only a failure waits so long


def wait_until(condition, what, seconds=PATIENCE_SECONDS):
    """What `condition()` gives once that is true. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within %g s: %s" % (seconds, what))
        time.sleep(0.01)


def new_folder(case, parent="/tmp"):
    """A folder removed after the test; under /tmp, as Bazel's own are too deep for a socket."""
    folder = tempfile.mkdtemp(prefix="kvt-", dir=parent)
    case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Daemon:
    """A kvtierd that serves, with its pool ready. Flags: pool_bytes=..., any other of kvtierd's."""

    def __init__(self, case, **flags):
        self.socket = os.path.join(new_folder(case), "d.sock")
        flags = {"backend": BACKEND, "pool_bytes": POOL_BYTES, **flags}
        self.log = tempfile.TemporaryFile("w+")
        case.addCleanup(self.log.close)
        self.process = subprocess.Popen(
            [BINARY, "--socket=" + self.socket] + ["--%s=%s" % item for item in flags.items()],
            stdin=subprocess.DEVNULL, stderr=self.log)
        case.addCleanup(self.kill)
        wait_until(self._is_ready, "the daemon is ready")

    def _is_ready(self):
        text = os.pread(self.log.fileno(), 1 << 20, 0).decode()
        if self.process.poll() is not None:
            raise AssertionError("kvtierd ended with %s\n%s" % (self.process.returncode, text))
        return " event=ready" in text and " event=listening" in text

    def session(self, case, **options):
        """A session that is closed after the test."""
        session = kvtier.open_session(self.socket, **options)
        case.addCleanup(session.close)
        return session

    def stats(self):
        """GetStats."""
        with kvtier.admin.Admin(self.socket) as admin:
            return admin.call("GetStats")

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self):
        """kill -9, and gone when this returns."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


def start_and_open(case, **flags):
    """(daemon, session) of a test."""
    daemon = Daemon(case, **flags)
    return daemon, daemon.session(case)


def session(case, **flags):
    """A session on a daemon of its own."""
    return start_and_open(case, **flags)[1]


def layout(block_count=8, block_size=16, max_requests=2, top_k=4, hot_size=8, row_bytes=64,
           layers=1, **more):
    """A cache of one layer group."""
    rows = [kvtier.Layer(row_bytes=row_bytes)] * layers
    return kvtier.CacheLayout([kvtier.LayerGroup(rows, top_k, hot_size)], block_count,
                              max_requests, block_size=block_size, **more)
