"""What any file of the tree may say: words, links, build files."""
import os
import re

from harness import matches, rule

# In pieces, as this file is read as well.
_REGISTRIES = re.compile("|".join(re.escape(a + b) for a, b in [
    ("pypi", ".org"), ("python", "hosted.org"), ("deb.debian", ".org"),
    ("security.debian", ".org"), ("archive.ubuntu", ".com"), ("registry.npmjs", ".org"),
    ("crates", ".io"), ("proxy.golang", ".org"), ("repo.maven", ".apache.org"),
]))
_OWN_PATHS = re.compile(r"(?<![\w.$})~-])/(?:work|root)/|/(?:home|Users)/[a-z]\w*/")
_LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


@rule(bad=[("a.md", "from pypi" + ".org"), ("tools/x", "http://deb.debian" + ".org/debian")],
      good=[("a.md", "a Debian package")])
def no_registry_is_named(path, text, tree):
    for line, match in matches(text, _REGISTRIES):
        yield line, "names the host of a package registry: " + match.group(0)


@rule(bad=[("a.md", "see /wo" + "rk/x"), ("a.cc", '"/ro' + 'ot/.cache"'),
           ("tools/x", "cd /ho" + "me/jane/src")],
      good=[("a.md", "bazel-bin/root/x, $TMP/work/x, https://a/work/")])
def no_path_of_one_machine(path, text, tree):
    for line, match in matches(text, _OWN_PATHS):
        yield line, "a path that exists on one machine only: " + match.group(0)


@rule(bad=[("a.py", "# TO" + "DO(me): later"), ("a.md", "FIX" + "ME"), ("b.cc", "// X" + "XX")],
      good=[("a.cc", 'mkdtemp("/tmp/a.XX' + 'XXXX")')])
def nothing_is_left_for_later(path, text, tree):
    for line, match in matches(text, _LATER):
        yield line, match.group(0) + ": do it, or file an issue"


_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def _slug(heading):
    words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
    return words.strip().replace(" ", "-")


def _anchors(text):
    body = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {_slug(m) for m in re.findall(r"^#+\s+(.*)$", body, re.MULTILINE)}


def _exists(path, tree):
    return path in tree or path == "." or any(p.startswith(path.rstrip("/") + "/") for p in tree)


_DOCS = {"README.md": "# A\n## B c\n", "docs/x.md": "", "tools/test": ""}


@rule(bad=[("docs/x.md", "[a](gone.md)", _DOCS), ("README.md", "[a](docs/y.md)", _DOCS),
           ("docs/x.md", "[a](../README.md#c)", _DOCS), ("docs/x.md", "![a](a.svg)", _DOCS),
           ("docs/x.md", "# A\n[a](#b)", _DOCS)],
      good=[("docs/x.md", "[a](../README.md#b-c) [b](../tools/test) [c](../tools/)", _DOCS),
            ("docs/x.md", "# B\n[a](https://example.com/x) [b](#b) `[c](gone.md)`", _DOCS)])
def links_lead_somewhere(path, text, tree):
    """Relative links in Markdown: the file is there, and so is the heading."""
    if not path.endswith(".md"):
        return
    body = _FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
    for line, match in matches(body, _LINK):
        target, _, anchor = (match.group(1) or match.group(2)).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if target and not _exists(file, tree):
            yield line, "no file " + file
        elif anchor and file.endswith(".md"):
            page = text if file == path else tree.get(file) or ""
            if anchor not in _anchors(page):
                yield line, "no heading #%s in %s" % (anchor, file)


_CASE = re.compile(r"^\| ([KDOQ]\d\d) \|.*$", re.M)
_TEST_LINK = re.compile(r"\[`(\w+)`\]\(\.\./([^)]+)\)")
_CASES = {"a_test.cc": "TEST(A, K01_x) {}"}


@rule(bad=[("docs/TESTING.md", "| K01 | f | [`K01_y`](../a_test.cc) | pass |\n", _CASES),
           ("docs/TESTING.md", "| K01 | f | - | pass |\n", _CASES)],
      good=[("docs/TESTING.md", "| K01 | f | [`K01_x`](../a_test.cc) | pass |\n", _CASES)])
def cases_have_tests(path, text, tree):
    """Each row of the table of cases links to a test, and tests that it names are there."""
    if path != "docs/TESTING.md":
        return
    for line, row in matches(text, _CASE):
        if "](../" not in row.group(0):
            yield line, "no test of " + row.group(1)
        for name, file in _TEST_LINK.findall(row.group(0)):
            if name not in (tree.get(file) or ""):
                yield line, "no %s in %s" % (name, file)


@rule(bad=[("server/core/BUILD.bazel", 'visibility = ["//visibility:public"]')],
      good=[("tools/BUILD.bazel", 'visibility = ["//visibility:public"]')])
def floors_are_not_public(path, text, tree):
    """Packages name their users by a group of the root BUILD.bazel."""
    if path.endswith("BUILD.bazel") and path.startswith(("client/", "kernels/", "proto/", "server/")):
        for line, _ in matches(text, re.compile("//visibility:public")):
            yield line, "public visibility; see the groups in the root BUILD.bazel"


@rule(bad=[("client/BUILD.bazel", 'cc_library(name = "a")'),
           ("client/BUILD.bazel", '\ncc_test(\n    name = "a",\n)')],
      good=[("client/BUILD.bazel", 'kv_cc_library(name = "a")')])
def cxx_targets_have_our_warnings(path, text, tree):
    if path.endswith("BUILD.bazel") and path.startswith(("client/", "kernels/", "server/", "tests/")):
        for line, match in matches(text, re.compile(r"^cc_(?:library|binary|test)\b", re.MULTILINE)):
            yield line, "%s: use kv_%s of //tools:cc.bzl" % (match.group(0), match.group(0))


@rule(bad=[(".clang-tidy", "# -a: why\nChecks: >-\n  a*,\n  -a,\n  -b\n"),
           (".clang-tidy", "# -a:\nChecks: >-\n  -a\n")],
      good=[(".clang-tidy", "# -a: why\nChecks: >-\n  -*,\n  a*,\n  -a\n")])
def checks_are_off_for_a_reason(path, text, tree):
    if path != ".clang-tidy":
        return
    explained = set(re.findall(r"^# -([\w.-]+): *\S", text, re.MULTILINE))
    for line, match in matches(text, re.compile(r"^  -([\w.-]+),?$", re.MULTILINE)):
        if match.group(1) not in explained:
            yield line, "no reason in a comment for -" + match.group(1)
