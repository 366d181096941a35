"""C++ and Python code from .proto files, by the protoc and plugins of the machine.

    proto_sources(name = "kvtier_proto", srcs = ["kvtier.proto"], deps = [":types_proto"])
    cc_grpc_library(name = "kvtier_cc_grpc", proto = ":kvtier_proto", deps = [":types_cc"])
    py_grpc_library(name = "kvtier_py", proto = ":kvtier_proto", deps = [":types_py"])

`deps` of a library are the libraries (of the same language) of imported files;
google/protobuf/*.proto need none. A library stands in the package of its
proto_sources, because the generated files lie beside the .proto:
#include "proto/kvtier/v1/kvtier.grpc.pb.h", from proto.kvtier.v1 import kvtier_pb2.
"""

load("@system_libs//:defs.bzl", "PROTOBUF_INCLUDE")

ProtoSourcesInfo = provider(
    doc = "The .proto files of a proto_sources target.",
    fields = {
        "direct": "list of its own files",
        "transitive": "depset of its files and those that they import",
        "roots": "depset of folders that imports are relative to",
    },
)

def _proto_sources_impl(ctx):
    infos = [dep[ProtoSourcesInfo] for dep in ctx.attr.deps]
    return [
        DefaultInfo(files = depset(ctx.files.srcs)),
        ProtoSourcesInfo(
            direct = ctx.files.srcs,
            transitive = depset(ctx.files.srcs, transitive = [i.transitive for i in infos]),
            # workspace_root is "" in this repository, external/<name> in another.
            roots = depset(
                [ctx.label.workspace_root or "."],
                transitive = [i.roots for i in infos],
            ),
        ),
    ]

proto_sources = rule(
    doc = "A named set of .proto files with the sets that they import.",
    implementation = _proto_sources_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".proto"], mandatory = True),
        "deps": attr.label_list(providers = [ProtoSourcesInfo]),
    },
)

# language -> (with grpc?) -> suffixes of the files written for one .proto
_HEADERS = {
    "cpp": {False: [".pb.h"], True: [".pb.h", ".grpc.pb.h"]},
    "python": {False: [], True: []},
}
_SOURCES = {
    "cpp": {False: [".pb.cc"], True: [".pb.cc", ".grpc.pb.cc"]},
    "python": {False: ["_pb2.py"], True: ["_pb2.py", "_pb2_grpc.py"]},
}

def _declare(ctx, proto, suffixes):
    path = proto.short_path
    if ctx.label.workspace_root:
        path = path.partition("/")[2].partition("/")[2]  # ../<name>/<path>
    package = ctx.label.package + "/" if ctx.label.package else ""
    if not path.startswith(package):
        fail("%s is not in the package of %s" % (proto.short_path, ctx.label))
    stem = path[len(package):-len(".proto")]
    return [ctx.actions.declare_file(stem + suffix) for suffix in suffixes]

def _generated_impl(ctx):
    info = ctx.attr.proto[ProtoSourcesInfo]
    language, grpc, mock = ctx.attr.language, ctx.attr.grpc, ctx.attr.mock
    headers, sources = [], []
    for proto in info.direct:
        headers += _declare(ctx, proto, _HEADERS[language][grpc] + (["_mock.grpc.pb.h"] if mock else []))
        sources += _declare(ctx, proto, _SOURCES[language][grpc])

    out = ctx.bin_dir.path
    if ctx.label.workspace_root:
        out += "/" + ctx.label.workspace_root
    args = ctx.actions.args()
    args.add_all(info.roots, format_each = "-I%s")
    args.add(PROTOBUF_INCLUDE, format = "-I%s")
    args.add("--%s_out=%s" % (language, out))
    tools = []
    if grpc:
        tools = [ctx.file._cpp_plugin if language == "cpp" else ctx.file._python_plugin]
        args.add(tools[0], format = "--plugin=protoc-gen-grpc=%s")
        args.add("--grpc_out=%s%s" % ("generate_mock_code=true:" if mock else "", out))
    args.add_all(info.direct)
    ctx.actions.run(
        executable = ctx.file._protoc,
        arguments = [args],
        inputs = info.transitive,
        tools = tools,
        outputs = headers + sources,
        mnemonic = "Protoc",
        progress_message = "Generating %s of %s" % (language, ctx.attr.proto.label),
    )
    return [
        DefaultInfo(files = depset(headers + sources)),
        OutputGroupInfo(headers = depset(headers), sources = depset(sources)),
    ]

def _generator(name):
    return attr.label(
        default = "@system_libs//:bin/" + name,
        allow_single_file = True,
        cfg = "exec",
    )

_generated = rule(
    implementation = _generated_impl,
    attrs = {
        "proto": attr.label(providers = [ProtoSourcesInfo], mandatory = True),
        "language": attr.string(values = ["cpp", "python"], mandatory = True),
        "grpc": attr.bool(),
        "mock": attr.bool(),
        "_protoc": _generator("protoc"),
        "_cpp_plugin": _generator("grpc_cpp_plugin"),
        "_python_plugin": _generator("grpc_python_plugin"),
    },
)

def cc_grpc_library(name, proto, deps = [], grpc = True, mock = False, **kwargs):
    """The C++ classes of `proto`.

    Args:
      name: of the cc_library.
      proto: a proto_sources of the same package.
      deps: cc_grpc_library targets of the files that `proto` imports.
      grpc: services too; False for files with messages alone.
      mock: also <file>_mock.grpc.pb.h with gMock stubs.
      **kwargs: of cc_library.
    """
    generated = name + "_generated"
    _generated(
        name = generated,
        proto = proto,
        language = "cpp",
        grpc = grpc,
        mock = mock,
        visibility = ["//visibility:private"],
    )
    for group in ["headers", "sources"]:
        native.filegroup(
            name = "%s_%s" % (generated, group),
            srcs = [":" + generated],
            output_group = group,
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name,
        srcs = [":%s_sources" % generated],
        hdrs = [":%s_headers" % generated],
        # protoc's code is not ours to mend.
        copts = ["-w"],
        deps = deps + ["@system_libs//:grpc++" if grpc else "@system_libs//:protobuf"],
        **kwargs
    )

def py_grpc_library(name, proto, deps = [], grpc = True, **kwargs):
    """The Python modules of `proto`, as files to name in `srcs` of a py3_test.

    Args:
      name: of the filegroup.
      proto: a proto_sources of the same package.
      deps: py_grpc_library targets of the files that `proto` imports.
      grpc: services too; False for files with messages alone.
      **kwargs: of filegroup.
    """
    _generated(
        name = name + "_generated",
        proto = proto,
        language = "python",
        grpc = grpc,
        visibility = ["//visibility:private"],
    )
    native.filegroup(
        name = name,
        srcs = [":%s_generated" % name] + deps,
        **kwargs
    )

def _descriptor_set_impl(ctx):
    infos = [proto[ProtoSourcesInfo] for proto in ctx.attr.protos]
    args = ctx.actions.args()
    args.add_all(depset(transitive = [i.roots for i in infos]), format_each = "-I%s")
    args.add(PROTOBUF_INCLUDE, format = "-I%s")
    args.add(ctx.outputs.out, format = "--descriptor_set_out=%s")
    args.add("--include_imports")
    for info in infos:
        args.add_all(info.direct)
    ctx.actions.run(
        executable = ctx.file._protoc,
        arguments = [args],
        inputs = depset(transitive = [i.transitive for i in infos]),
        outputs = [ctx.outputs.out],
        mnemonic = "Protoc",
        progress_message = "Describing %s" % ctx.label,
    )
    files = [ctx.outputs.out]
    return [DefaultInfo(files = depset(files), runfiles = ctx.runfiles(files))]

proto_descriptor_set = rule(
    doc = "One FileDescriptorSet of .proto files and all that they import, in order of import.",
    implementation = _descriptor_set_impl,
    attrs = {
        "protos": attr.label_list(providers = [ProtoSourcesInfo], mandatory = True),
        "out": attr.output(mandatory = True),
        "_protoc": _generator("protoc"),
    },
)
