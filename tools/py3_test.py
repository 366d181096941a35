"""Runs the unittest cases of a file and tells Bazel about each one.

    py3_test.py MAIN [ARGUMENTS OF MAIN]

Writes $XML_OUTPUT_FILE as GoogleTest does, and honours --test_filter
($TESTBRIDGE_TEST_ONLY).
"""
import importlib.util
import os
import sys
import time
import unittest
import xml.etree.ElementTree as ET


class Result(unittest.TextTestResult):
    """Collects (case, outcome, message, seconds)."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rows = []
        self._failed = False

    def startTest(self, test):
        super().startTest(test)
        self._failed = False
        self._start = time.monotonic()

    def _add(self, test, outcome, message=""):
        seconds = time.monotonic() - getattr(self, "_start", time.monotonic())
        self.rows.append((test, outcome, message, seconds))

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, "failure", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, "failure", self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        # A case whose subtests fail gets no addFailure: once is enough.
        if err is not None and not self._failed:
            self._failed = True
            self._add(test, "failure", str(err[1]))

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._add(test, "passed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._add(test, "failure", "passed, but was expected to fail")


def load(path):
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_xml(rows, path):
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", name="python", tests=str(len(rows)),
                          failures=str(sum(r[1] == "failure" for r in rows)), errors="0")
    for test, outcome, message, seconds in rows:
        group, _, name = test.id().rpartition(".")
        case = ET.SubElement(suite, "testcase", classname=group, name=name, time="%.3f" % seconds)
        if outcome != "passed":
            ET.SubElement(case, outcome, message=message)
    ET.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def main():
    path = os.path.abspath(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(path))
    loader = unittest.TestLoader()
    only = os.environ.get("TESTBRIDGE_TEST_ONLY")
    if only:
        loader.testNamePatterns = [only if "*" in only else "*%s*" % only]
    suite = loader.loadTestsFromModule(load(path))
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    if os.environ.get("XML_OUTPUT_FILE"):
        write_xml(result.rows, os.environ["XML_OUTPUT_FILE"])
    if not result.rows and not only:
        sys.exit("no test case in " + path)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
