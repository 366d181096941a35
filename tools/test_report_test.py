"""The counting of tools/test, on build events as Bazel writes them."""
import os
import tempfile
import unittest

from tools import test_report

GTEST = """<testsuites tests="4" failures="1" disabled="1" errors="0">
 <testsuite name="A">
  <testcase name="Ok" status="run" result="completed" classname="A"/>
  <testcase name="Bad" status="run" result="completed" classname="A"><failure message="x"/></testcase>
  <testcase name="Gpu" status="run" result="skipped" classname="A">
    <skipped message="a_test.cc:3&#x0A;no GPU"/>
  </testcase>
  <testcase name="DISABLED_No" status="notrun" result="suppressed" classname="A"/>
 </testsuite></testsuites>"""
ALL_OK = '<testsuites><testsuite><testcase name="x"/><testcase name="y"/></testsuite></testsuites>'


class Events(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="a b")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.count = 0

    def xml(self, text):
        self.count += 1
        path = os.path.join(self.folder, "%d.xml" % self.count)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return "file://" + path.replace(" ", "%20")

    def ran(self, label, status, xml=None, **key):
        outputs = [{"name": "test.log", "uri": "file:///x"}]
        if xml is not None:
            outputs.append({"name": "test.xml", "uri": self.xml(xml)})
        return {"id": {"testResult": {"label": label, **key}},
                "testResult": {"status": status, "testActionOutput": outputs}}

    def line(self, events, status=0):
        return test_report.make_report(events, status).closing_line()

    def test_counts_cases(self):
        report = test_report.make_report([self.ran("//a:t", "FAILED", GTEST)], 3)
        self.assertEqual(report.closing_line(), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(report.failures, ["//a:t: A.Bad"])
        self.assertEqual(report.skips, {"no GPU": 1, "disabled": 1})
        self.assertFalse(report.ok)

    def test_a_shell_test_without_xml_is_one_case(self):
        self.assertEqual(self.line([self.ran("//a:t", "PASSED")]), "1 passed, 0 failed")
        self.assertEqual(self.line([self.ran("//a:t", "PASSED", "<not xml")]), "1 passed, 0 failed")

    def test_a_failure_after_the_last_case_counts(self):
        self.assertEqual(self.line([self.ran("//a:t", "FAILED", ALL_OK)], 3), "2 passed, 1 failed")
        self.assertEqual(self.line([self.ran("//a:t", "TIMEOUT")], 3), "0 passed, 1 failed")

    def test_shards_add_up_and_the_last_attempt_holds(self):
        events = [self.ran("//a:t", "FAILED", GTEST, shard=1, attempt=1),
                  self.ran("//a:t", "PASSED", ALL_OK, shard=1, attempt=2),
                  self.ran("//a:t", "PASSED", ALL_OK, shard=2)]
        self.assertEqual(self.line(events), "4 passed, 0 failed")

    def test_what_did_not_build_is_a_failure(self):
        events = [self.ran("//a:t", "PASSED", ALL_OK),
                  {"id": {"targetCompleted": {"label": "//a:lib"}}, "completed": {}},
                  {"id": {"targetCompleted": {"label": "//a:good"}}, "completed": {"success": True}}]
        report = test_report.make_report(events, 1)
        self.assertEqual(report.failures, ["//a:lib: did not build"])

    def test_only_a_test_that_cannot_be_built_here_is_a_skip(self):
        events = [self.ran("//a:t", "PASSED", ALL_OK)]
        for label, kind in (("//a:gpu_test", "cc_test rule"), ("//a:gpu", "cc_library rule")):
            events += [{"id": {"targetConfigured": {"label": label}}, "configured": {"targetKind": kind}},
                       {"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": "SKIPPED"}}]
        self.assertEqual(self.line(events), "2 passed, 0 failed, 1 skipped")

    def test_bazel_failing_without_a_word_is_a_failure(self):
        self.assertEqual(self.line([], 37), "0 passed, 1 failed")
        self.assertEqual(self.line([self.ran("//a:t", "PASSED", ALL_OK)], 1), "2 passed, 1 failed")

    def test_nothing_is_not_success(self):
        report = test_report.make_report([], 4)
        self.assertEqual(report.closing_line(), "0 passed, 0 failed")
        self.assertFalse(report.ok)

    def test_all_skipped_is_not_success(self):
        self.assertFalse(test_report.make_report([self.ran("//a:t", "PASSED", """
            <testsuites><testcase name="x"><skipped message="no GPU"/></testcase></testsuites>""")], 0).ok)

    def test_a_cut_off_event_file_counts_up_to_the_cut(self):
        path = os.path.join(self.folder, "events")
        with open(path, "w", encoding="utf-8") as f:
            f.write('{"id": {}}\n{"id": {"tes')
        self.assertEqual(test_report.load_events(path), [{"id": {}}])
        self.assertEqual(test_report.load_events(path + ".gone"), [])


if __name__ == "__main__":
    unittest.main()
