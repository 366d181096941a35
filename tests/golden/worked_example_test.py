"""The two forms of the worked example are one, and the README tells the same one."""
import json
import re
import unittest

FOLDER = "tests/golden/"


def header_values():
    """Constants of the header: {"kTopK": 8, "kSlots": [150, ...], ...}."""
    with open(FOLDER + "worked_example.h") as f:
        text = f.read()
    values = {}
    for name, number in re.findall(r"constexpr int32_t (k\w+) = (-?\d+);", text):
        values[name] = int(number)
    for name, numbers in re.findall(r"constexpr std::array<int32_t, \d+> (k\w+) = \{([^}]*)\};", text):
        values[name] = [int(n) for n in numbers.split(",")]
    return values


def constant_name(key):
    return "k" + "".join(word.capitalize() for word in key.split("_"))


class WorkedExampleTest(unittest.TestCase):
    def setUp(self):
        with open(FOLDER + "worked_example.json") as f:
            self.example = json.load(f)

    def test_header_and_json_agree(self):
        self.assertEqual({constant_name(k): v for k, v in self.example.items()}, header_values())

    def test_readme_tells_it(self):
        with open("kernels/README.md") as f:
            told = re.sub(r"\s+", "", f.read())
        for key in ("owner_before", "lru_before", "slots", "hot_indices", "miss_mask", "lru_after",
                    "aged_score_before", "aged_score_after", "aged_hot_indices",
                    "aged_lru_after"):
            numbers = ",".join(str(n) for n in self.example[key])
            self.assertIn("[%s]" % numbers, told, key)

    def test_setup_touches_the_order(self):
        """The setup's last steps ask for the owners in the order that is to be."""
        order = self.example["lru_before"]
        self.assertEqual(sorted(order), list(range(self.example["hot_size"])))
        self.assertEqual(len(order) + 2, self.example["setup_step_count"])


if __name__ == "__main__":
    unittest.main()
