"""Draws the dashboard from a Prometheus, roughly as Grafana would: to look at it without one.

    preview.py ADDRESS SECONDS FILE.png|FILE.svg

ADDRESS: host:port of Prometheus; SECONDS: how far back. Needs matplotlib.
"""
import json
import sys
import time
import urllib.parse
import urllib.request

from deploy.monitoring import generate

PAPER, PANEL, INK, FAINT = "#111217", "#181b1f", "#d8dee9", "#7b8494"
COLORS = {"green": "#56a64b", "yellow": "#e0b400", "red": "#e02f44", "blue": "#3274d9"}
LINES = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#37872d", "#fade2a"]
COLUMNS, ROW_INCHES, COLUMN_INCHES = 24, 0.36, 0.62


def ask(address, path, **query):
    url = "http://%s/api/v1/%s?%s" % (address, path, urllib.parse.urlencode(query))
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())["data"]["result"]


def filled(expression):
    return (expression.replace("$__rate_interval", "5s").replace("$instance", ".*")
            .replace("$cache", ".*"))


def shown(value, unit):
    """A number as people read it."""
    if unit == "percentunit":
        return "%.1f %%" % (100 * value)
    if unit == "s":
        return "%.3g ms" % (1e3 * value) if value >= 1e-3 else "%.3g us" % (1e6 * value)
    if unit in ("bytes", "Bps"):
        size = 0
        while abs(value) >= 1024 and size < 4:
            value, size = value / 1024, size + 1
        return "%.3g %s%s" % (value, ["B", "KiB", "MiB", "GiB", "TiB"][size],
                              "/s" if unit == "Bps" else "")
    text = "%d" % value if value == int(value) else "%.3g" % value
    return text + {"rps": "/s", "reqps": "/s"}.get(unit, "")


def color_of(value, steps):
    return COLORS[[step["color"] for step in steps
                   if step["value"] is None or value >= step["value"]][-1]]


def legend_of(target, labels):
    text = target["legendFormat"]
    for name, value in labels.items():
        text = text.replace("{{%s}}" % name, value)
    return text


def draw_number(axes, panel, address):
    defaults = panel["fieldConfig"]["defaults"]
    result = ask(address, "query", query=filled(panel["targets"][0]["expr"]))
    axes.set_xticks([])
    axes.set_yticks([])
    if not result:
        axes.set_facecolor(PANEL)
        text = defaults["noValue"]
    else:
        value = float(result[0]["value"][1])
        axes.set_facecolor(color_of(value, defaults["thresholds"]["steps"]))
        text = shown(value, defaults["unit"])
    axes.text(0.5, 0.45, text, color="white", size=20, weight="bold", ha="center", va="center",
              transform=axes.transAxes)


def draw_series(axes, panel, address, seconds):
    defaults = panel["fieldConfig"]["defaults"]
    now = time.time()
    axes.set_facecolor(PANEL)
    lines = []
    for target in panel["targets"]:
        for series in ask(address, "query_range", query=filled(target["expr"]),
                          start=now - seconds, end=now, step="0.5"):
            points = [(float(at) - now, float(value)) for at, value in series["values"]]
            lines.append((legend_of(target, series["metric"]), points))
    for number, (name, points) in enumerate(lines):
        axes.plot(*zip(*points), color=LINES[number % len(LINES)], linewidth=1.6,
                  label="%s  %s" % (name, shown(points[-1][1], defaults["unit"])))
    highest = max((value for _, points in lines for _, value in points), default=0)
    axes.set_ylim(defaults["min"], defaults.get("max", 1.1 * highest or 1))
    axes.set_xlim(-seconds, 0)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, defaults["unit"]))
    axes.tick_params(colors=FAINT, labelsize=7)
    axes.grid(color="#2c3235", linewidth=0.5)
    if lines:
        axes.legend(fontsize=6, facecolor=PANEL, edgecolor=PANEL, labelcolor=INK, loc="upper left",
                    bbox_to_anchor=(0, -0.18), ncols=2, borderaxespad=0, borderpad=0)


def draw(address, seconds, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    dashboard = generate.dashboard()
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) + 1
    figure = pyplot.figure(figsize=(COLUMNS * COLUMN_INCHES, rows * ROW_INCHES), facecolor=PAPER)
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        left, bottom = at["x"] / COLUMNS, 1 - (at["y"] + at["h"]) / rows
        if panel["type"] == "row":
            figure.text(left + 0.006, bottom + 0.3 / rows, panel["title"], color=INK, size=11,
                        weight="bold")
            continue
        narrow = panel["type"] != "timeseries"
        axes = figure.add_axes([left + (0.004 if narrow else 0.05), bottom + (0.75 if narrow else 2.2) / rows,
                                at["w"] / COLUMNS - (0.008 if narrow else 0.06),
                                (at["h"] - (1.9 if narrow else 3.4)) / rows])
        axes.set_title(panel["title"], color=INK, size=9, loc="left", pad=3)
        if narrow:
            draw_number(axes, panel, address)
        else:
            draw_series(axes, panel, address, seconds)
    figure.savefig(path, facecolor=PAPER, dpi=90)


if __name__ == "__main__":
    draw(sys.argv[1], float(sys.argv[2]), sys.argv[3])
