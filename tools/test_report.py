"""Counts the test cases of one `bazel test` from its build event file.

    test_report.py EVENTS.json STATUS_OF_BAZEL

Prints what failed and why cases were skipped; the last line is
`N passed, N failed[, N skipped]`. Ends with 0 only if a case passed and none failed.

A target that did not build, or failed without saying in which case, is one failure; a
target that cannot be built here (no CUDA) is one skip.
"""
import collections
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ET


class Report:
    """What a run amounts to."""

    def __init__(self):
        self.passed = 0
        self.cached = 0
        self.failures = []  # "label: case"
        self.skips = collections.Counter()  # reason -> cases

    @property
    def skipped(self):
        return sum(self.skips.values())

    @property
    def ok(self):
        return self.passed > 0 and not self.failures

    def closing_line(self):
        line = "%d passed, %d failed" % (self.passed, len(self.failures))
        return line + (", %d skipped" % self.skipped if self.skipped else "")


def read_cases(path):
    """[(name, "passed"|"failed"|"skipped", reason)] of a JUnit file; None if unreadable."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return None
    cases = []
    for case in root.iter("testcase"):
        name = ".".join(x for x in (case.get("classname"), case.get("name")) if x)
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            cases.append((name, "failed", ""))
        elif skip is not None:
            # GoogleTest puts "file:line" in a line of its own before the reason.
            reason = (skip.get("message") or skip.text or "").strip().split("\n")[-1]
            cases.append((name, "skipped", reason or "no reason given"))
        elif case.get("status") == "notrun":
            cases.append((name, "skipped", "disabled"))
        else:
            cases.append((name, "passed", ""))
    return cases


def path_of(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def load_events(path):
    events = []
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                events.append(json.loads(line))
    except (OSError, ValueError):
        pass  # Bazel ended early: what is there counts.
    return events


def last_attempts(events):
    """label -> its testResult payloads, one for each run and shard: the last attempt."""
    last = {}
    for event in events:
        key = event["id"].get("testResult")
        if key and "testResult" in event:
            last[(key["label"], key.get("run", 1), key.get("shard", 1))] = event["testResult"]
    by_label = collections.defaultdict(list)
    for (label, _, _), payload in sorted(last.items(), key=lambda item: item[0]):
        by_label[label].append(payload)
    return by_label


def count_result(report, label, payload):
    outputs = {o.get("name"): o.get("uri", "") for o in payload.get("testActionOutput", [])}
    cases = read_cases(path_of(outputs["test.xml"])) if "test.xml" in outputs else None
    status = payload.get("status", "NO_STATUS")
    ran_well = status in ("PASSED", "FLAKY")
    if cases is None:
        cases = [("", "passed", "")] if ran_well else []
    failed = [name for name, outcome, _ in cases if outcome == "failed"]
    report.failures += ["%s: %s" % (label, name) for name in failed]
    if not ran_well and not failed:
        # Died, timed out, or a sanitizer spoke after the last case.
        report.failures.append("%s: %s" % (label, status))
    passed = sum(outcome == "passed" for _, outcome, _ in cases)
    report.passed += passed
    if payload.get("cachedLocally"):
        report.cached += passed
    report.skips.update(reason for _, outcome, reason in cases if outcome == "skipped")


def make_report(events, bazel_status):
    report = Report()
    results = last_attempts(events)
    tests = {e["id"]["targetConfigured"]["label"] for e in events
             if "targetConfigured" in e["id"]
             and e.get("configured", {}).get("targetKind", "").endswith("_test rule")}
    for label, payloads in results.items():
        for payload in payloads:
            count_result(report, label, payload)

    broken, incompatible = set(), set()
    for event in events:
        key = event["id"].get("targetCompleted") or event["id"].get("testSummary")
        if not key or key["label"] in results:
            continue
        label = key["label"]
        if event.get("aborted", {}).get("reason") == "SKIPPED":
            incompatible.add(label)
        elif "aborted" in event or ("completed" in event and not event["completed"].get("success")):
            broken.add(label)
    report.failures += ["%s: did not build" % label for label in sorted(broken - incompatible)]
    for label in sorted(incompatible & tests):
        report.skips["%s cannot be built here" % label] += 1
    if bazel_status not in (0, 4) and not report.failures:  # 4: no test was asked for
        report.failures.append("bazel ended with status %d" % bazel_status)
    return report


def main():
    report = make_report(load_events(sys.argv[1]), int(sys.argv[2]))
    print()
    if report.cached:
        print("%d of the passed were not run again: nothing they depend on has changed" % report.cached)
    for reason, count in sorted(report.skips.items()):
        print("SKIPPED %d: %s" % (count, reason))
    for failure in report.failures:
        print("FAILED " + failure)
    if not report.passed and not report.failures:
        print("NO TEST RAN")
    print(report.closing_line())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
