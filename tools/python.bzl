"""py3_test: a Python test for the system's python3.

    py3_test(name = "house_test", main = "house_test.py", srcs = ["rules.py"])

Bazel 4's own py_test starts `python`, which Debian does not have, and another
python3 in PATH would not see Debian's python3-grpcio. So this is a sh_test that
names /usr/bin/python3.
"""

def py3_test(name, main, srcs = [], data = [], args = [], size = "small", **kwargs):
    """Runs the unittest cases of `main`; each is counted on its own.

    The root of this repository and of every external one is on sys.path. Tests must
    not call unittest.main() outside `if __name__ == "__main__":`.

    Args:
      name: ends in _test.
      main: the .py file with the cases.
      srcs: .py files and py_grpc_library targets that it imports.
      data: files and binaries that it reads or starts.
      args: sys.argv[1:] of `main`; may use $(rootpath ...) of data.
      size: small unless it must be more.
      **kwargs: of sh_test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tools:py3_test.sh"],
        args = ["$(rootpath %s)" % main] + args,
        data = [main, "//tools:py3_test.py"] + srcs + data,
        **kwargs
    )
