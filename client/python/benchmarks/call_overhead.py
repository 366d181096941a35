"""What Python costs a swap-in: eager calls and CUDA graphs, beside the same calls in C++.

    call_overhead.py --kvtierd=PATH [--backend=cuda] [--cxx=PATH OF plane_benchmark] [--json=FILE]

Starts a daemon of its own. On a GPU the shape and the steps are those of tests/gpu/plane_benchmark.cc:
one layer group of one layer, top_k 2048, hot_size 4096, rows of 656 bytes, 8 requests; a step asks for
the same positions as the one before, but for 1 in 10, which are misses. "us" is the time from the call
to the end of the work on the stream, "host us" what the call itself takes; medians and 99th
percentiles of 300 steps after 30. With --cxx that program runs after this, on the same GPU, and its
table follows: the difference of "host us" is Python's part. On a CPU (--backend=cpu) the step is one
row of one position, so that the call is nearly all there is, and "bare" is the library's function
called through ctypes with its arguments at hand.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import kvtier
import numpy
from kvtier import native

WARM_UP, MEASURED = 30, 300
CPU_CALLS = 2000
GPU_SHAPE = dict(top_k=2048, hot_size=4096, requests=8, positions=32768)
CPU_SHAPE = dict(top_k=1, hot_size=1, requests=1, positions=64)


def percentile(values, share):
    """As plane_benchmark takes it."""
    return sorted(values)[int(share * (len(values) - 1))]


class World:
    """A daemon, a session, a cache with all rows backed, and requests."""

    def __init__(self, kvtierd, backend, shape):
        self.shape = shape
        self.folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        path = os.path.join(self.folder, "d.sock")
        self.process = subprocess.Popen(
            [kvtierd, "--socket=" + path, "--backend=" + backend, "--pool_bytes=1GiB"],
            stderr=subprocess.DEVNULL)
        self.session = kvtier.open_session(path, wait_for_daemon=True, call_timeout=60)
        blocks = shape["positions"] // 64
        self.cache = self.session.attach("kv", kvtier.CacheLayout(
            [kvtier.LayerGroup([kvtier.Layer(row_bytes=656)], shape["top_k"], shape["hot_size"])],
            blocks * shape["requests"], shape["requests"]))
        self.regions = []
        for number in range(shape["requests"]):
            request = self.cache.admit("r%d" % number)
            request.assign_blocks(blocks)
            self.cache.mark_backed(0, request.slots_of(range(shape["positions"])))
            self.regions.append(request.region)

    def close(self):
        """Ends both."""
        self.session.close()
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def gpu_rows(world):
    """[(name, us, p99 us, host us)] on a GPU."""
    import torch  # pylint: disable=import-outside-toplevel
    import kvtier.torch_ops  # pylint: disable=import-outside-toplevel
    shape, cache = world.shape, world.cache
    requests, top_k = shape["requests"], shape["top_k"]
    topk = cache.groups[0].topk.torch()
    cache.row_to_request.torch().copy_(torch.tensor(world.regions))
    cache.newest_slot.torch().fill_(-1)
    cache.num_real_rows.torch().fill_(requests)
    misses = top_k // 10
    chosen = [((torch.arange(top_k, dtype=torch.int32) + step * misses) % shape["positions"])
              .repeat(requests, 1).pin_memory() for step in range(WARM_UP + MEASURED)]
    stream = torch.cuda.Stream()
    handle = stream.cuda_stream
    steps, inputs = kvtier.torch_ops.Steps(cache), kvtier.StepInputs(topk=topk.clone())
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        cache.swap_in(0, requests)
    operator_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(operator_graph, stream=stream):
        steps.swap_in(0, requests)
    bare, plane = native.LIBRARY.kvtier_swap_in, cache.memory.handle
    calls = [
        ("graph", topk, graph.replay),
        ("graph of the operator", topk, operator_graph.replay),
        ("eager, bare library", topk, lambda: bare(plane, 0, requests, -1, 0, 0, None, handle)),
        ("eager, stream by number", topk, lambda: cache.swap_in(0, requests, stream=handle)),
        ("eager, current stream", topk, lambda: cache.swap_in(0, requests)),
        ("eager, own tensors", inputs.topk, lambda: cache.swap_in(0, requests, inputs=inputs)),
        ("eager, operator", topk, lambda: steps.swap_in(0, requests)),
    ]
    rows = []
    with torch.cuda.stream(stream):
        for name, buffer, call in calls:
            total, host = [], []
            before = cache.counters(0).misses
            for step, positions in enumerate(chosen):
                buffer.copy_(positions, non_blocking=True)
                stream.synchronize()
                begin = time.perf_counter()
                call()
                returned = time.perf_counter()
                stream.synchronize()
                end = time.perf_counter()
                if step >= WARM_UP:
                    total.append((end - begin) * 1e6)
                    host.append((returned - begin) * 1e6)
            per_step = (cache.counters(0).misses - before) / len(chosen)
            rows.append((name, statistics.median(total), percentile(total, 0.99),
                         statistics.median(host), per_step))
    del graph, operator_graph, steps
    return rows


def cpu_rows(world):
    """The same on a CPU, where the call is all."""
    cache = world.cache
    cache.groups[0].topk.numpy()[0] = 3
    cache.row_to_request.numpy()[0] = world.regions[0]
    cache.newest_slot.numpy()[0], cache.num_real_rows.numpy()[0] = -1, 1
    inputs = kvtier.StepInputs(topk=numpy.full((1, 1), 3, numpy.int32))
    bare, plane = native.LIBRARY.kvtier_swap_in, cache.memory.handle
    calls = [("ctypes, nothing done", native.LIBRARY.kvtier_has_cuda),
             ("bare library", lambda: bare(plane, 0, 1, -1, 0, 0, None, None)),
             ("eager", lambda: cache.swap_in(0, 1)),
             ("eager, own tensors", lambda: cache.swap_in(0, 1, inputs=inputs))]
    rows = []
    for name, call in calls:
        times = []
        for i in range(CPU_CALLS):
            begin = time.perf_counter()
            call()
            if i >= CPU_CALLS // 10:
                times.append((time.perf_counter() - begin) * 1e6)
        rows.append((name, statistics.median(times), percentile(times, 0.99),
                     statistics.median(times), 0))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvtierd", required=True)
    parser.add_argument("--backend", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--cxx")
    parser.add_argument("--json")
    options = parser.parse_args()
    gpu = options.backend == "cuda"
    world = World(options.kvtierd, options.backend, GPU_SHAPE if gpu else CPU_SHAPE)
    try:
        rows = gpu_rows(world) if gpu else cpu_rows(world)
    finally:
        world.close()
    print("Python %s, kvtier %s" % (sys.version.split()[0], kvtier.__version__))
    print("| Python | us | p99 us | host us | misses/step |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print("| %s | %.1f | %.1f | %.1f | %d |" % row)
    sys.stdout.flush()
    if options.json:
        names = ("name", "us", "p99_us", "host_us", "misses_per_step")
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([dict(zip(names, row)) for row in rows], file, indent=1)
    if options.cxx:
        print("C++ (%s):" % os.path.basename(options.cxx))
        sys.stdout.flush()
        return subprocess.run([options.cxx], timeout=120, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
