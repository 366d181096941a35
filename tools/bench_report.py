"""Tables, and plots, of what benchmarks left: NAME.json and NAME_machine.json in a folder.

    bench_report.py FOLDER [--plots=FOLDER]

Tables are Markdown, for docs/BENCHMARKS.md. What is not in the folder is left out.
"""
import argparse
import json
import os
import sys

from tools import bench_peers


def load(folder, name):
    """(results, machine) of a benchmark; ([], {}) where it left nothing."""
    def read(path, otherwise):
        try:
            with open(os.path.join(folder, path), encoding="utf-8") as f:
                return json.load(f)
        except FileNotFoundError:
            return otherwise
    return read(name + ".json", []), read(name + "_machine.json", {})


def number(value):
    """For a cell: three digits that matter, "-" for nothing."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return "{:,}".format(value)
    if abs(value) >= 1000:
        return "{:,.0f}".format(value)
    return "%.0f" % value if abs(value) >= 100 else "%.1f" % value


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in rows:
        lines.append("| " + " | ".join(c if isinstance(c, str) else number(c) for c in row) + " |")
    return "\n".join(lines)


def ratio(a, b):
    return "%.2f" % (a / b) if a and b else "-"


def machine_line(machine):
    """Who measured, in a line; "" if that is not known."""
    parts = [machine.get("gpu"), machine.get("driver"), machine.get("cpu"),
             "%s threads" % machine["cpu_threads"] if "cpu_threads" in machine else None,
             machine.get("kernel"), machine.get("commit") and "commit " + machine["commit"]]
    return "; ".join(p for p in parts if p)


def ceilings_line(machine):
    c = machine.get("ceilings")
    if not c:
        return ""
    return ("Ceilings of the same run: copy engine %.1f GB/s to the device and %.1f to the host, "
            "gather of %s random rows %.1f GB/s, an empty kernel in a graph %.2f us (%.2f with an "
            "event behind it); pool: %s, %.1f GiB." % (
                c["copy_engine_to_device_gb_per_s"], c["copy_engine_to_host_gb_per_s"],
                number(c["gather_rows"]), c["gather_gb_per_s"], c["empty_kernel_us"],
                c["empty_kernel_with_event_us"], c["pool_kind"], c["pool_bytes"] / 2**30))


def swap_in_table(results):
    rows = []
    for r in results:
        peers = bench_peers.PEERS.get((r["miss_percent"], r["batch"]), {})
        rows.append([r["miss_percent"], r["batch"], number(round(r["rows_per_step"])),
                     r["us_floor"] or "-", r["us_median"], r["us_p99"], r["gb_per_s"] or "-",
                     r.get("us_design_a"), ratio(r.get("us_design_a"), r["us_median"]),
                     peers.get("A"), peers.get("best")])
    return table(["miss %", "batch", "rows/step", "floor us", "us", "p99 us", "GB/s",
                  "A us", "A / ours", "A published us", "best peer published us"], rows)


def backup_table(results):
    return table(["backup", "rows a layer", "layers", "scatter us", "us", "p99 us", "GB/s",
                  "x scatter"],
                 [[r["backup"], r["rows"], r["layers"], r["us_floor"], r["us_median"], r["us_p99"],
                   r["gb_per_s"], ratio(r["us_median"], r["us_floor"])] for r in results])


def group_table(results):
    return table(["layers", "miss %", "batch", "rows of all layers", "floor us", "one call us",
                  "replay behind us", "replay beside us", "beside / floor"],
                 [[r["layers"], r["miss_percent"], r["batch"], number(round(r["rows"])),
                   r["us_floor"], r["us_one_call"], r["us_replay_behind"], r["us_replay_beside"],
                   ratio(r["us_replay_beside"], r["us_floor"])] for r in results])


def shared_prefix_table(results):
    return table(["common prefix", "requests", "miss %", "layers", "rows missed", "rows shared",
                  "host MB", "times fewer", "us", "p99 us"],
                 [[r["name"], r["batch"], r["miss_percent"], r["layers"],
                   number(round(r["rows_missed"])), number(round(r["rows_shared"])),
                   "%.2f" % (r["host_bytes"] / 1e6), "%.2f" % r["times_fewer"], r["us_median"],
                   r["us_p99"]] for r in results])


def scale_table(results):
    return table(["axis", "value", "rows/step", "floor us", "us", "p99 us", "GB/s"],
                 [[r["axis"], r["value"], number(round(r["rows_per_step"])), r["us_floor"],
                   r["us_median"], r["us_p99"], r["gb_per_s"]] for r in results])


def rpc_table(results):
    calls = table(["call", "workers", "bare p50 us", "p99", "p99.9", "daemon p50 us", "p99",
                   "p99.9", "p50 ratio", "p99 ratio", "bare switches a call", "daemon"],
                  [[r["call"], r["workers"], r["bare_p50_us"], r["bare_p99_us"], r["bare_p999_us"],
                    r["p50_us"], r["p99_us"], r["p999_us"], "%.2f" % r["ratio_p50"],
                    "%.2f" % r["ratio_p99"], r.get("bare_switches"), r.get("switches")]
                   for r in results if r["benchmark"] == "unary"])
    blocks = table(["call", "sessions", "blocks a call", "p50 us", "p99 us", "p99.9 us"],
                   [[r["call"], r["workers"], r["blocks"], r["p50_us"], r["p99_us"], r["p999_us"]]
                    for r in results if r["benchmark"] == "many_blocks"])
    return calls + "\n\n" + blocks


def restart_table(results):
    def of(kind):
        return [r for r in results if r["benchmark"] == kind]
    starts = table(["pool GiB", "pool", "exec to listening ms", "to ready ms", "first attach ms",
                    "second attach ms"],
                   [[r["gib"], r["pool"], r["listening_ms"], r["ready_ms"], r["first_attach_ms"],
                     r["second_attach_ms"]] for r in of("start")])
    keeping = table(["caches", "blocks each", "records MiB", "exec to listening ms",
                     "to ready ms", "list kept blocks of one ms", "take them up ms"],
                    [[r["caches"], r["blocks"], r["record_bytes"] / 2**20, r["listening_ms"],
                      r["ready_ms"], r["list_ms"], r["take_up_ms"]] for r in of("keeping")])
    writes = table(["call", "calls", "without a folder, p50 us", "p99 us", "with one, p50 us",
                    "p99 us"],
                   [[r["call"], r["calls"], r["plain_p50_us"], r["plain_p99_us"],
                     r["kept_p50_us"], r["kept_p99_us"]] for r in of("writes")])
    return "\n\n".join([starts, keeping, writes])


# Name of the files -> heading, table.
REPORTS = {
    "swap_in": ("Swap-in on the GPU", swap_in_table),
    "backup": ("Backup on the GPU", backup_table),
    "group": ("Followers on the GPU", group_table),
    "shared_prefix": ("Requests with a common prefix", shared_prefix_table),
    "scale": ("How a swap-in's cost grows", scale_table),
    "restart": ("Restarts that keep the pool", restart_table),
    "rpc": ("Calls beside a bare gRPC server", rpc_table),
}


def wrong_of(results):
    return sum(r.get("wrong", 0) for r in results)


def text_of(folder):
    """All tables; and how many results were wrong."""
    parts, wrong = [], 0
    for name, (heading, make) in REPORTS.items():
        results, machine = load(folder, name)
        if not results:
            continue
        wrong += wrong_of(results)
        lines = ["## " + heading, machine_line(machine), ceilings_line(machine), make(results)]
        parts.append("\n\n".join(line for line in lines if line))
    return "\n\n".join(parts), wrong


def main(arguments):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--plots")
    options = parser.parse_args(arguments)
    text, wrong = text_of(options.folder)
    print(text or "nothing was measured")
    if options.plots and text:
        from tools import bench_plots  # needs matplotlib
        for path in bench_plots.draw_all(options.folder, options.plots):
            print("plot:", path)
    if wrong:
        print("WRONG: %d results" % wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
