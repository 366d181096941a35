"""What the guides say of the adapters exists: their code parses, and the names are there."""
import package  # first: it makes kvtier importable
import ast
import inspect
import os
import re
import textwrap
import unittest

from kvtier.hisparse import (Assignment, HiSparseConfig, HiSparseCoordinator, HiSparseTier,
                             Ranks)
from kvtier.sglang import HiSparseCoordinator as SglangCoordinator

DOCS = os.path.join("client", "python", "docs")
assert package.PYTHON_PATH
OBJECTS = {
    "vllm.md": {"tier": HiSparseTier, "coordinator": HiSparseCoordinator},
    "sglang.md": {"coordinator": SglangCoordinator},
}
# Attributes that instances have and classes do not show.
ATTRIBUTES = {"cache"}


class GuideTest(unittest.TestCase):
    def guides(self):
        for name, objects in OBJECTS.items():
            with open(os.path.join(DOCS, name)) as file:
                yield name, file.read(), objects

    def calls(self, name, text):
        """(function's name, its keywords) of every call in the code of a guide."""
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        self.assertGreater(len(blocks), 0, name)
        for block in blocks:
            for node in ast.walk(ast.parse(textwrap.dedent(block), name)):
                if isinstance(node, ast.Call):
                    function = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    yield function, [keyword.arg for keyword in node.keywords]

    def test_names_exist(self):
        for name, text, objects in self.guides():
            for variable, cls in objects.items():
                used = set(re.findall(r"\b%s\.(\w+)" % variable, text)) - ATTRIBUTES
                self.assertGreater(len(used), 1, name)
                for attribute in used:
                    self.assertTrue(hasattr(cls, attribute), "%s: %s.%s" % (name, variable,
                                                                           attribute))

    def test_keywords_exist(self):
        for name, text, objects in self.guides():
            known = {cls.__name__: cls for cls in (Assignment, HiSparseConfig, Ranks)}
            for cls in objects.values():
                known[cls.__name__] = cls
                known.update(inspect.getmembers(cls, inspect.isfunction))
            checked = 0
            for function, keywords in self.calls(name, text):
                if function in known:
                    parameters = inspect.signature(known[function]).parameters
                    self.assertLessEqual(set(keywords), set(parameters), (name, function))
                    checked += 1
            self.assertGreater(checked, 0, name)

    def test_sglang_signatures_are_said_as_they_are(self):
        with open(os.path.join(DOCS, "sglang.md")) as file:
            text = file.read()
        for call in ("map_last_loc_to_buffer", "swap_in_selected_pages"):
            names = list(inspect.signature(getattr(SglangCoordinator, call)).parameters)[1:]
            self.assertIn("%s(%s)" % (call, ", ".join(names)), text)


if __name__ == "__main__":
    unittest.main()
