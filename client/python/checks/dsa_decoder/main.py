"""Decodes with DeepSeek's sparse attention over kvtierd, and compares every attention output, bit
for bit, with the same decoder over a full cache.

    python main.py --kvtierd PATH             # starts a daemon of its own
    python main.py --socket /run/kvtierd/kvtierd.sock

On a GPU each step is a CUDA graph. Ends with a table, and status 1 if an output differs, if nothing
was evicted, recycled, reordered or finished, or with --mutate if nothing differs. Status 77: there
is no torch that is new enough.
"""
import argparse
import contextlib
import datetime
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time

try:
    import torch

    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 4):
        raise ImportError("torch %s is too old" % torch.__version__)
except ImportError as error:
    print("SKIPPED: needs torch >= 2.4: %s" % error, flush=True)
    sys.exit(77)

import kvtier
from kvtier.hisparse import Ranks

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model
import scheduler
import sglang_side
import sides

SMALL = dict(batch=4, context=384, top_k=32, hot_size=40, block_size=16, hidden=64, heads=2)
LARGE = dict(batch=8, context=16384, top_k=512, hot_size=640, block_size=64, hidden=256, heads=4)


def flags():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", help="of a daemon that runs")
    where.add_argument("--kvtierd", help="the binary; starts a daemon of its own")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=("small", "large"), help="large on a GPU, else small")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the daemon")
    parser.add_argument("--ranks", type=int, default=1,
                        help="processes that share one copy of the rows (vllm), a GPU each if "
                        "there are as many")
    parser.add_argument("--rank", help=argparse.SUPPRESS)  # NUMBER,FILE of a process of --ranks
    parser.add_argument("--adapters", default="vllm,vllm-together,sglang",
                        help="together: one launch copies for all layers of a group")
    parser.add_argument("--dtypes", default="bfloat16,fp8_ds_mla")
    parser.add_argument("--eager", action="store_true", help="no graph on a GPU")
    parser.add_argument("--mutate", action="store_true",
                        help="break invalidation (vllm) or backup (sglang): a difference must show")
    parser.add_argument("--seconds", type=int, default=480, help="ends with status 1 after so many")
    arguments = parser.parse_args()
    if arguments.mutate and arguments.ranks > 1:
        parser.error("ranks meet where blocks are recycled: no --mutate with --ranks")
    return arguments


@contextlib.contextmanager
def daemon(binary, device, pool_bytes):
    """The socket of a kvtierd that lives as long as this."""
    with tempfile.TemporaryDirectory(prefix="kvt-", dir="/tmp") as folder:
        socket = os.path.join(folder, "kvtierd.sock")
        backend = "cpu" if device == "cpu" else "cuda"
        with open(os.path.join(folder, "log"), "w+") as log:
            process = subprocess.Popen(
                [binary, "--socket=" + socket, "--backend=" + backend,
                 "--pool_bytes=%d" % pool_bytes], stdin=subprocess.DEVNULL, stderr=log)
            try:
                yield socket
            except BaseException:
                log.seek(0)
                print("kvtierd said:\n" + log.read()[-4000:], file=sys.stderr, flush=True)
                raise
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def break_something(adapter, tier):
    """What an adapter does that forgets: the vLLM one that blocks are recycled, so that they go
    from one to another as they are; the SGLang one that rows are backed up."""
    if adapter != "sglang":
        tier.blocks.recycle = lambda blocks: None
    else:
        tier._backup_previous_tokens = lambda count: None


def rank_of(arguments):
    """Ranks of this process, and the name that its caches have in all of them."""
    if arguments.rank is None:
        return Ranks(), str(os.getpid())
    number, _, file = arguments.rank.partition(",")
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + file, rank=int(number), world_size=arguments.ranks,
        timeout=datetime.timedelta(seconds=60))
    return Ranks(number == "0", torch.distributed.barrier), "shared"


def tiered_side(adapter, decoder, session, cache, size, sizes, ranks):
    if adapter == "sglang":
        return sglang_side.SglangCache(decoder, session, cache, hot_size=size["hot_size"], **sizes)
    return sides.TieredCache(decoder, session, cache, hot_size=size["hot_size"], ranks=ranks,
                             with_leader=adapter == "vllm-together", **sizes)


def decode(session, arguments, adapter, kv_dtype, size, ranks, name):
    """One row of the table."""
    shape = model.Shape(top_k=size["top_k"], hidden=size["hidden"], heads=size["heads"],
                        kv_dtype=kv_dtype)
    decoder = model.Decoder(shape, arguments.seed, arguments.device)
    blocks_of_one = -(-size["context"] // size["block_size"])
    sizes = dict(batch=size["batch"], num_blocks=size["batch"] * blocks_of_one + size["batch"],
                 block_size=size["block_size"])
    listening = dict(sizes, max_tokens=size["context"], device=arguments.device)
    full = sides.FullCache(decoder, **listening)
    cache = "decoder-%s-%s-%s" % (adapter, kv_dtype, name)
    tiered = tiered_side(adapter, decoder, session, cache, size, listening, ranks)
    with tiered.tier:
        if arguments.mutate:
            break_something(adapter, tiered.tier)
        if arguments.device != "cpu" and not arguments.eager:
            full.capture()
            tiered.capture()
        driver = scheduler.Scheduler(
            [full, tiered], max_tokens=size["context"], seed=arguments.seed,
            compact=adapter == "sglang", **sizes)
        different, compared, seconds = 0, 0, [0.0, 0.0]
        for step in range(arguments.steps):
            driver.begin_step(step)
            for index, side in enumerate((full, tiered)):
                synchronize(arguments.device)
                began = time.perf_counter()
                side.run()
                synchronize(arguments.device)
                seconds[index] += time.perf_counter() - began
            real = [row for row, request in enumerate(driver.rows) if request is not None]
            ours, theirs = tiered.outputs[:, real], full.outputs[:, real]
            different += int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())
            compared += ours.numel()
        groups = [tiered.tier.cache.counters(g) for g in range(len(shape.layer_groups))]
        result = dict(
            adapter=adapter, rows=kv_dtype, steps=arguments.steps, outputs=compared,
            different=different,
            hits=sum(c.hits for c in groups), misses=sum(c.misses for c in groups),
            evictions=sum(c.evictions for c in groups),
            unbacked=sum(c.unbacked_reads for c in groups), **driver.counts)
        result["full us/step"] = round(seconds[0] / arguments.steps * 1e6)
        result["tiered us/step"] = round(seconds[1] / arguments.steps * 1e6)
    return result


def synchronize(device):
    if device != "cpu":
        torch.cuda.synchronize()


def faults(result, mutate):
    """What is wrong with a row of the table."""
    if mutate:
        return [] if result["different"] else ["the mutation did not show"]
    found = []
    if result["different"] or not result["outputs"]:
        found.append("%d of %d outputs differ" % (result["different"], result["outputs"]))
    found += ["%d unbacked reads" % result["unbacked"]] if result["unbacked"] else []
    found += ["no " + what for what in ("hits", "misses", "evictions", "finished", "reordered",
                                        "resumed", "recycled_blocks") if not result[what]]
    return found


def work(arguments, socket, size):
    """Status."""
    results = []
    ranks, name = rank_of(arguments)
    with kvtier.open_session(socket, client_name="dsa_decoder", wait_for_daemon=True,
                             call_timeout=30.0) as session:
        for adapter in arguments.adapters.split(","):
            for kv_dtype in arguments.dtypes.split(","):
                results.append(decode(session, arguments, adapter, kv_dtype, size, ranks, name))
                gc.collect()  # the pool has room for the next once the last tensor is gone
                ranks.barrier()
    columns = list(results[0])
    table = [columns] + [[str(result[c]) for c in columns] for result in results]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    wrong = [f for result in results for f in faults(result, arguments.mutate)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths)) for line in table]
    verdict = "FAILED: " + "; ".join(wrong) if wrong else "OK"
    print("\n".join(lines) + "\ndsa_decoder on %s, seed %d%s%s: %s" % (
        arguments.device, arguments.seed, ", mutated" if arguments.mutate else "",
        ", rank %s of %d" % (arguments.rank[0], arguments.ranks) if arguments.rank else "",
        verdict), flush=True)
    return 1 if wrong else 0


def share(arguments, socket):
    """Several processes on one daemon. Status."""
    common = [sys.executable, os.path.abspath(__file__), "--socket", socket]
    for flag in ("steps", "dtypes", "adapters", "seconds", "size"):
        common += ["--" + flag, str(getattr(arguments, flag))]
    common += ["--eager"] * arguments.eager + ["--mutate"] * arguments.mutate
    with tempfile.TemporaryDirectory(prefix="kvt-", dir="/tmp") as folder:
        commands = [common + ["--device", arguments.device, "--seed", str(arguments.seed + i)]
                    for i in range(arguments.workers if arguments.ranks == 1 else 0)]
        for rank in range(arguments.ranks if arguments.ranks > 1 else 0):
            device = arguments.device
            if device == "cuda":
                device = "cuda:%d" % (rank % torch.cuda.device_count())
            commands.append(common + ["--device", device, "--seed", str(arguments.seed), "--ranks",
                                      str(arguments.ranks), "--rank",
                                      "%d,%s" % (rank, os.path.join(folder, "ranks"))])
        # Ranks meet on this machine, whatever its name resolves to.
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo")
        workers = [subprocess.Popen(command, env=environment) for command in commands]
        return max(abs(worker.wait()) for worker in workers)


def main():
    arguments = flags()
    if arguments.ranks > 1:
        arguments.adapters = "vllm"
    if arguments.device.startswith("cuda:"):
        torch.cuda.set_device(arguments.device)
    if arguments.size is None:
        arguments.size = "small" if arguments.device == "cpu" else "large"
    size = SMALL if arguments.size == "small" else LARGE
    def too_long(*_):
        print("FAILED: not done after %d s" % arguments.seconds, flush=True)
        os._exit(1)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(arguments.seconds)
    with contextlib.ExitStack() as stack:
        socket = arguments.socket
        if socket is None:
            row = 1152 * 4 * (size["context"] + 2 * size["block_size"]) * size["batch"]
            socket = stack.enter_context(
                daemon(arguments.kvtierd, arguments.device,
                       (2 * row * arguments.workers + (64 << 20)) & ~((2 << 20) - 1)))
        if arguments.workers > 1 or (arguments.ranks > 1 and arguments.rank is None):
            return share(arguments, socket)
        return work(arguments, socket, size)


if __name__ == "__main__":
    sys.exit(main())
