"""Stand-ins for the repositories that Bazel 4 would download for itself.

Bazel's own packages load @rules_cc, @rules_java and @rules_proto, and every test
names @remote_coverage_tools. The stubs answer with Bazel's built-in rules, so that
a build needs no network. A repository declared in WORKSPACE wins over Bazel's.
"""

def bazel_stubs():
    # Debian's Bazel 4 calls itself "". Later versions load more from these
    # repositories than the stubs have: they get the real ones.
    version = native.bazel_version
    if version and not version.startswith("4."):
        return
    for name in ["remote_coverage_tools", "rules_cc", "rules_java", "rules_proto"]:
        native.local_repository(
            name = name,
            path = "third_party/bazel_stubs/" + name,
        )
