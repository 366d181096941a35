"""The floors of the house as a table: which folder may include from which.

A zone is the longest prefix of a path in ZONES. A file includes from its own zone and
from those listed; what is not listed is on the same floor or above.
"""

_CORE = ["server/core/", "kernels/"]
_DEVICE = ["server/device/"] + _CORE
_TIERS = ["server/host_pool/", "server/hot_tier/"] + _DEVICE
_SESSION = ["server/session/"] + _TIERS
_SERVICE = ["server/service/", "proto/"] + _SESSION
_CLIENT = ["client/", "kernels/", "proto/"]

ZONES = {
    "proto/": [],
    "kernels/": [],
    "server/core/": ["kernels/"],
    "server/device/": _CORE,
    # Floor-mates that meet only in the session.
    "server/host_pool/": _DEVICE,
    "server/hot_tier/": _DEVICE,
    "server/session/": _TIERS,
    "server/service/": _SESSION + ["proto/"],
    "server/config/": ["server/core/"],
    "server/": ["server/config/"] + _SERVICE,  # main.cc
    "client/": ["kernels/", "proto/"],
    "client/cli/": _CLIENT,
    "client/trace/": _CLIENT,
    "client/demo/": _CLIENT + ["client/trace/"],
    "tools/": _CLIENT + ["client/trace/"],
    "tests/": ["client/", "client/cli/", "client/demo/", "client/trace/", "server/", "server/config/"]
    + _SERVICE,
}

# Who may know of gRPC and protobuf, of CUDA, and of Abseil.
RPC_ZONES = {"client/", "client/cli/", "client/demo/", "client/trace/", "proto/", "server/",
             "server/service/", "tests/", "tools/"}
RPC_HEADERS = ("grpc/", "grpc++/", "grpcpp/", "google/protobuf/", "google/rpc/", "proto/")
CUDA_HEADERS = ("cuda", "cub/", "thrust/", "nvtx3/", "driver_types.h", "vector_types.h",
                "cooperative_groups")
ABSEIL_HEADERS = ("absl/",)


def zone_of(path):
    """The zone of a file, or None for what is in none (a system header)."""
    found = [z for z in ZONES if path.startswith(z)]
    return max(found, key=len) if found else None


def may_see_cuda(path):
    if path.startswith("kernels/"):
        return path.endswith((".cu", ".cuh")) or path.startswith("kernels/cuda/")
    if path.startswith("client/"):
        return "cuda" in path
    return path.startswith(("server/device/", "tests/"))
