"""What py3_test.py tells Bazel about the cases of a file."""
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

SAMPLE = """
import sys
import unittest

class T(unittest.TestCase):
    def test_ok(self):
        self.assertEqual(sys.argv[1:], ["--flag"])
    def test_bad(self):
        self.fail("no")
    def test_error(self):
        1 / 0
    @unittest.skip("no GPU")
    def test_skipped(self):
        pass
    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertEqual(i, 0)
"""


class Runner(unittest.TestCase):
    def run_sample(self, text, only=""):
        with tempfile.TemporaryDirectory() as folder:
            sample = os.path.join(folder, "sample.py")
            with open(sample, "w", encoding="utf-8") as f:
                f.write(text)
            xml = os.path.join(folder, "test.xml")
            env = dict(os.environ, XML_OUTPUT_FILE=xml, TESTBRIDGE_TEST_ONLY=only)
            status = subprocess.run([sys.executable, "tools/py3_test.py", sample, "--flag"], env=env,
                                    stderr=subprocess.DEVNULL, check=False).returncode
            if not os.path.exists(xml):
                return status, None
            cases = {c.get("name"): c[0].tag if len(c) else "passed"
                     for c in ET.parse(xml).getroot().iter("testcase")}
            return status, cases

    def test_each_case_is_reported_once(self):
        status, cases = self.run_sample(SAMPLE)
        self.assertEqual(status, 1)
        self.assertEqual(cases, {"test_ok": "passed", "test_bad": "failure", "test_error": "failure",
                                 "test_skipped": "skipped", "test_parts": "failure"})

    def test_a_filter_chooses(self):
        self.assertEqual(self.run_sample(SAMPLE, "test_ok"), (0, {"test_ok": "passed"}))

    def test_a_file_without_cases_fails(self):
        self.assertNotEqual(self.run_sample("x = 1")[0], 0)

    def test_a_file_that_does_not_load_fails(self):
        status, cases = self.run_sample("import no_such_module")
        self.assertNotEqual(status, 0)
        self.assertIsNone(cases)


if __name__ == "__main__":
    unittest.main()
