"""As much C++ as the rules need: code without comments and strings, and functions."""
import re

EXTENSIONS = (".h", ".cuh", ".cc", ".cu")
HEADERS = (".h", ".cuh")
KERNEL_FILES = (".cu", ".cuh")

_TOKEN = re.compile(
    r'//[^\n]*'
    r'|/\*.*?\*/'
    r'|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    # Not the separator in 1'000.
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
# What stands before the brace of something that is not a function.
_NOT_FUNCTION = re.compile(
    r"^\s*(?:(?:inline|export|extern)\s+)*(?:namespace|class|struct|union|enum|extern|concept)\b")
_ACCESS = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
_PARENTHESES = re.compile(r"\([^()]*\)")
_TEMPLATE = re.compile(r"^\s*template\s*<")


def is_test(path):
    """Tests, benchmarks and what only they use."""
    stem = path.rsplit(".", 1)[0]
    return (path.startswith("tests/") or "/testing/" in path
            or stem.endswith(("_test", "_benchmark", "_fuzz")))


def blank(match):
    """As many lines of nothing, so that line numbers hold."""
    return re.sub(r"[^\n]", " ", match.group(0))


def without_comments(text):
    return _TOKEN.sub(lambda m: blank(m) if m.group(0).startswith("/") else m.group(0), text)


def code_only(text):
    """The text with comments and the contents of literals blanked out."""
    return _TOKEN.sub(blank, text)


def includes(text):
    """(line, path) of every #include."""
    clean = without_comments(text)
    for match in _INCLUDE.finditer(clean):
        yield clean.count("\n", 0, match.start()) + 1, match.group(1)


def _skip_template_head(head):
    """`template <class T> struct X` -> ` struct X`."""
    while _TEMPLATE.match(head):
        depth, position = 0, head.index("<")
        for position in range(position, len(head)):
            depth += {"<": 1, ">": -1}.get(head[position], 0)
            if depth == 0:
                break
        head = head[position + 1:]
    return head


def _opens_function(head):
    head = _skip_template_head(_ACCESS.sub("", head))
    if "(" not in head or _NOT_FUNCTION.match(head):
        return False
    # `Type name = {`, `name[] = {`: an initializer. Operators and default arguments
    # have their = inside or right before the parentheses.
    outside = re.sub(r"operator\s*[-+*/=!<>]=?=?", "operator", head)
    while _PARENTHESES.search(outside):
        outside = _PARENTHESES.sub("", outside)
    # An open parenthesis: a braced argument.
    return not re.search(r"[=(]", outside)


class _Scanner:
    """Walks over the braces of code; see functions()."""

    def __init__(self, code):
        self.code = code
        self.depth = 0
        self.start = 0  # of what stands before the next brace, outside functions
        self.base = None  # depth outside the function that we are in
        self.head = ""
        self.first = 0

    def _line(self, position):
        return self.code.count("\n", 0, position) + 1

    def open(self, position):
        if self.base is None:
            piece = self.code[self.start:position]
            if _opens_function(piece):
                self.base = self.depth
                self.head = " ".join(piece.split())
                self.first = self._line(self.start + len(piece) - len(piece.lstrip()))
            else:
                self.start = position + 1
        self.depth += 1

    def close(self, position):
        """The function that ends here, or None."""
        self.depth -= 1
        if self.base is None:
            self.start = position + 1
            return None
        if self.depth != self.base:
            return None
        following = self.code[position + 1:position + 200].lstrip()[:1]
        if following == ",":  # Foo::Foo() : a_{1}, b_{2} {: not the body yet
            return None
        self.base = None
        if following == "{":  # ... and this brace was the last before the body
            return None
        self.start = position + 1
        return self.first, self._line(position), self.head

    def end_statement(self, position):
        if self.base is None:
            self.start = position + 1


def functions(text):
    """(first line, last line, head) of each function body outside another function."""
    code = _DIRECTIVE.sub(blank, code_only(text))
    scanner = _Scanner(code)
    for match in re.finditer("[{};]", code):
        if match.group() == "{":
            scanner.open(match.start())
        elif match.group() == ";":
            scanner.end_statement(match.start())
        else:
            found = scanner.close(match.start())
            if found:
                yield found
