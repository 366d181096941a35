"""A real kvtierd on the CPU backend, in a folder of its own, and sessions on it."""
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import grpc
import reflection

BINARY = "server/kvtierd"
POOL_BYTES = 64 << 20
PATIENCE_SECONDS = 30  # only a failure waits so long

ADMIN = "kvtier.v1.KvTierAdmin/"
TIER = "kvtier.v1.KvTier/"
HEALTH = "grpc.health.v1.Health/Check"


def keeps_freed_memory():
    """Whether the daemon was built with the address sanitizer, which gives freed memory back late."""
    with open(BINARY, "rb") as binary:
        return b"__asan_init" in binary.read()


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


def new_folder(case):
    """A folder under /tmp, removed after the test: Bazel's own are too deep for a socket."""
    folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
    case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder


def without_windows(stats):
    """What was counted, less the rates: those change while nothing happens."""
    if isinstance(stats, dict):
        return {k: without_windows(v) for k, v in stats.items() if k != "window"}
    return [without_windows(v) for v in stats] if isinstance(stats, list) else stats


class Process:
    """A kvtierd that may or may not come up.

    `before`: a command that starts it, like prlimit. Popen's own means (preexec_fn, user) fork, and
    a process in which gRPC runs may hang there."""

    def __init__(self, case, socket, flags=(), binary=BINARY, before=(), **popen):
        self.socket = socket
        self.log = tempfile.TemporaryFile("w+")
        case.addCleanup(self.log.close)
        self.process = subprocess.Popen(
            [*before, binary, "--socket=" + socket, "--backend=cpu", "--pool_bytes=%d" % POOL_BYTES,
             *flags], stdin=subprocess.DEVNULL, stderr=self.log, **popen)
        case.addCleanup(self.check_sanitizers)
        case.addCleanup(self.kill)

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def wait(self, seconds=PATIENCE_SECONDS):
        """The exit code, once it has ended; negative: a signal."""
        return self.process.wait(seconds)

    def stop(self, seconds=PATIENCE_SECONDS):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self):
        """kill -9, and gone when this returns."""
        if self.running():
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def text(self):
        """What it has logged so far."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def check_sanitizers(self):
        """Where it was built with one: it has found nothing, also if the process went on."""
        text = self.text()
        for word in ("Sanitizer: ", "runtime error: "):
            if word in text:
                raise AssertionError("kvtierd:\n" + text[max(0, text.index(word) - 200):][:20000])

    def wait_for_event(self, event):
        wait_until(lambda: " event=%s" % event in self.text() or not self.running(),
                   "event %s\n%s" % (event, self.text()))
        if " event=%s" % event not in self.text():
            raise AssertionError("kvtierd ended with %s\n%s" % (self.wait(), self.text()))


class Daemon(Process):
    """A kvtierd that serves, with its pool ready."""

    def __init__(self, case, flags=(), socket=None, **popen):
        super().__init__(case, socket or os.path.join(new_folder(case), "d.sock"), flags, **popen)
        self.client = self.connect(case)
        self.wait_until_ready()

    def connect(self, case):
        """A client with a connection of its own."""
        client = reflection.Client("unix:" + self.socket)
        case.addCleanup(client.close)
        return client

    def wait_until_ready(self):
        self.wait_for_event("listening")

        def is_ready():
            if not self.running():
                raise AssertionError("kvtierd ended with %d\n%s" % (self.wait(), self.text()))
            return self.health() == "SERVING"
        wait_until(is_ready, "the pool is ready")

    def stats(self):
        """GetStats as JSON."""
        return reflection.to_json(self.client.call(ADMIN + "GetStats"))

    def state(self):
        """All that an operator can see, less the time at which it was seen."""
        call = self.client.call
        stats = without_windows(self.stats())
        del stats["time"]
        state = {"stats": stats,
                 "info": reflection.to_json(call(ADMIN + "GetNodeInfo")),
                 "caches": reflection.to_json(call(ADMIN + "ListCaches")),
                 "sessions": reflection.to_json(call(ADMIN + "ListSessions"))}
        for cache in stats["caches"]:
            name = cache["cache"]
            state["requests of " + name] = reflection.to_json(
                call(ADMIN + "ListRequests", {"cache": name}))
        return state

    def health(self, service="", client=None):
        """"SERVING" or "NOT_SERVING"."""
        answer = (client or self.client).call(HEALTH, {"service": service})
        return reflection.to_json(answer)["status"]

    def rss_bytes(self):
        with open("/proc/%d/statm" % self.pid) as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptor_count(self):
        return len(os.listdir("/proc/%d/fd" % self.pid))

    def threads(self):
        """Names of its threads, sorted. Those of its own begin with kv; how many of gRPC's there are
        depends on the load."""
        names = []
        for thread in os.listdir("/proc/%d/task" % self.pid):
            try:
                with open("/proc/%d/task/%s/comm" % (self.pid, thread)) as name:
                    names.append(name.read().strip())
            except (FileNotFoundError, ProcessLookupError):
                continue  # has ended meanwhile
        return sorted(names)

    def own_threads(self):
        return [name for name in self.threads() if name.startswith("kv")]


class Session:
    """A worker's session: open until closed, or until the test has ended."""

    def __init__(self, case, daemon, name="worker", client=None):
        self.client = client or daemon.client
        self.events = queue.Queue()
        self.end = None  # the CallError that the stream ended with
        self._stream = self.client.stream(TIER + "OpenSession", {"client_name": name})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        case.addCleanup(self.close)
        opened = self.events.get(timeout=PATIENCE_SECONDS)
        if opened is None:
            raise self.end
        self.opened = opened.opened
        self.id = self.opened.session_id

    def _read(self):
        try:
            for event in self._stream:
                self.events.put(event)
        except grpc.RpcError as error:
            self.end = self.client.error_of(error)
        self.events.put(None)

    def close(self):
        self._stream.cancel()
        self._reader.join(PATIENCE_SECONDS)

    def wait_until_ended(self):
        """The kinds of the events that were left, in order."""
        kinds = []
        for event in iter(lambda: self.events.get(timeout=PATIENCE_SECONDS), None):
            kinds.append(event.WhichOneof("event"))
        self._reader.join(PATIENCE_SECONDS)
        return kinds

    def call(self, method, fields=None, **options):
        return self.client.call(TIER + method, self.fields(fields), **options)

    def start(self, method, fields=None, **options):
        return self.client.start(TIER + method, self.fields(fields), **options)

    def fields(self, fields):
        return {"session_id": self.id, **(fields or {})}


def layout(block_count=8, block_size=16, max_requests=2, top_k=4, hot_size=8, row_bytes=64,
           layers=1, **more):
    """A cache of one layer group."""
    layer = {"row_format": "ROW_FORMAT_CONTIGUOUS", "row_bytes": row_bytes}
    return {"groups": [{"layers": [layer] * layers, "top_k": top_k, "hot_size": hot_size}],
            "block_size": block_size, "block_count": block_count, "max_requests": max_requests,
            **more}
