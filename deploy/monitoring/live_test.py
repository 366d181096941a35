"""Alerts and dashboard on a live daemon: the names and labels that they use are those it has, and a
real Prometheus that scrapes it fills every panel, raises nothing while all is well, and raises what
is wrong."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import yaml

from deploy import deploy_tools
from deploy.monitoring import generate

sys.path.append("tests/integration")
import scene  # noqa: E402
from daemon import ADMIN, PATIENCE_SECONDS, Daemon, wait_until  # noqa: E402

ALERTS = "deploy/monitoring/alerts.yaml"
# Prometheus' own, or our relabelling's.
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
# Panels that are empty while all is well.
EMPTY_WHEN_WELL = {"Calls that fail", "Starts"}
_STRINGS = re.compile(r'"[^"]*"')
_METRIC = re.compile(r"\b((?:kvtierd|process)_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def panels():
    """[(title, expression)] of the dashboard, Grafana's variables filled in."""
    dashboard = generate.dashboard()
    pairs = [(panel["title"], target["expr"]) for panel in dashboard["panels"]
             for target in panel.get("targets", [])]
    pairs += [(note["name"], note["expr"]) for note in dashboard["annotations"]["list"]]
    return [(title, expression.replace("$__rate_interval", "5s").replace("$instance", ".*")
             .replace("$cache", ".*")) for title, expression in pairs]


def rules():
    with open(ALERTS) as file:
        return [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]


class Scraped(unittest.TestCase):
    """A daemon that works, and what it exports."""

    def setUp(self):
        # Its own choice: a port that was free a moment ago may be another's.
        self.daemon = Daemon(self, ["--metrics_address=127.0.0.1:0"])
        self.url = self.daemon.client.call(ADMIN + "GetNodeInfo").metrics_address
        self.worker = scene.Worker(self, self.daemon)
        self.worker.admit()
        scene.decode(self.worker, steps=20, spread=2)

    def scrape(self):
        return get(self.url)

    def exported(self):
        """{metric: names of its labels}."""
        found = {}
        for line in self.scrape().splitlines():
            if line and line[0] != "#":
                name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        return found


class Names(Scraped):
    def test_promtool_likes_the_metrics(self):
        done = subprocess.run([deploy_tools.path_of("promtool"), "check", "metrics"],
                              input=self.scrape(), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_each_metric_and_label_is_there(self):
        exported = self.exported()
        expressions = [expression for _, expression in panels()]
        expressions += [rule["expr"] for rule in rules()]
        for expression in expressions:
            with self.subTest(expression=expression):
                used = set()
                for name, matchers in _METRIC.findall(expression):
                    self.assertIn(name, exported)
                    asked = set(re.findall(r"(\w+)\s*[=!]", _STRINGS.sub("", matchers)))
                    self.assertLessEqual(asked - LABELS_OF_PROMETHEUS, exported[name])
                    used |= exported[name]
                if used:
                    for words in _GROUPING.findall(expression):
                        names = set(re.findall(r"\w+", words)) - LABELS_OF_PROMETHEUS
                        self.assertLessEqual(names, used)

    def test_values_that_matchers_name_are_there(self):
        """state="free" and the like."""
        text = self.scrape()
        for rule in rules():
            for name, matchers in _METRIC.findall(rule["expr"]):
                for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
                    if (label, value) != ("backend", "cuda"):  # not on this machine
                        self.assertRegex(text, r'%s\{[^}]*%s="%s"' % (name, label, value))


class ByPrometheus(Scraped):
    def setUp(self):
        super().setUp()
        binary = deploy_tools.path_of("prometheus")
        self.folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        shutil.copy(ALERTS, self.folder + "/alerts.yaml")
        with open(self.folder + "/prometheus.yml", "w") as file:
            yaml.safe_dump({
                "global": {"scrape_interval": "250ms", "evaluation_interval": "500ms"},
                "rule_files": ["alerts.yaml"],
                "scrape_configs": [{"job_name": "kvtierd", "static_configs": [
                    {"targets": [urllib.parse.urlsplit(self.url).netloc]}]}]}, file)
        self.address = "127.0.0.1:%d" % free_port()
        with open(self.folder + "/log", "w") as log:
            self.prometheus = subprocess.Popen(
                [binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                 "--web.listen-address=" + self.address],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(self.prometheus.wait, PATIENCE_SECONDS)
        self.addCleanup(self.prometheus.kill)

    def ask(self, path, **query):
        url = "http://%s/api/v1/%s?%s" % (self.address, path, urllib.parse.urlencode(query))
        return json.loads(get(url))["data"]

    def is_up(self):
        try:
            return self.value("up") == 1
        except urllib.error.URLError:
            return False

    def value(self, expression):
        """The first sample, or None."""
        samples = self.ask("query", query=expression)["result"]
        return float(samples[0]["value"][1]) if samples else None

    def work(self, seconds, positions):
        """Steps, ten a second, for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            scene.decode(self.worker, steps=5, spread=positions, pause=0.1)

    def test_every_panel_shows_something(self):
        wait_until(self.is_up, "Prometheus has scraped the daemon")
        self.work(seconds=6, positions=2)
        self.worker.session.call("Backup", {"cache": scene.CACHE, "inline": {"rows": [
            {"request_id": "r1", "slot": 0, "source_hot_row": 0}]}})
        self.work(seconds=1, positions=2)
        for title, expression in panels():
            with self.subTest(panel=title, expression=expression):
                value = self.value(expression)
                if title not in EMPTY_WHEN_WELL:
                    self.assertIsNotNone(value)
        glance = {title: self.value(expression) for title, expression in panels()}
        self.assertGreater(glance["Hit rate"], 0.5)
        self.assertEqual(glance["Not ready"], 0)
        self.assertGreater(glance["To devices"], 0)
        self.assertGreater(glance["Slowest operation, p99"], 0)
        self.assertEqual(glance["Sessions"], 1)

        states = self.ask("rules")["groups"]
        self.assertEqual({rule["health"] for group in states for rule in group["rules"]}, {"ok"})
        self.assertEqual(self.ask("alerts")["alerts"], [])

    def test_what_is_wrong_is_raised(self):
        wait_until(self.is_up, "Prometheus has scraped the daemon")
        # A request whose rows were never backed up, and a daemon that is gone.
        self.worker.session.call("AdmitRequest", {"cache": scene.CACHE, "request_id": "r2"})
        self.worker.session.call("AssignBlocks", {"cache": scene.CACHE, "request_id": "r2",
                                                  "count": 4})
        scene.decode(self.worker, steps=4, spread=8, request_id="r2")
        raised = lambda: {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"]}
        wait_until(lambda: "KvtierdUnbackedReads" in raised(), "rows that were never backed up")
        self.daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "KvtierdDown" in raised(), "a daemon that is gone")


if __name__ == "__main__":
    unittest.main()
