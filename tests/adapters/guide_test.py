"""What the guides say of the adapters exists: their code compiles, and the names are there."""
import package  # first: it makes kvtier importable
import inspect
import os
import re
import textwrap
import unittest

from kvtier.hisparse import HiSparseCoordinator, HiSparseTier
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

    def test_code_compiles(self):
        for name, text, _ in self.guides():
            blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            self.assertGreater(len(blocks), 0, name)
            for block in blocks:
                compile(textwrap.dedent(block), name, "exec")

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
            for call, arguments in re.findall(r"\b(\w+)\(((?:[^()]|\([^()]*\))*)\)", text):
                for cls in objects.values():
                    function = cls if call == cls.__name__ else getattr(cls, call, None)
                    if function is None or not callable(function):
                        continue
                    known = inspect.signature(function).parameters
                    for keyword in re.findall(r"(?:^|[,\s(])(\w+)=", arguments):
                        if call == "HiSparseCoordinator" and keyword in ("top_k", "host_pool_gib",
                                                                         "device_buffer_size"):
                            continue  # of the config inside
                        self.assertIn(keyword, known, "%s: %s" % (name, call))

    def test_sglang_signatures_are_said_as_they_are(self):
        with open(os.path.join(DOCS, "sglang.md")) as file:
            text = file.read()
        for call in ("map_last_loc_to_buffer", "swap_in_selected_pages"):
            names = list(inspect.signature(getattr(SglangCoordinator, call)).parameters)[1:]
            self.assertIn("%s(%s)" % (call, ", ".join(names)), text)


if __name__ == "__main__":
    unittest.main()
