"""Repository rule: gRPC's own .proto files (health, reflection) of the system.

Without the package grpc-proto the targets exist, but are incompatible with every
platform: `bazel build //...` skips what needs them.
"""

_PREFIX = "/usr/share/grpc-proto"

_ABSENT = """package(default_visibility = ["//visibility:public"])

[
    cc_library(
        name = name,
        target_compatible_with = ["@system_libs//:not_installed"],
    )
    for name in ["health_cc_grpc", "health_py", "reflection_py"]
]
"""

def _grpc_proto_impl(rctx):
    if rctx.path(_PREFIX + "/grpc/health/v1/health.proto").exists:
        rctx.symlink(_PREFIX + "/grpc", "grpc")
        rctx.symlink(Label("@//third_party:grpc_proto.BUILD"), "BUILD.bazel")
    else:
        rctx.file("BUILD.bazel", _ABSENT)
        print("%s is not there (package grpc-proto): what needs it is skipped" % _PREFIX)  # buildifier: disable=print

grpc_proto = repository_rule(
    implementation = _grpc_proto_impl,
    # Asked again whenever the server starts, as the package may have come since.
    local = True,
)
