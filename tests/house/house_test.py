"""Every rule over the whole tree, and over its own samples.

Started with the path of the WORKSPACE file of the tree.
"""
import os
import sys
import unittest

import harness
import rules_cxx  # noqa: F401  (registers its rules)
import rules_size  # noqa: F401
import rules_text  # noqa: F401

ROOT = os.path.dirname(os.path.realpath(sys.argv[1]))
TREE = harness.read_tree(ROOT)


class TheTree(unittest.TestCase):
    """Keeps the rules."""

    def test_is_the_real_one(self):
        for path in ("WORKSPACE", "tools/test", "tests/house/house_test.py"):
            self.assertIn(path, TREE, "not a tree to judge: " + ROOT)


class TheSamples(unittest.TestCase):
    """Show that each rule fires, and where it does not."""


def keeps(rule):
    def test(self):
        faults = []
        for path in sorted(TREE):
            if TREE[path] is not None:
                faults += rule.faults(path, TREE[path], TREE)
        if faults:
            self.fail("%d faults\n%s" % (len(faults), "\n".join(faults)))
    test.__doc__ = rule.function.__doc__
    return test


def fires(rule):
    def test(self):
        for path, text, *tree in rule.bad:
            with self.subTest(bad=text[:200]):
                self.assertTrue(rule.faults(path, text, tree[0] if tree else {}))
        for path, text, *tree in rule.good:
            with self.subTest(good=text[:200]):
                self.assertEqual(rule.faults(path, text, tree[0] if tree else {}), [])
    return test


for each in harness.RULES:
    setattr(TheTree, "test_" + each.name, keeps(each))
    setattr(TheSamples, "test_" + each.name, fires(each))


if __name__ == "__main__":
    unittest.main()
