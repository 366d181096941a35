"""What Prometheus scrapes: the format, the names, and that the numbers are those of GetStats."""
import http.client
import re
import socket
import subprocess
import unittest
import urllib.error
import urllib.request

from daemon import (ADMIN, PATIENCE_SECONDS, Daemon, Process, Session, layout, new_folder,
                    wait_until)
from deploy import deploy_tools
from prometheus_client.parser import text_string_to_metric_families
from reflection import CallError, to_json

REFERENCE = "docs/METRICS.md"
ODD_NAMES = ('quo"ted', "two\nlines", "back\\slash", "h\u00fclse \u5b57", '{a="b"} 1', "n" * 128)


def scrape(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def families(text):
    """By the name under which samples are asked for."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + "_total" if family.type == "counter" else family.name
        found[name] = family
    return found


def value(found, name, **labels):
    family = found[name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
                   if name not in found else name]
    for sample in family.samples:
        if sample.name == name and sample.labels == labels:
            return sample.value
    raise AssertionError("no %s%s in %s" % (name, labels, family.samples))


class Metrics(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self, ["--metrics_address=127.0.0.1:0"])
        self.url = self.daemon.client.call(ADMIN + "GetNodeInfo").metrics_address
        self.assertTrue(re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", self.url), self.url)

    def run_steps(self):
        """Three operations that hit, miss and back up."""
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "c", "layout": layout()})
        request = {"cache": "c", "request_id": "r"}
        session.call("AdmitRequest", request)
        session.call("AssignBlocks", {**request, "count": 1})
        session.call("Backup", {"cache": "c", "inline": {"rows": [
            {"request_id": "r", "slot": 0, "source_hot_row": 0}]}})
        for _ in range(2):
            session.call("SwapIn", {"cache": "c", "use_slots": True, "inline": {"rows": [
                {"request_id": "r", "topk": [0]}]}})
        return session

    def test_o06_the_numbers_are_those_of_get_stats(self):
        session = self.run_steps()
        with self.assertRaises(CallError):
            session.call("AdmitRequest", {"cache": "none", "request_id": "r"})
        found = families(scrape(self.url))
        stats = self.daemon.stats()
        cache = stats["caches"][0]
        counters = cache["groups"][0]["counters"]
        for name, field in (("hits", "hits"), ("misses", "misses"), ("steps", "steps"),
                            ("rows_copied", "rows_copied"), ("copied_bytes", "bytes_copied"),
                            ("backed_up_rows", "backed_up_rows"), ("evictions", "evictions")):
            self.assertEqual(value(found, "kvtierd_%s_total" % name, cache="c", group="0"),
                             int(counters[field]), name)
        self.assertEqual((counters["hits"], counters["misses"]), ("1", "1"))
        self.assertEqual(value(found, "kvtierd_pool_used_bytes"),
                         int(stats["pool"]["used_bytes"]))
        self.assertEqual(value(found, "kvtierd_pool_state", state="ready"), 1)
        self.assertEqual(value(found, "kvtierd_ready"), 1)
        self.assertEqual(value(found, "kvtierd_sessions"), 1)
        self.assertEqual(value(found, "kvtierd_cache_requests", cache="c"), 1)
        self.assertEqual(value(found, "kvtierd_cache_requests_limit", cache="c"), 2)
        self.assertEqual(value(found, "kvtierd_cache_blocks", cache="c", state="used"), 1)
        self.assertEqual(value(found, "kvtierd_device_used_bytes", device="CPU-0"),
                         int(cache["sessions"][0]["device_bytes"]))
        self.assertEqual(value(found, "kvtierd_instance_info", boot_id=stats["boot_id"]), 1)
        self.assertEqual(value(found, "kvtierd_calls_total", method="SwapIn", code="OK"), 2)
        self.assertEqual(
            value(found, "kvtierd_calls_total", method="AdmitRequest", code="NOT_FOUND"), 1)

    def test_durations_are_a_histogram(self):
        self.run_steps()
        found = families(scrape(self.url))
        name = "kvtierd_operation_duration_seconds"
        stats = {o["operation"]: o for o in self.daemon.stats()["caches"][0]["operations"]}
        for operation, count in (("swap_in", 2), ("backup", 1), ("replay_plan", 0)):
            labels = {"cache": "c", "operation": operation}
            buckets = [(float(s.labels["le"]), s.value) for s in found[name].samples
                       if s.name == name + "_bucket" and s.labels["operation"] == operation]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], (float("inf"), count))
            self.assertEqual(value(found, name + "_count", **labels), count)
            self.assertEqual(stats[operation]["count"], str(count))
            self.assertEqual(sum(map(int, stats[operation]["counts"])), count)
            self.assertAlmostEqual(value(found, name + "_sum", **labels),
                                   int(stats[operation]["sum_microseconds"]) / 1e6)
            self.assertEqual([b[0] for b in buckets[:-1]],
                             [int(b) / 1e6 for b in stats[operation]["bound_microseconds"]])

    def test_o08_names_and_requests_make_no_series(self):
        """Workers name themselves and their requests as they like."""
        def shown():
            """The series: names with their labels."""
            return {(sample.name, *sorted(sample.labels.items()))
                    for family in families(scrape(self.url)).values() for sample in family.samples}

        def work(name):
            """A session of that name with a hundred requests; what is shown while it lives."""
            session = Session(self, self.daemon, name)
            session.call("AttachCache", {"cache": "c", "layout": layout()})
            for number in range(100):
                request = {"cache": "c", "request_id": "%s%d" % (name[:100], number)}
                session.call("AdmitRequest", request)
                session.call("SwapIn", {"cache": "c", "inline": {"rows": [
                    {"request_id": request["request_id"], "topk": [0]}]}})
                if number == 99:
                    seen = shown()
                session.call("ReleaseRequest", request)
            session.close()
            wait_until(lambda: self.daemon.stats()["sessions"] == 1, "it has gone")
            return seen

        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "c", "layout": layout()})
        work("plain")  # and every code that a call ends with has been there
        before = shown()
        for name in ODD_NAMES:
            self.assertEqual(work(name), before, name)
        self.assertEqual(shown(), before)
        # Caches are labels: their names need no escaping, and there are few (caches_max).
        for name in ODD_NAMES[:-1]:
            with self.assertRaises(CallError) as caught:
                session.call("AttachCache", {"cache": name, "layout": layout()})
            self.assertEqual(caught.exception.reason, "FIELD_INVALID")

    def test_promtool_has_nothing_to_say(self):
        self.run_steps()
        done = subprocess.run([deploy_tools.path_of("promtool"), "check", "metrics"],
                              input=scrape(self.url), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_o08_conventions(self):
        """Help, units, suffixes; and that labels are bounded."""
        self.run_steps()
        text = scrape(self.url)
        found = families(text)
        self.assertEqual(len(re.findall("^# TYPE ", text, re.MULTILINE)), len(found))
        for name, family in found.items():
            with self.subTest(name=name):
                self.assertRegex(name, "^(kvtierd|process)_[a-z][a-z0-9_]*$")
                self.assertTrue(family.documentation.endswith("."), family.documentation)
                self.assertEqual(family.type == "counter", name.endswith("_total"))
                # Base units, and no type in the name.
                self.assertNotRegex(name, "_(milli|micro|ms|us|kib|mib|gib|kilobytes|percent"
                                          "|ratio_percent|counter|gauge|histogram)(_|$)")
                for sample in family.samples:
                    self.assertLessEqual(set(sample.labels),
                                         {"cache", "group", "operation", "device", "state",
                                          "method", "code", "version", "backend", "boot_id", "le",
                                          "why"})
                    self.assertEqual(sample.value, sample.value, "NaN")
        self.assertNotIn(self.daemon.stats()["caches"][0]["sessions"][0]["session_id"], text)

    def test_the_reference_lists_them_all(self):
        self.run_steps()
        rows = []
        for name, family in sorted(families(scrape(self.url)).items()):
            labels = sorted({label for s in family.samples for label in s.labels} - {"le"})
            rows.append("| `%s` | %s | %s | %s |" % (
                name, family.type, ", ".join(labels), family.documentation))
        with open(REFERENCE) as f:
            listed = [line for line in f.read().splitlines() if line.startswith("| `")]
        self.assertEqual(listed, rows, "\n" + "\n".join(rows))

    def test_what_is_no_scrape(self):
        base = self.url.removesuffix("/metrics")
        for path in ("/", "/metrics/", "/metrics/x", "/metricsx", "/../etc/passwd"):
            with self.subTest(path=path), self.assertRaises(urllib.error.HTTPError) as caught:
                scrape(base + path)
            self.assertIn(caught.exception.code, (400, 404))
            caught.exception.close()
        connection = http.client.HTTPConnection(base.removeprefix("http://"))
        self.addCleanup(connection.close)
        connection.request("POST", "/metrics", b"x")
        self.assertEqual(connection.getresponse().status, 405)

    def test_scrapers_that_say_nothing_do_not_keep_others_out(self):
        host, port = self.url.removeprefix("http://").removesuffix("/metrics").split(":")
        for _ in range(2):
            silent = socket.create_connection((host, int(port)))
            self.addCleanup(silent.close)
        wait_until(lambda: "kvtierd_ready 1" in scrape(self.url), "a scrape")

    def test_draining_shows(self):
        self.daemon.client.call(ADMIN + "Drain")
        found = families(scrape(self.url))
        self.assertEqual(value(found, "kvtierd_draining"), 1)
        self.assertEqual(value(found, "kvtierd_ready"), 0)


class Address(unittest.TestCase):
    def setUp(self):
        self.socket = new_folder(self) + "/d.sock"

    def test_off_by_default(self):
        daemon = Daemon(self, socket=self.socket)
        self.assertEqual(daemon.client.call(ADMIN + "GetNodeInfo").metrics_address, "")
        self.assertIn('metrics=""', daemon.text())

    def test_addresses_that_are_none(self):
        for address in ("9400", ":9400", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:9400s",
                        "127.0.0.1:1,127.0.0.1:2"):
            with self.subTest(address=address):
                process = Process(self, self.socket, ["--metrics_address=" + address])
                self.assertEqual(process.wait(), 1, process.text())
                self.assertIn("metrics_address", process.text())

    def test_a_port_that_is_taken(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = "127.0.0.1:%d" % other.getsockname()[1]
            process = Process(self, self.socket, ["--metrics_address=" + address])
            self.assertEqual(process.wait(), 2, process.text())
            self.assertIn(address, process.text())


class Windows(unittest.TestCase):
    def test_rates_stand_beside_totals(self):
        daemon = Daemon(self)
        session = Session(self, daemon)
        session.call("AttachCache", {"cache": "c", "layout": layout()})
        request = {"cache": "c", "request_id": "r"}
        session.call("AdmitRequest", request)
        session.call("AssignBlocks", {**request, "count": 1})
        session.call("SwapIn", {"cache": "c", "use_slots": True, "inline": {"rows": [
            {"request_id": "r", "topk": [0, 1]}]}})
        stats = to_json(daemon.client.call(ADMIN + "GetStats"))
        cache = stats["caches"][0]
        for window in (stats["window"], cache["window"], cache["groups"][0]["window"],
                       cache["sessions"][0]["window"],
                       cache["sessions"][0]["groups"][0]["window"]):
            self.assertGreater(float(window["duration"].removesuffix("s")), 0)
            # How much of it is in the window depends on how long all this took.
            self.assertGreaterEqual(window["misses_per_second"], 0)
            self.assertEqual((window["hits_per_second"], window["evictions_per_second"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
