"""What a rule is, and the tree that rules look at.

A rule is a function (path, text, tree) that yields (line, message) for each fault in
one file. It is registered with samples: a rule that does not fire on its bad samples,
or fires on its good ones, fails the test as well.
"""
import os

RULES = []

SKIPPED_FOLDERS = {".git", ".cache", "__pycache__", "build_out"}
SKIPPED_FILES = {"compile_commands.json", "user.bazelrc"}


class Rule:
    """A check with its samples: (path, text) or (path, text, {path: text})."""

    def __init__(self, function, bad, good):
        self.function = function
        self.name = function.__name__
        self.bad = bad
        self.good = good

    def faults(self, path, text, tree):
        return ["%s:%d: %s" % (path, line, message)
                for line, message in self.function(path, text, tree)]


def rule(bad, good=()):
    def register(function):
        assert bad, "a rule needs a sample on which it fires"
        RULES.append(Rule(function, list(bad), list(good)))
        return function
    return register


def read_tree(root):
    """{path: text} of all text files below root; links (Bazel's) are not followed."""
    tree = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS
                      and not os.path.islink(os.path.join(folder, f))]
        for name in files:
            path = os.path.join(folder, name)
            if name in SKIPPED_FILES or os.path.islink(path):
                continue
            with open(path, "rb") as f:
                data = f.read()
            key = os.path.relpath(path, root)
            try:
                tree[key] = None if b"\0" in data[:8192] else data.decode("utf-8")
            except UnicodeDecodeError:
                tree[key] = None
    return tree


def matches(text, pattern):
    """(line, match) of each match of a compiled pattern."""
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match
