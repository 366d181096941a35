"""What the adapters cost the host, call by call: microseconds of the calling thread.

    python adapters.py --kvtierd PATH [--device cuda]       # starts a daemon of its own
    python adapters.py --socket /run/kvtierd/kvtierd.sock [--device cuda]

Steps are eager; in a CUDA graph a step's calls are made once. Beside `swap_in` of the adapter
stands that of the package below, on the same rows. On a GPU calls only enqueue, and the device is
waited for between rounds; on the CPU backend a swap-in includes its work (all positions are hits).
Results are checked by tests, not here. Prints the median and the 99th percentile.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np

import kvtier
from kvtier.hisparse import HiSparseConfig, HiSparseCoordinator, HiSparseTier

LAYERS, TOP_K, BLOCK_SIZE, TOKENS = 4, 512, 64, 1024


class Timer:
    def __init__(self):
        self.taken = {}

    def __call__(self, name, call):
        began = time.perf_counter_ns()
        result = call()
        self.taken.setdefault(name, []).append((time.perf_counter_ns() - began) / 1e3)
        return result

    def print(self, warm_up):
        print("%-44s %10s %10s" % ("call", "p50 us", "p99 us"))
        for name, taken in self.taken.items():
            kept = sorted(taken[warm_up:])
            print("%-44s %10.1f %10.1f" % (name, statistics.median(kept),
                                           kept[int(0.99 * (len(kept) - 1))]))


def model(session, batch, device):
    config = HiSparseConfig(TOP_K, block_size=BLOCK_SIZE)
    tier = HiSparseTier(session, "benchmark", config, max_num_reqs=batch, device=device)
    layers = [HiSparseCoordinator(config, batch, 656, "fp8_ds_mla", tier=tier)
              for _ in range(LAYERS)]
    layers[1].join_group(layers[0])
    layers[3].join_group(layers[2])
    tier.bind(2 * batch * TOKENS // BLOCK_SIZE)
    return tier, layers


def measure(tier, layers, batch, rounds, timer):
    arrays, blocks = tier.arrays, TOKENS // BLOCK_SIZE
    names = ["request-%d" % i for i in range(batch)]
    for i, name in enumerate(names):
        taken = list(range(i * blocks, (i + 1) * blocks))
        tier.assign_blocks(name, taken)
        tier.mark_loaded(taken)
    topk = arrays.int32(np.tile(np.arange(TOP_K, dtype=np.int32), (batch, 1)))
    requests = arrays.int32(np.arange(batch))
    slots = arrays.int32(np.arange(batch) * TOKENS + TOKENS - 1)
    rows = layers[0].hot_cache[:batch]
    rows = rows.copy() if isinstance(rows, np.ndarray) else rows.clone()
    group = tier.cache.groups[0].index
    orders = [names, names[::-1]]
    for number in range(rounds):
        timer("set_batch, as before", lambda: tier.set_batch(orders[(number + 1) % 2]))
        timer("set_batch, another order", lambda: tier.set_batch(orders[number % 2]))
        timer("check", tier.check)
        timer("write_newest_rows, first layer",
              lambda: layers[0].write_newest_rows(rows, slots, requests))
        step = dict(req_id_per_token=requests, topk_indices=topk, block_size=BLOCK_SIZE,
                    slot_mapping=slots, produce_plan=True)
        timer("swap_in", lambda: layers[0].swap_in(**step))
        inputs = kvtier.StepInputs(topk=topk)
        timer("  swap_in of the package, same rows",
              lambda: tier.cache.swap_in(group, batch, layers=(0, 1), inputs=inputs))
        timer("apply_plan", lambda: layers[1].apply_plan(block_size=BLOCK_SIZE, num_tokens=batch))
        layers[2].write_newest_rows(rows, slots, requests)
        layers[2].swap_in(**step)
        timer("write_newest_rows, another layer",
              lambda: layers[3].write_newest_rows(rows, slots, requests))
        layers[3].apply_plan(block_size=BLOCK_SIZE, num_tokens=batch)
        timer("backup_step", tier.backup_step)
        tier.cache.synchronize()
        extra = [batch * blocks + number % (batch * blocks)]
        timer("assign_blocks, one block"
              + (", recycled" if number >= batch * blocks else ", fresh"),
              lambda: tier.assign_blocks(names[0], extra))
        timer("truncate_blocks", lambda: tier.truncate_blocks(names[0], blocks))
    for number in range(min(rounds, 200)):
        timer("finish_request and admission", lambda: (
            tier.finish_request(names[1]), tier.assign_blocks(names[1], [])))


@contextlib.contextmanager
def daemon(kvtierd, device):
    """The socket of a kvtierd that lives as long as this."""
    with tempfile.TemporaryDirectory(prefix="kvt-", dir="/tmp") as folder:
        socket = os.path.join(folder, "kvtierd.sock")
        process = subprocess.Popen(
            [kvtierd, "--socket=" + socket, "--pool_bytes=256MiB",
             "--backend=" + ("cuda" if device.startswith("cuda") else "cpu")],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield socket
        finally:
            process.terminate()
            process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket")
    where.add_argument("--kvtierd")
    parser.add_argument("--device", default="cpu", help="cpu (numpy), torch, cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=500)
    arguments = parser.parse_args()
    timer = Timer()
    with contextlib.ExitStack() as stack:
        socket = arguments.socket or stack.enter_context(
            daemon(arguments.kvtierd, arguments.device))
        session = stack.enter_context(
            kvtier.open_session(socket, wait_for_daemon=True, call_timeout=30.0))
        tier, layers = model(session, arguments.batch, arguments.device)
        stack.enter_context(tier)
        measure(tier, layers, arguments.batch, arguments.rounds, timer)
        del layers
    print("batch %d, top_k %d, %d layers in 2 groups, on %s" % (
        arguments.batch, TOP_K, LAYERS, arguments.device))
    timer.print(warm_up=20)


if __name__ == "__main__":
    main()
