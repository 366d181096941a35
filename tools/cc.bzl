"""C++ targets of this project: Bazel's own, with our warnings as errors.

    kv_cc_library, kv_cc_binary    as cc_library, cc_binary
    kv_cc_test                     with gMock's main; cuda = True where a GPU is needed
    kv_cc_benchmark                a Google Benchmark binary

Visibility is private unless a target or its package says otherwise, with one of the
groups in the root BUILD.bazel.
"""

load("@system_libs//:defs.bzl", "COMPILER")
load("//tools:cuda.bzl", "needs_cuda")

# System headers never warn: their folders are the compiler's own, or -isystem.
_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wnon-virtual-dtor",
    "-Wvla",
    # Fields left out of Options{.a = 1} have their defaults on purpose.
    "-Wno-missing-field-initializers",
]

_COMPILER_COPTS = {
    "clang": [
        "-Wthread-safety",
    ],
    "gcc": [
        # Wrong about std::string in optimized and sanitized builds of gcc 12.
        "-Wno-restrict",
        # The optimizer's guesses are worth reading, and too often wrong to stop at.
        "-Wno-error=array-bounds",
        "-Wno-error=free-nonheap-object",
        "-Wno-error=maybe-uninitialized",
        "-Wno-error=stringop-overflow",
        "-Wno-error=stringop-overread",
    ],
}

KV_COPTS = _COPTS + _COMPILER_COPTS[COMPILER]

def kv_cc_library(name, copts = [], **kwargs):
    """cc_library with our warnings."""
    native.cc_library(name = name, copts = KV_COPTS + copts, **kwargs)

def kv_cc_binary(name, copts = [], **kwargs):
    """cc_binary with our warnings."""
    native.cc_binary(name = name, copts = KV_COPTS + copts, **kwargs)

def kv_cc_test(name, copts = [], deps = [], size = "small", cuda = False, main = True, tags = [], **kwargs):
    """cc_test with our warnings, GoogleTest and GoogleMock.

    Args:
      name: ends in _test.
      copts: further options.
      deps: without the test library.
      size: small unless it must be more.
      cuda: built only where nvcc is, and tagged "cuda". It still has to
        GTEST_SKIP() where there is no GPU: tools/test counts and lists what was
        skipped, so nobody takes it for passed.
      main: False if the test has a main() of its own.
      tags: further tags.
      **kwargs: of cc_test.
    """
    if cuda:
        kwargs["target_compatible_with"] = needs_cuda()
    native.cc_test(
        name = name,
        copts = KV_COPTS + copts,
        size = size,
        deps = deps + ["@system_libs//:gmock_main" if main else "@system_libs//:gmock"],
        tags = tags + (["cuda"] if cuda else []),
        **kwargs
    )

def kv_cc_benchmark(name, copts = [], deps = [], cuda = False, main = True, tags = [], **kwargs):
    """A Google Benchmark binary: built by //..., run by hand with `bazel run -c opt`.

    Args:
      name: ends in _benchmark.
      copts: further options.
      deps: without the benchmark library.
      cuda: built only where nvcc is.
      main: False if the benchmark has a main() of its own.
      tags: further tags.
      **kwargs: of cc_binary.
    """
    if cuda:
        kwargs["target_compatible_with"] = needs_cuda()
    native.cc_binary(
        name = name,
        testonly = True,
        copts = KV_COPTS + copts,
        deps = deps + ["@system_libs//:benchmark_main" if main else "@system_libs//:benchmark"],
        tags = tags + ["benchmark"] + (["cuda"] if cuda else []),
        **kwargs
    )
