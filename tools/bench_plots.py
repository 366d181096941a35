"""Plots of what benchmarks left (bench_report.py), as SVG: the same numbers give the same file."""
import os

import matplotlib

matplotlib.use("svg")
# Text stays text, and ids do not change from run to run.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvtier", "font.size": 9,
                            "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                            "axes.spines.right": False})

from matplotlib import pyplot, ticker  # noqa: E402: after use()

from tools import bench_peers  # noqa: E402
from tools import bench_report  # noqa: E402

OURS, THEIRS, PUBLISHED, FLOOR = "tab:blue", "tab:orange", "tab:red", "0.55"


def series(results, x, y):
    """([x], [y]) of the results that have both, by x."""
    pairs = sorted((r[x], r[y]) for r in results if r.get(x) is not None and r.get(y))
    return [p[0] for p in pairs], [p[1] for p in pairs]


def of_peers(miss_percent, name):
    """([batch], [us]) of a published kernel."""
    pairs = sorted((batch, us[name]) for (miss, batch), us in bench_peers.PEERS.items()
                   if miss == miss_percent and name in us)
    return [p[0] for p in pairs], [p[1] for p in pairs]


def log_ticks(axis, values):
    """A logarithmic axis that names its values."""
    axis.set_ticks(values, labels=["{:,}".format(v) for v in values])
    axis.set_ticks([], minor=True)


def log_numbers(axis):
    """A logarithmic axis with 1, 2, 5, 10, ... on it."""
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: "{:,g}".format(value)))
    axis.set_minor_locator(ticker.NullLocator())


def panels(count, width=3.4, height=3.2, same_y=False):
    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), squeeze=False,
                                   sharey=same_y)
    return figure, list(axes[0])


def swap_in(results):
    misses = sorted({r["miss_percent"] for r in results})
    figure, axes = panels(len(misses), width=2.9, height=3.8, same_y=True)
    for axis, miss in zip(axes, misses):
        here = [r for r in results if r["miss_percent"] == miss]
        for y, label, style in [
                ("us_median", "kvtierd", dict(color=OURS, marker="o")),
                ("us_p99", "kvtierd, p99", dict(color=OURS, linestyle=":")),
                ("us_design_a", "design A, same run", dict(color=THEIRS, marker="s")),
                ("us_floor", "copies alone", dict(color=FLOOR, linestyle="--"))]:
            xs, ys = series(here, "batch", y)
            if xs:
                axis.plot(xs, ys, label=label, markersize=4, **style)
        for name, marker in [("A", "x"), ("best", "+")]:
            xs, ys = of_peers(miss, name)
            if xs:
                axis.plot(xs, ys, marker, color=PUBLISHED, markersize=7,
                          label="design A, published" if name == "A" else "best peer, published")
        axis.set(title="%d %% misses" % miss, xlabel="batch", xscale="log", yscale="log")
        log_ticks(axis.xaxis, sorted({r["batch"] for r in here}))
    axes[0].set_ylabel("us a swap-in")
    log_numbers(axes[0].yaxis)
    handles = {}
    for axis in axes:
        handles.update({label: handle for handle, label in zip(*axis.get_legend_handles_labels())})
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncol=len(handles),
                  frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def backup(results):
    figure, (axis,) = panels(1, width=4.6)
    decode = [r for r in results if r["backup"] == "decode"]
    axis.plot(*series(decode, "rows", "us_median"), color=OURS, marker="o", label="kvtierd")
    axis.plot(*series(decode, "rows", "us_floor"), color=FLOOR, linestyle="--",
              label="scatter alone")
    axis.set(title="Newest rows, %d layers in one launch" % decode[0]["layers"], xlabel="requests",
             ylabel="us a backup", xscale="log", yscale="log")
    log_ticks(axis.xaxis, sorted({r["rows"] for r in decode}))
    axis.set_ylim(1, None)
    log_numbers(axis.yaxis)
    axis.legend(frameon=False)
    figure.tight_layout()
    return figure


AXES = {"batch": "requests", "top_k": "top_k", "hot_size": "hot_size", "context": "rows a context",
        "pool_gib": "GiB of pool"}


def scale(results):
    names = [name for name in AXES if any(r["axis"] == name for r in results)]
    figure, axes = panels(len(names), width=2.8)
    for axis, name in zip(axes, names):
        here = [r for r in results if r["axis"] == name]
        axis.plot(*series(here, "value", "us_median"), color=OURS, marker="o", label="kvtierd")
        axis.plot(*series(here, "value", "us_floor"), color=FLOOR, linestyle="--",
                  label="copies alone")
        axis.set(xlabel=AXES[name], xscale="log", ylim=(0, None))
        log_ticks(axis.xaxis, sorted({r["value"] for r in here}))
        axis.tick_params(axis="x", labelrotation=45)
    axes[0].set_ylabel("us a swap-in")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    return figure


def rpc(results):
    calls = [r for r in results if r["benchmark"] == "unary"]
    workers = sorted({r["workers"] for r in calls})
    figure, axes = panels(len(workers), height=3.6)
    for axis, count in zip(axes, workers):
        here = [r for r in calls if r["workers"] == count]
        places = range(len(here))
        for offset, prefix, color, label in [(-0.2, "bare_", FLOOR, "bare gRPC server"),
                                             (0.2, "", OURS, "kvtierd")]:
            xs = [p + offset for p in places]
            axis.bar(xs, [r[prefix + "p50_us"] for r in here], 0.38, color=color, label=label)
            axis.plot(xs, [r[prefix + "p99_us"] for r in here], "_", color="black", markersize=9,
                      label="p99" if prefix else None)
            axis.grid(visible=False, axis="x")
        axis.set(title="%d worker%s" % (count, "" if count == 1 else "s at once"), ylim=(0, None))
        axis.set_xticks(list(places), [r["call"] for r in here], rotation=30, ha="right")
    axes[0].set_ylabel("us a call")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


PLOTS = {"swap_in": swap_in, "backup": backup, "scale": scale, "rpc": rpc}


def draw_all(folder, target):
    """Draws what was measured; returns the files."""
    os.makedirs(target, exist_ok=True)
    paths = []
    for name, draw in PLOTS.items():
        results, _ = bench_report.load(folder, name)
        if not results:
            continue
        figure = draw(results)
        path = os.path.join(target, name + ".svg")
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
        paths.append(path)
    return paths
