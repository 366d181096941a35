"""Writes the files of this folder that are made from others.

    python3 deploy/monitoring/generate.py

dashboard.json: the Grafana dashboard, from the panels below. prometheus_rule.yaml: alerts.yaml for
the Prometheus operator. A test fails if either is not what this would write.
"""
import json
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHERE = 'instance=~"$instance"'
CACHE = WHERE + ', cache=~"$cache"'
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def rate(counter, by):
    """Increase a second, by labels."""
    return "sum by (%s) (rate(%s{%s}[$__rate_interval]))" % (by, counter, CACHE)


def hit_rate(by):
    """A share; nothing where nothing was looked up."""
    hits, misses = rate("kvtierd_hits_total", by), rate("kvtierd_misses_total", by)
    return "%s / (%s + %s > 0)" % (hits, hits, misses)


def quantile(share):
    """Seconds; nothing (which is not >= 0) where no operation was done."""
    return ("histogram_quantile(%g, sum by (instance, operation, le) "
            "(rate(kvtierd_operation_duration_seconds_bucket{%s}[$__rate_interval]))) >= 0"
            % (share, CACHE))


class Grid:
    """Panels from left to right, 24 columns a row, under headings."""

    def __init__(self):
        self.panels = []
        self._x = self._y = self._height = 0

    def heading(self, title):
        self._break()
        self._add({"type": "row", "title": title, "collapsed": False, "panels": []}, 24, 1)

    def stat(self, title, description, expression, unit, steps, width=4, kind="stat", **limits):
        """One number and its colour. `steps`: (from, colour), the first from None."""
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if kind == "stat":
            options.update({"colorMode": "background", "graphMode": "area", "textMode": "auto"})
        self._panel(kind, title, description, [(expression, "")], unit, steps, options, {},
                    width, 4, limits)

    def series(self, title, description, targets, unit, width=12, steps=None, stacked=False,
               **limits):
        """Lines over time, from zero. `targets`: (expression, legend)."""
        custom = {"drawStyle": "line", "lineWidth": 2, "fillOpacity": 60 if stacked else 10,
                  "showPoints": "never",
                  "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
                  "thresholdsStyle": {"mode": "dashed" if steps else "off"}}
        options = {"legend": {"displayMode": "table", "placement": "bottom",
                              "calcs": ["lastNotNull", "max"]},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
        self._panel("timeseries", title, description, targets, unit,
                    steps or [(None, GREEN)], options, custom, width, 8, {"min": 0, **limits})

    def _panel(self, kind, title, description, targets, unit, steps, options, custom, width,
               height, limits):
        defaults = {"unit": unit, "color": {"mode": "thresholds" if kind != "timeseries"
                                            else "palette-classic"},
                    "thresholds": {"mode": "absolute",
                                   "steps": [{"value": v, "color": c} for v, c in steps]},
                    "custom": custom, "noValue": "none", **limits}
        self._add({
            "type": kind, "title": title, "description": description, "datasource": DATA_SOURCE,
            "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend,
                         "datasource": DATA_SOURCE, "range": True}
                        for i, (expression, legend) in enumerate(targets)],
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
        }, width, height)

    def _add(self, panel, width, height):
        if self._x + width > 24:
            self._break()
        panel["id"] = len(self.panels) + 1
        panel["gridPos"] = {"x": self._x, "y": self._y, "w": width, "h": height}
        self.panels.append(panel)
        self._x += width
        self._height = max(self._height, height)

    def _break(self):
        self._x, self._y, self._height = 0, self._y + self._height, 0


def _at_a_glance(grid):
    grid.heading("At a glance")
    grid.stat("Hit rate", "Share of lookups found in a hot buffer. What is missing crosses PCIe.",
              hit_rate(""), "percentunit", [(None, RED), (0.6, YELLOW), (0.8, GREEN)],
              min=0, max=1)
    grid.stat("Not ready", "Daemons that take no work: pinning, draining, or a device is lost.",
              "count(kvtierd_ready{%s} == 0) or vector(0)" % WHERE, "none",
              [(None, GREEN), (1, RED)])
    grid.stat("Sessions", "Workers that hold a lease.", "sum(kvtierd_sessions{%s})" % WHERE,
              "none", [(None, BLUE)])
    grid.stat("Pool used", "The fullest host pool.",
              "max(kvtierd_pool_used_bytes{%s} / kvtierd_pool_size_bytes{%s})" % (WHERE, WHERE),
              "percentunit", [(None, GREEN), (0.85, YELLOW), (0.95, RED)], kind="gauge",
              min=0, max=1)
    grid.stat("To devices", "Bytes of rows copied from host pools to devices.",
              "sum(rate(kvtierd_copied_bytes_total{%s}[$__rate_interval]))" % CACHE, "Bps",
              [(None, BLUE)])
    grid.stat("Slowest operation, p99", "Swap-ins, plans and backups that the daemon runs for "
              "workers, from enqueued to done. In-process steps are not among them.",
              "max(%s)" % quantile(0.99), "s", [(None, GREEN), (0.02, YELLOW), (0.1, RED)])


def _rows(grid):
    grid.heading("Hits and PCIe")
    grid.series("Hit rate", "By cache. Below 50 % an alert is raised.",
                [(hit_rate("instance, cache"), "{{instance}} {{cache}}")], "percentunit",
                steps=[(None, RED), (0.5, GREEN)], max=1)
    grid.series("PCIe", "Host to device is misses, device to host is backups.",
                [(rate("kvtierd_copied_bytes_total", "instance"), "{{instance}} to device"),
                 (rate("kvtierd_backed_up_bytes_total", "instance"), "{{instance}} to host")],
                "Bps")
    grid.series("Lookups", "Rows a second that steps asked for.",
                [(rate("kvtierd_hits_total", "instance"), "{{instance}} hits"),
                 (rate("kvtierd_misses_total", "instance"), "{{instance}} misses"),
                 (rate("kvtierd_newest_total", "instance"), "{{instance}} newest")], "rps")
    grid.series("Rows that should not be", "All zero where workers keep to the rules: zeros given "
                "for rows past the pool or never backed up, rows without a hot slot, state that "
                "was impossible, rows that a backup refused.",
                [(rate("kvtierd_%s_total" % name, "instance, cache"), "{{cache}} " + words)
                 for name, words in [("unsourced", "past the pool"),
                                     ("unbacked_reads", "never backed up"),
                                     ("unplaced", "without a slot"),
                                     ("state_repairs", "repairs"),
                                     ("rejected_rows", "refused")]], "rps")


def _memory(grid):
    grid.heading("Memory")
    grid.series("Host pool", "What caches have of it, and the largest piece that a new one could get.",
                [("kvtierd_pool_used_bytes{%s}" % WHERE, "{{instance}} used"),
                 ("kvtierd_pool_size_bytes{%s}" % WHERE, "{{instance}} size"),
                 ("kvtierd_pool_largest_free_bytes{%s}" % WHERE, "{{instance}} largest free")],
                "bytes")
    grid.series("Blocks", "Of caches, by what they are now.",
                [("sum by (cache, state) (kvtierd_cache_blocks{%s})" % CACHE,
                  "{{cache}} {{state}}")], "none", stacked=True)
    grid.series("Devices", "Hot buffers, state and step memory on each device.",
                [("kvtierd_device_used_bytes{%s}" % WHERE, "{{instance}} {{device}}")], "bytes")
    grid.series("Process", "Resident memory of the daemon, the touched pool included.",
                [("process_resident_memory_bytes{%s} and on (instance) kvtierd_build_info" % WHERE,
                  "{{instance}}")], "bytes")


def _work(grid):
    grid.heading("Work")
    grid.series("Operations over RPC", "From enqueued to done.",
                [(quantile(0.5), "{{instance}} {{operation}} p50"),
                 (quantile(0.99), "{{instance}} {{operation}} p99")], "s")
    grid.series("Calls that fail", "By method and code.",
                [('sum by (method, code) (rate(kvtierd_calls_total{%s, code!="OK"}'
                  "[$__rate_interval]))" % WHERE, "{{method}} {{code}}")], "reqps")
    grid.series("Sessions and requests", "Open now.",
                [("kvtierd_sessions{%s}" % WHERE, "{{instance}} sessions"),
                 ("sum by (instance) (kvtierd_cache_requests{%s})" % CACHE,
                  "{{instance}} requests")], "none")
    grid.series("Waiting", "Calls in front of the threads that may wait, and operations that "
                "devices have not done yet.",
                [("kvtierd_control_queue_depth{%s}" % WHERE, "{{instance}} calls"),
                 ("sum by (instance) (kvtierd_cache_operations_in_flight{%s})" % CACHE,
                  "{{instance}} operations")], "none")


def _variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": DATA_SOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
            "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}


def dashboard():
    """The dashboard, as Grafana 9 and later import it."""
    grid = Grid()
    for part in (_at_a_glance, _rows, _memory, _work):
        part(grid)
    return {
        "uid": "kvtierd", "title": "kvtierd", "tags": ["kvtierd"], "schemaVersion": 37,
        "version": 1, "editable": True, "refresh": "30s", "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"}, "graphTooltip": 1, "links": [],
        "description": "KV tiering daemons: hit rates, PCIe traffic, pools, latencies, workers.",
        "annotations": {"list": [{
            "name": "Starts", "enable": True, "iconColor": RED, "datasource": DATA_SOURCE,
            "expr": "changes(kvtierd_start_time_seconds{%s}[1m]) > 0" % WHERE,
            "titleFormat": "kvtierd started on {{instance}}"}]},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource",
             "query": "prometheus", "current": {}},
            _variable("instance", "Node", "label_values(kvtierd_build_info, instance)"),
            _variable("cache", "Cache",
                      "label_values(kvtierd_cache_block_capacity{%s}, cache)" % WHERE)]},
        "panels": grid.panels,
    }


def prometheus_rule(alerts):
    """alerts.yaml inside the operator's kind."""
    first = alerts.index("groups:\n")
    body = "".join("  " + line if line.strip() else line
                   for line in alerts[first:].splitlines(True))
    return ("# Made from alerts.yaml by generate.py.\n"
            "apiVersion: monitoring.coreos.com/v1\n"
            "kind: PrometheusRule\n"
            "metadata:\n"
            "  name: kvtierd\n"
            "  labels:\n"
            "    app.kubernetes.io/name: kvtierd\n"
            "spec:\n" + body)


def files():
    """{name: content} of what is made."""
    with open(os.path.join(FOLDER, "alerts.yaml")) as file:
        alerts = file.read()
    return {"dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
            "prometheus_rule.yaml": prometheus_rule(alerts)}


if __name__ == "__main__":
    for name, content in files().items():
        with open(os.path.join(FOLDER, name), "w") as output:
            output.write(content)
