"""The demo: a daemon, two workers, real top-k traces, every row checked.

tools/demo builds what this needs and starts it. It runs a daemon in a folder of its own, lets one
worker decode in-process and another one through RunSteps, both on one cache, shows the daemon's
own statistics meanwhile, and at the end compares them with what the workers counted. The last
line is

    demo: steps=N rows_checked=N mismatched_rows=N hits=N misses=N hit_rate=0.xxx

steps: tokens decoded; rows: of all layers; hits, misses and the rate are the daemon's. The exit
status is 0 only if no row differed and all counts agree.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import grpc

from proto.kvtier.v1 import admin_pb2, admin_pb2_grpc

DOCUMENTS = ["novel", "essay", "c_source", "python_source", "manual", "java_source"]
BLOCK_SIZE = 64
POSITIONS = 16384
LAYERS_PER_GROUP = 2
ROW_BYTES = 656
# Blocks beyond those of the prompts: some for requests that come before others have gone.
SPARE_BLOCKS = 32

START_SECONDS = 60
STOP_SECONDS = 20
TERMINAL_INTERVAL = 0.1
LOG_INTERVAL = 2.0


class DemoError(Exception):
    """Why the demo failed, for people."""


def die_with_parent():
    """In a child before exec: killed with this process, whatever kills it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Worker:
    """A worker process and what it said last."""

    def __init__(self, name, command, log_path):
        self.name = name
        self.log_path = log_path
        self.totals = {}
        self.done = False
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, preexec_fn=die_with_parent)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            self.totals = said.get("done") or said.get("progress") or self.totals
            self.done = self.done or "done" in said

    def check(self):
        """Raises if the process ended before it was done."""
        status = self.process.poll()
        if status is None or self.done:
            return
        raise DemoError("worker %s ended with status %s:\n%s"
                        % (self.name, status, tail(self.log_path)))

    def leave(self):
        """Lets a worker that is done end its session."""
        self.process.stdin.close()
        if self.process.wait(timeout=STOP_SECONDS) != 0:
            raise DemoError("worker %s ended with status %s:\n%s"
                            % (self.name, self.process.returncode, tail(self.log_path)))


def tail(path, lines=15):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError as error:
        return str(error)


def stop(process, name):
    """SIGTERM, then SIGKILL; to this process alone."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print("demo: %s did not stop within %d s; killing it" % (name, STOP_SECONDS),
              file=sys.stderr)
        process.kill()
        process.wait()


class Demo:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="kvtierd-demo-", dir="/tmp")
        self.socket = os.path.join(self.folder, "kvtierd.sock")
        self.daemon_log = os.path.join(self.folder, "kvtierd.log")
        self.daemon = None
        self.workers = []
        self.channel = None
        self.admin = None
        documents = DOCUMENTS[: options.documents]
        self.documents = [documents[0::2], documents[1::2]]
        self.block_count = len(documents) * (POSITIONS // BLOCK_SIZE) + SPARE_BLOCKS
        self.steps = len(documents) * options.steps
        self.started = time.monotonic()

    def pool_bytes(self):
        used = self.block_count * BLOCK_SIZE * self.options.groups * LAYERS_PER_GROUP * ROW_BYTES
        huge_page = 2 << 20
        # Each layer's rows may be aligned up.
        return (used // huge_page + 2 + LAYERS_PER_GROUP * self.options.groups) * huge_page

    def start_daemon(self):
        command = [self.options.daemon, "--socket=" + self.socket,
                   "--backend=" + self.options.backend,
                   "--pool_bytes=%d" % self.pool_bytes()] + self.options.daemon_flag
        with open(self.daemon_log, "wb") as log:
            self.daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=die_with_parent)
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            self.check_daemon()
            if time.monotonic() > deadline:
                raise DemoError("kvtierd was not ready within %d s:\n%s"
                                % (START_SECONDS, tail(self.daemon_log)))
            time.sleep(0.02)

    def ready(self):
        """Does the daemon answer, and is its pool pinned?"""
        if not os.path.exists(self.socket):
            return False  # a channel that is refused once waits a second before it tries again
        if self.admin is None:
            self.channel = grpc.insecure_channel("unix:" + self.socket)
            self.admin = admin_pb2_grpc.KvTierAdminStub(self.channel)
        return self.stats().pool.state == admin_pb2.POOL_STATE_READY

    def check_daemon(self):
        if self.daemon.poll() is not None:
            raise DemoError("kvtierd ended with status %s:\n%s"
                            % (self.daemon.returncode, tail(self.daemon_log)))

    def stats(self):
        return self.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=5, wait_for_ready=True)

    def start_workers(self):
        for index, (plane, documents) in enumerate(zip(["in_process", "rpc"], self.documents)):
            name = "demo-worker-%s" % "ab"[index]
            traces = [os.path.join(self.options.traces, d + ".kvtrace") for d in documents]
            command = [self.options.worker, "--socket=" + self.socket, "--name=" + name,
                       "--plane=" + plane, "--traces=" + ",".join(traces),
                       "--steps=%d" % self.options.steps, "--groups=%d" % self.options.groups,
                       "--requests_per_document=%d" % self.options.requests,
                       "--block_count=%d" % self.block_count,
                       "--eviction=" + self.options.eviction]
            if self.options.inject == "corrupt_row" and index == 0:
                command.append("--corrupt_row")
            self.workers.append(Worker(name, command, os.path.join(self.folder, name + ".log")))

    def totals(self):
        """What all workers counted, added up."""
        sums = {}
        for worker in self.workers:
            for key, value in worker.totals.items():
                sums[key] = sums.get(key, 0) + value
        return sums

    def watch(self):
        """Shows progress until every worker is done."""
        terminal = sys.stdout.isatty()
        shown = 0.0
        while not all(worker.done for worker in self.workers):
            self.check_daemon()
            for worker in self.workers:
                worker.check()
            now = time.monotonic()
            if now - shown >= (TERMINAL_INTERVAL if terminal else LOG_INTERVAL):
                shown = now
                self.show(terminal)
            time.sleep(0.05)
        self.show(terminal)
        if terminal:
            print()

    def show(self, terminal):
        totals = self.totals()
        counters = self.stats().counters
        done = totals.get("decode_steps", 0) / self.steps
        rate = "%.3f" % counters.hit_rate if counters.HasField("hit_rate") else "-----"
        text = "%3d %%  hit rate %s (daemon)  rows checked %s  mismatched %s" % (
            100 * done, rate, format(totals.get("rows_checked", 0), ","),
            format(totals.get("mismatched_rows", 0), ","))
        if terminal:
            width = 24
            bar = "#" * int(width * done)
            print("\r[%-*s] %s\033[K" % (width, bar, text), end="", flush=True)
        else:
            print("demo: " + text, flush=True)

    def recount(self, counters):
        """Names of counters that differ between the daemon and the workers."""
        totals = self.totals()
        expected = {
            "steps": totals["swap_ins"],
            "hits": totals["hits"],
            "misses": totals["misses"],
            "newest": totals["newest"],
            "rows_copied": totals["misses"],
            "rows_kept": totals["kept"],
            "bytes_copied": (totals["misses"] - totals["kept"]) * LAYERS_PER_GROUP * ROW_BYTES,
            "backed_up_rows": totals["backed_up_rows"],
            "backed_up_bytes": totals["backed_up_rows"] * LAYERS_PER_GROUP * ROW_BYTES,
            "unbacked_reads": 0, "unsourced": 0, "unplaced": 0, "invalid": 0, "duplicates": 0,
            "state_repairs": 0, "rejected_rows": 0,
        }
        return ["%s: the daemon counted %d, the workers %d" % (name, getattr(counters, name), value)
                for name, value in expected.items() if getattr(counters, name) != value]

    def finish(self):
        """Compares all counts, twice: while the sessions are open, and after they have ended."""
        for worker in self.workers:
            worker.check()
        problems = self.recount(self.stats().counters)
        if self.options.keep:
            self.keep()
        for worker in self.workers:
            worker.leave()
        deadline = time.monotonic() + STOP_SECONDS
        while self.stats().sessions or self.stats().caches:
            if time.monotonic() > deadline:
                problems.append("sessions or caches are left after the workers have gone")
                break
            time.sleep(0.02)
        counters = self.stats().counters
        problems += ["after the workers left, " + p for p in self.recount(counters)]
        used = self.stats().pool.used_bytes
        if used:
            problems.append("%d bytes of the host pool are still in use" % used)
        totals = self.totals()
        if totals["decode_steps"] != self.steps:
            problems.append("%d steps instead of %d" % (totals["decode_steps"], self.steps))
        if totals["mismatched_rows"]:
            problems.append("%d of %d rows hold other bytes than were written"
                            % (totals["mismatched_rows"], totals["rows_checked"]))
        for problem in problems:
            print("demo: FAILED: " + problem, file=sys.stderr)
        print("demo: steps=%d rows_checked=%d mismatched_rows=%d hits=%d misses=%d hit_rate=%.3f"
              % (totals["decode_steps"], totals["rows_checked"], totals["mismatched_rows"],
                 counters.hits, counters.misses, counters.hit_rate), flush=True)
        return 1 if problems else 0

    def keep(self):
        print("demo: the daemon is at %s until you press Enter" % self.socket)
        print("demo: " + self.grpcurl(), flush=True)
        sys.stdin.readline()

    def grpcurl(self):
        return "grpcurl -plaintext -unix %s kvtier.v1.KvTierAdmin/GetStats" % self.socket

    def run(self):
        self.start_daemon()
        node = self.admin.GetNodeInfo(admin_pb2.GetNodeInfoRequest(), timeout=5)
        print("demo: kvtierd %s on %s, host pool %d MiB, ready after %.1f s" % (
            node.version, ", ".join(d.uuid for d in node.devices), node.pool.total_bytes >> 20,
            time.monotonic() - self.started))
        print("demo: %d documents of %d tokens, %d steps each, %d layer groups of %d layers, "
              "rows of %d bytes, top_k 256, hot_size 512"
              % (self.options.documents, POSITIONS, self.options.steps, self.options.groups,
                 LAYERS_PER_GROUP, ROW_BYTES))
        print("demo: the same numbers:  " + self.grpcurl(), flush=True)
        self.start_workers()
        self.watch()
        return self.finish()

    def clean(self):
        for worker in self.workers:
            stop(worker.process, worker.name)
        if self.channel is not None:
            self.channel.close()
        stop(self.daemon, "kvtierd")
        shutil.rmtree(self.folder, ignore_errors=True)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="tools/demo", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--daemon", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--worker", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--traces", default="tests/traces", help=argparse.SUPPRESS)
    parser.add_argument("--inject", choices=["corrupt_row"], help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--keep", action="store_true",
                        help="leave the daemon up until Enter, to play with grpcurl")
    parser.add_argument("--eviction", choices=["lru", "aged"], default="lru",
                        help="which rows give way to those that are missing (default: lru)")
    parser.add_argument("--steps", type=int, default=256, help="steps of each document, 2..256")
    parser.add_argument("--documents", type=int, default=6, help="2..6; half for each worker")
    parser.add_argument("--groups", type=int, default=4, help="layer groups, 1..4")
    parser.add_argument("--requests", type=int, default=3, help="requests a document is cut into")
    parser.add_argument("--daemon_flag", action="append", default=[], metavar="FLAG",
                        help="a further flag of kvtierd; may be repeated")
    options = parser.parse_args(argv)
    if not (2 <= options.steps <= 256 and options.documents in (2, 4, 6)
            and 1 <= options.groups <= 4 and 1 <= options.requests < options.steps):
        parser.error("--steps 2..256, --documents 2, 4 or 6, --groups 1..4, --requests < steps")
    return options


def on_signal(number, _):
    raise SystemExit(128 + number)


def main(argv):
    options = parse(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    demo = Demo(options)
    try:
        return demo.run()
    except DemoError as error:
        print("\ndemo: FAILED: %s" % error, file=sys.stderr)
        return 1
    except grpc.RpcError as error:
        print("\ndemo: FAILED: a call to kvtierd: %s\n%s" % (error, tail(demo.daemon_log)),
              file=sys.stderr)
        return 1
    finally:
        # A second Ctrl-C must not leave anything behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        demo.clean()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
