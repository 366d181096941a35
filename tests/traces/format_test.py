"""The trace files as the Python converter and the README's own lines read them."""

import pathlib
import re
import tempfile
import unittest

import numpy

from client.trace import trace_file

FOLDER = pathlib.Path("tests/traces")
BYTES_MAX = 3_000_000  # of all files, so that the repository stays small


class FormatTest(unittest.TestCase):
    def test_every_file_survives_a_round_trip(self):
        for path in sorted(FOLDER.glob("*.kvtrace")):
            data = path.read_bytes()
            positions, first_position = trace_file.unpack(data)
            self.assertEqual(positions.shape, (4, 256, 256), path)
            self.assertEqual(first_position, 16128, path)
            self.assertEqual(trace_file.pack(positions, first_position), data, path)

    def test_all_six_are_there_and_small(self):
        sizes = [path.stat().st_size for path in FOLDER.glob("*.kvtrace")]
        self.assertEqual(len(sizes), 6)
        self.assertLess(sum(sizes), BYTES_MAX)

    def test_the_lines_in_the_readme_read_a_file(self):
        readme = (FOLDER / "README.md").read_text(encoding="utf-8")
        code = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
        names = {}
        exec(code, names)  # pylint: disable=exec-used
        expected, first_position = trace_file.unpack((FOLDER / "novel.kvtrace").read_bytes())
        numpy.testing.assert_array_equal(names["positions"], expected)
        self.assertEqual(names["first"], first_position)

    def test_pack_and_check_by_command(self):
        random = numpy.random.default_rng(1)
        array = random.integers(0, 1001, (2, 3, 9), dtype=numpy.uint16)
        with tempfile.TemporaryDirectory() as folder:
            npy, trace = folder + "/a.npy", folder + "/a.kvtrace"
            numpy.save(npy, array)
            arguments = ["pack", npy, trace, "--columns", "5", "--first-position", "1000"]
            self.assertEqual(trace_file.main(arguments), 0)
            self.assertEqual(trace_file.main(["check", npy, trace]), 0)
            array[1, 2, 4] ^= 1
            numpy.save(npy, array)
            self.assertEqual(trace_file.main(["check", npy, trace]), 1)

    def test_nonsense_is_refused(self):
        data = (FOLDER / "novel.kvtrace").read_bytes()
        for wrong in (b"", data[:31], data[:-1], b"X" + data[1:], data[:8] + b"\2" + data[9:]):
            with self.assertRaises(ValueError):
                trace_file.unpack(wrong)
        with self.assertRaises(ValueError):
            trace_file.pack(numpy.full((1, 1, 1), 8, numpy.uint16), 7)


if __name__ == "__main__":
    unittest.main()
