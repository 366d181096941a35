"""How large a file and a function may grow."""
import cxx
from harness import rule

HEADER_LINES_MAX = 200
SOURCE_LINES_MAX = 400
KERNEL_LINES_MAX = 320
FUNCTION_LINES_MAX = 70
ADR_LINES_MAX = 80


def _too_long(text, limit):
    count = len(text.splitlines())
    if count > limit:
        yield count, "%d lines; at most %d" % (count, limit)


@rule(bad=[("server/core/a.h", "\n" * 201), ("kernels/testing/a.h", "\n" * 201)],
      good=[("server/core/a.h", "\n" * 200)])
def headers_are_short(path, text, tree):
    if path.endswith(".h"):
        yield from _too_long(text, HEADER_LINES_MAX)


@rule(bad=[("client/a.cc", "\n" * 401)], good=[("client/a.cc", "\n" * 400)])
def sources_are_short(path, text, tree):
    if path.endswith(".cc"):
        yield from _too_long(text, SOURCE_LINES_MAX)


@rule(bad=[("kernels/cuda/a.cu", "\n" * 321), ("kernels/cuda/a.cuh", "\n" * 321)],
      good=[("kernels/cuda/a.cu", "\n" * 320)])
def kernel_files_are_short(path, text, tree):
    if path.endswith(cxx.KERNEL_FILES):
        yield from _too_long(text, KERNEL_LINES_MAX)


@rule(bad=[("docs/adr/0001-a.md", "\n" * 81)], good=[("docs/ARCHITECTURE.md", "\n" * 81)])
def decisions_are_short(path, text, tree):
    if path.startswith("docs/adr/") and path.endswith(".md"):
        yield from _too_long(text, ADR_LINES_MAX)


_BODY = "  x();\n" * 69
_LONG = [
    "namespace a {\nvoid F() {\n%s}\n}  // namespace a\n" % _BODY,
    "void F(int a,\n       int b) {\n%s}\n" % _BODY[7:],
    "A::A() : b_{1}, c_{2} {\n%s}\n" % _BODY,
    "template <typename T = int>\nT F() {\n%s}\n" % _BODY[7:],
    "class A {\n public:\n  void F() const override {\n%s  }\n};\n" % _BODY,
    "bool operator==(const A& a, const A& b) {\n%s}\n" % _BODY,
    "TEST(Suite, Case) {\n%s}\n" % _BODY,
    "__global__ void F() {\n#if X\n%s}\n" % _BODY[7:],
    "void F() {\n  if (x) {\n%s  }\n}\n" % _BODY[14:],
]
_SHORT = [
    "void F() {\n%s}\n" % _BODY[7:],
    "void F() {\n%s}\nvoid G() {\n%s}\n" % (_BODY[14:], _BODY[14:]),
    "namespace a {\n%s}\n" % ("void F();\n" * 100),
    "class CAPABILITY(\"mutex\") A {\n%s};\n" % ("  int F();\n" * 100),
    "constexpr int kTable[] = {\n%s};\n" % ("  1,\n" * 100),
    "const auto kF = Make({\n%s});\n" % ("  1,\n" * 100),
    "FLAG(A, B({1}), x);\n%s" % ("FLAG(A, ({1, 2}), x);\n" * 100),
    "// void F() {\n%s" % ("// x\n" * 100),
]


@rule(bad=[("server/a.cc", t) for t in _LONG], good=[("server/a.cc", t) for t in _SHORT])
def functions_are_short(path, text, tree):
    if not path.endswith(cxx.EXTENSIONS):
        return
    for first, last, head in cxx.functions(text):
        if last - first + 1 > FUNCTION_LINES_MAX:
            yield first, "%s: %d lines; at most %d" % (
                head[:60], last - first + 1, FUNCTION_LINES_MAX)
