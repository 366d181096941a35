"""What C++ and CUDA files may include and say."""
import re

import cxx
import floors
from harness import matches, rule


def _is_cxx(path):
    return path.endswith(cxx.EXTENSIONS) and not path.startswith("third_party/")


def _starts(header, prefixes):
    return header.startswith(tuple(prefixes))


@rule(bad=[
    ("server/core/a.h", '#include "server/device/backend.h"'),
    ("server/host_pool/a.cc", '#include "server/hot_tier/hot_tier.h"'),
    ("server/hot_tier/a_test.cc", '#include "server/host_pool/host_pool.h"'),
    ("server/device/a.cc", '#include "server/session/node.h"'),
    ("server/session/a.cc", '#include "server/service/service.h"'),
    ("server/service/a.cc", '#include "client/cache.h"'),
    ("client/a.cc", '#include "server/core/error.h"'),
    ("client/a.cc", '#include "client/trace/trace_file.h"'),
    ("client/cli/a.cc", '#include "client/trace/trace_file.h"'),
    ("kernels/a.cc", '#include "server/core/limits.h"'),
    ("kernels/a.cc", '/* why */ \n#  include "client/cache.h"'),
    ("server/core/a.cc", '#include "tests/house/a.h"'),
], good=[
    ("server/session/a.cc", '#include "server/host_pool/host_pool.h"\n#include "kernels/layout.h"'),
    ("server/core/a.cc", '#include "server/core/a.h"\n// #include "client/cache.h"'),
    ("server/main.cc", '#include "server/service/service.h"\n#include <vector>'),
    ("client/cli/a.cc", '#include "client/cache.h"'),
    ("client/demo/a_test.cc", '#include "tests/traces/documents.h"'),
    ("tests/e2e/a_test.cc", '#include "client/cache.h"\n#include "server/session/node.h"'),
])
def includes_point_down(path, text, tree):
    """A file includes from its own folder and from lower floors."""
    own = floors.zone_of(path)
    if own is None or not _is_cxx(path):
        return
    for line, header in cxx.includes(text):
        other = floors.zone_of(header)
        if other == "tests/" and cxx.is_test(path):
            continue
        if other and other != own and other not in floors.ZONES[own]:
            yield line, "%s may not include from %s" % (own, other)


@rule(bad=[("server/session/a.cc", '#include "server/session/testing/fake.h"'),
           ("kernels/cpu/a.h", '#include "kernels/testing/step.h"')],
      good=[("kernels/testing/a.cc", '#include "kernels/testing/step.h"'),
            ("server/session/a_test.cc", '#include "server/session/testing/fake.h"')])
def test_helpers_stay_in_tests(path, text, tree):
    if _is_cxx(path) and not cxx.is_test(path):
        for line, header in cxx.includes(text):
            if floors.zone_of(header) and cxx.is_test(header):
                yield line, "%s is for tests" % header


@rule(bad=[
    ("server/core/a.h", "#include <grpcpp/grpcpp.h>"),
    ("server/session/a.cc", '#include "proto/kvtier/v1/kvtier.pb.h"'),
    ("server/hot_tier/a_test.cc", "#include <google/protobuf/message.h>"),
    ("kernels/a.cc", "#include <grpc/grpc.h>"),
], good=[("server/service/a.cc", "#include <grpcpp/grpcpp.h>")])
def rpc_stays_at_the_edges(path, text, tree):
    """gRPC and protobuf are known to server/service, client/ and main() alone."""
    if not _is_cxx(path) or floors.zone_of(path) in floors.RPC_ZONES:
        return
    for line, header in cxx.includes(text):
        if _starts(header, floors.RPC_HEADERS):
            yield line, "gRPC or protobuf below server/service"


@rule(bad=[
    ("server/session/a.cc", "#include <cuda_runtime_api.h>"),
    ("kernels/params.h", "#include <cuda_bf16.h>"),
    ("client/cache.cc", "#include <cuda.h>"),
    ("kernels/cpu/a.cc", "#include <cub/cub.cuh>"),
], good=[
    ("kernels/cuda/launch.h", "#include <cuda_runtime_api.h>"),
    ("kernels/a.cu", "#include <cub/cub.cuh>"),
    ("client/data_plane/cuda/memory.cc", "#include <cuda.h>"),
    ("server/device/cuda/a.h", "#include <cuda.h>"),
])
def cuda_stays_on_its_floor(path, text, tree):
    """CUDA headers: kernels/*.cu, kernels/cuda/, server/device/, client/*cuda*."""
    if not _is_cxx(path) or floors.may_see_cuda(path):
        return
    for line, header in cxx.includes(text):
        if _starts(header, floors.CUDA_HEADERS):
            yield line, "CUDA header " + header


@rule(bad=[("kernels/a.h", '#include "absl/status/status.h"')],
      good=[("kernels/a_test.cc", '#include "absl/strings/str_cat.h"')])
def kernels_need_no_abseil(path, text, tree):
    if not path.startswith("kernels/") or not _is_cxx(path) or cxx.is_test(path):
        return
    for line, header in cxx.includes(text):
        if _starts(header, floors.ABSEIL_HEADERS):
            yield line, "Abseil in kernels/"


@rule(bad=[
    ("client/a.h", "// What it is.\n#ifndef A_H\n#define A_H\n#endif\n"),
    ("kernels/a.cuh", "// What it is.\n"),
    ("kernels/a.h", "#pragma once\n"),
    ("kernels/a.h", "#pragma once\n// What it is.\n"),
], good=[("client/a.h", "// What it is.\n//\n// More.\n#pragma once\n")])
def headers_say_what_they_are(path, text, tree):
    """A comment on the file, then #pragma once; no include guard."""
    if not path.endswith(cxx.HEADERS) or not _is_cxx(path):
        return
    lines = text.splitlines()
    if not lines or not re.match(r"//\s*\S", lines[0]):
        yield 1, "starts with no comment that says what it is for"
    if not any(line == "#pragma once" for line in lines):
        yield 1, "has no #pragma once"
    if re.search(r"^#ifndef\s+(\w+)\s*\n#define\s+\1\s*$", text, re.MULTILINE):
        yield 1, "has an include guard beside or instead of #pragma once"


@rule(bad=[("client/a.h", "using namespace std;"),
           ("client/a.h", "namespace a {\nusing  namespace std;\n}")],
      good=[("client/a.cc", "using namespace std::chrono_literals;"),
            ("client/a.h", "// using namespace std;")])
def headers_open_no_namespace(path, text, tree):
    if path.endswith(cxx.HEADERS) and _is_cxx(path):
        for line, _ in matches(cxx.code_only(text), re.compile(r"\busing\s+namespace\b")):
            yield line, "using namespace in a header"


_PRINT = re.compile(r"\bstd\s*::\s*cout\b|(?<![\w.>])(?:std\s*::\s*)?(?:v?printf|puts|putchar)\s*\(")


def _may_print(path):
    return (cxx.is_test(path) or path == "server/main.cc" or path.endswith("_main.cc")
            or path.startswith(("client/cli/", "tools/")))


@rule(bad=[("server/session/a.cc", "std::cout << 1;"), ("client/a.cc", '  printf("x");'),
           ("kernels/a.cu", 'std::puts("x");')],
      good=[("client/cli/a.cc", "std::cout << 1;"), ("client/a.cc", "std::snprintf(b, 1, f);"),
            ("server/a.cc", '// printf("x")'), ("client/demo/worker_main.cc", "printf(f);")])
def libraries_print_nothing(path, text, tree):
    if _is_cxx(path) and not _may_print(path):
        for line, match in matches(cxx.code_only(text), _PRINT):
            yield line, "prints: " + match.group(0).strip("( ")


def _top_level_parts(arguments):
    parts, depth = [""], 0
    for char in arguments:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts]


@rule(bad=[
    ("kernels/a.cu", "F<<<1, 32>>>(x);"),
    ("kernels/a.cu", "F<<<G(a, b), 32, sizeof(int)>>>(x);"),
    ("kernels/a.cu", "F<<<1, 32, 0, 0>>>(x);"),
    ("kernels/a.cu", "F<<<1, 32, 0, nullptr>>>(x);"),
    ("server/device/cuda/a.cc", "cudaMemcpy(a, b, n, kind);"),
    ("kernels/cuda/a.cu", "return cudaMemset(a, 0, n);"),
], good=[
    ("kernels/a.cu", "F<int><<<Blocks(a, b), 32, 0, stream>>>(x);"),
    ("kernels/a.cu", "cudaMemcpyAsync(a, b, n, kind, stream);  // not cudaMemcpy()"),
    ("kernels/a.cc", "std::cout << a;"),
])
def device_streams_are_named(path, text, tree):
    """No launch, copy or fill on the default stream, which waits for all others."""
    if not _is_cxx(path):
        return
    code = cxx.code_only(text)
    for line, match in matches(code, re.compile(r"<<<(.*?)>>>", re.DOTALL)):
        parts = _top_level_parts(match.group(1))
        if len(parts) < 4 or parts[3] in ("0", "nullptr", "NULL"):
            yield line, "launch on the default stream"
    if not cxx.is_test(path):
        for line, match in matches(code, re.compile(r"\bcuda(?:Memcpy|Memset)(?:2D|3D)?\s*\(")):
            yield line, "%s) works on the default stream" % match.group(0)


_SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(")


@rule(bad=[("client/a_test.cc", "absl::SleepFor(absl::Seconds(1));"),
           ("tests/e2e/a.cc", "std::this_thread::sleep_for(1s);"),
           ("server/core/a_test.cc", "usleep(10);")],
      good=[("server/core/clock.cc", "absl::SleepFor(d);"),
            ("server/core/a_test.cc", "// never sleep()\nclock.Advance(d);"),
            ("tests/load/pace.h", "absl::SleepFor(d);")])
def tests_never_sleep(path, text, tree):
    # A load has a pace: that file is the one place where it is kept.
    if path == "tests/load/pace.h":
        return
    if _is_cxx(path) and cxx.is_test(path) and not path.endswith("_benchmark.cc"):
        for line, _ in matches(cxx.code_only(text), _SLEEP):
            yield line, "sleeps: time is a parameter (server/core/clock.h)"


_EXCEPTION = re.compile(r"\bthrow\b|\bcatch\s*\(")
_ALLOWED = re.compile(r"//\s*house: allow exceptions: \S")


@rule(bad=[("server/a.cc", "if (x) throw 1;"), ("client/a.cc", "try {\n} catch (...) {\n}"),
           ("kernels/a.h", "throw std::bad_alloc();  // house: allow exceptions:")],
      good=[("server/a.cc", "// may throw\nF();  // catch (it)"),
            ("client/a.cc", "} catch (...) {  // house: allow exceptions: std::thread\n"),
            ("client/a.cc", "// house: allow exceptions: std::thread\n} catch (...) {\n"),
            ("client/a_test.cc", "EXPECT_NO_THROW(F());")])
def no_exceptions(path, text, tree):
    if not path.startswith(("server/", "kernels/", "client/")) or not _is_cxx(path):
        return
    lines = text.splitlines()
    for line, match in matches(cxx.code_only(text), _EXCEPTION):
        if not any(_ALLOWED.search(x) for x in lines[max(0, line - 2):line]):
            yield line, match.group(0).rstrip("( ") + " without a reason that allows it"


@rule(bad=[("client/a.cc", "f();  // NOLINT"), ("client/a.cc", "f();  // NOLINT(bugprone-x)"),
           ("client/a.cc", "// NOLINTNEXTLINE(bugprone-x)\nf();")],
      good=[("client/a.cc", "f();  // NOLINT(bugprone-x): the caller frees it")])
def lint_is_silenced_with_a_reason(path, text, tree):
    if _is_cxx(path):
        for line, _ in matches(text, re.compile(r"NOLINT(?!END)(?!\w*\([^)]+\): \S)")):
            yield line, "write NOLINT(check): reason"
