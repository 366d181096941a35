"""The example of README.md, as it stands there."""
import contextlib
import io
import os
import re
import unittest

import daemon

README = os.environ.get("KVTIER_README", os.path.join(os.path.dirname(__file__), "..", "README.md"))


class ExampleTest(unittest.TestCase):
    def test_the_readme_says_what_it_prints(self):
        with open(README, encoding="utf-8") as file:
            text = file.read()
        code = re.search(r"```python\n(.*?)```\s*prints `([^`]*)`", text, re.DOTALL)
        self.assertIsNotNone(code, "no example in README.md")
        self.assertEqual(len(code[1].splitlines()), 10)
        host, output = daemon.Daemon(self), io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code[1], {"socket_path": host.socket})  # pylint: disable=exec-used
        self.assertEqual(output.getvalue().strip(), code[2])
        daemon.wait_until(lambda: host.stats()["sessions"] == 0, "the session has ended")


if __name__ == "__main__":
    unittest.main()
