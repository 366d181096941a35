"""CUDA kernels as libraries, compiled by the nvcc that @local_cuda found.

    cuda_library(name = "swap_in", srcs = ["swap_in.cu", "block.cuh"], hdrs = ["swap_in.h"])

Without nvcc, or with --config=cpu, a cuda_library is incompatible: wildcards skip it,
and other targets reach it through if_cuda():

    deps = [":cpu_backend"] + if_cuda([":cuda_backend"])
"""

load("@local_cuda//:defs.bzl", "CUDA_ARCHS", "NVCC")

def if_cuda(yes, no = []):
    """`yes` in a build with CUDA, else `no`."""
    return select({
        "@local_cuda//:has_cuda": yes,
        "//conditions:default": no,
    })

def needs_cuda():
    """For target_compatible_with: skipped in a build without CUDA."""
    return if_cuda([], ["@local_cuda//:not_installed"])

def _gencode(archs):
    codes = [(arch, "sm_" + arch) for arch in archs]
    if archs:
        # Intermediate code of the last, for GPUs that are newer than all of them.
        codes.append((archs[-1], "compute_" + archs[-1]))
    return ["arch=compute_%s,code=%s" % pair for pair in codes]

def _include_flags(ctx, contexts):
    args = ctx.actions.args()

    # nvcc knows no -iquote.
    quotes = [".", ctx.bin_dir.path] + depset(transitive = [c.quote_includes for c in contexts]).to_list()
    args.add_all(quotes, before_each = "-I", uniquify = True)
    args.add_all(depset(transitive = [c.includes for c in contexts]), before_each = "-I")

    # nvcc brings its own CUDA headers: those of @local_cuda would come twice.
    system = depset(transitive = [c.system_includes for c in contexts]).to_list()
    args.add_all([s for s in system if "local_cuda" not in s], before_each = "-isystem")
    return args

def _compile(ctx, src, output, step, codes):
    """Runs nvcc on one of ctx.files.srcs, as far as `step` says (-c, -ptx), for `codes`."""
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = [f for f in ctx.files.srcs if f.extension != "cu"] + ctx.files.hdrs
    inputs = depset(headers, transitive = [c.headers for c in contexts])
    defines = depset(ctx.attr.defines, transitive = [c.defines for c in contexts])
    debug = ctx.var["COMPILATION_MODE"] == "dbg"
    args = ctx.actions.args()
    args.add_all(["-x", "cu", step, src, "-o", output])
    if step == "-c":
        # Temporary files with names of their own end up in the object, which then
        # differs each time: these are named after the object.
        args.add("-objtemp")
    args.add_all(["-ccbin", "g++", "-std=c++20", "-Xcompiler", "-fPIC"])
    args.add_all(codes, before_each = "-gencode")
    args.add_all(["-O0", "-g", "-G"] if debug else ["-O3", "-lineinfo", "-DNDEBUG"])
    args.add_all(["-Xcompiler", "-Wall,-fno-omit-frame-pointer", "-Werror", "all-warnings"])
    args.add_all(defines, format_each = "-D%s")
    args.add_all(ctx.attr.copts)
    ctx.actions.run(
        executable = ctx.attr.nvcc,
        arguments = [args, _include_flags(ctx, contexts)],
        inputs = depset([src], transitive = [inputs]),
        outputs = [output],
        # Its parts and the host compiler are found through PATH.
        env = {"PATH": ctx.attr.nvcc.rpartition("/")[0] + ":/usr/local/bin:/usr/bin:/bin"},
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s" % src.short_path,
    )

def _name_of(src):
    return src.basename[:-len(".cu")]

def _cuda_objects_impl(ctx):
    objects = []
    for src in [f for f in ctx.files.srcs if f.extension == "cu"]:
        obj = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, _name_of(src)))
        _compile(ctx, src, obj, "-c", _gencode(ctx.attr.archs))
        objects.append(obj)
    return [DefaultInfo(files = depset(objects))]

def _cuda_ptx_impl(ctx):
    texts = []
    for src in [f for f in ctx.files.srcs if f.extension == "cu"]:
        for arch in ctx.attr.archs:
            ptx = ctx.actions.declare_file("%s/%s_%s.ptx" % (ctx.label.name, _name_of(src), arch))
            _compile(ctx, src, ptx, "-ptx", ["arch=compute_%s,code=compute_%s" % (arch, arch)])
            texts.append(ptx)
    return [DefaultInfo(files = depset(texts), runfiles = ctx.runfiles(files = texts))]

_ATTRIBUTES = {
    "srcs": attr.label_list(allow_files = [".cu", ".cuh", ".h"], mandatory = True),
    "hdrs": attr.label_list(allow_files = [".cuh", ".h"]),
    "deps": attr.label_list(providers = [CcInfo]),
    "copts": attr.string_list(),
    "defines": attr.string_list(),
    "archs": attr.string_list(),
    "nvcc": attr.string(),
}

_cuda_objects = rule(implementation = _cuda_objects_impl, attrs = _ATTRIBUTES)

_cuda_ptx = rule(implementation = _cuda_ptx_impl, attrs = _ATTRIBUTES)

def cuda_library(
        name,
        srcs,
        hdrs = [],
        deps = [],
        copts = [],
        local_defines = [],
        archs = CUDA_ARCHS,
        tags = [],
        **kwargs):
    """A cc_library of .cu files, with the CUDA runtime linked statically.

    Args:
      name: of the cc_library.
      srcs: .cu files and private headers.
      hdrs: what users include; plain C++ where they are not .cu files themselves.
      deps: cc_library targets.
      copts: of nvcc.
      local_defines: preprocessor definitions for srcs.
      archs: e.g. ["80", "90"].
      tags: of all targets made.
      **kwargs: of cc_library.
    """
    _cuda_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        copts = copts,
        defines = local_defines,
        archs = archs,
        nvcc = NVCC,
        tags = tags,
        target_compatible_with = needs_cuda(),
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [":%s_objects" % name],
        hdrs = hdrs,
        deps = deps + ["@local_cuda//:cudart_static"],
        tags = tags,
        target_compatible_with = needs_cuda(),
        **kwargs
    )

def cuda_ptx(name, srcs, hdrs = [], deps = [], archs = CUDA_ARCHS, **kwargs):
    """The intermediate code of .cu files, a text each and architecture: what ptxas gets to read.

    Args:
      name: of the files together.
      srcs: .cu files and private headers, as of a cuda_library.
      hdrs: as of a cuda_library.
      deps: cc_library targets.
      archs: e.g. ["80", "90"].
      **kwargs: of any rule.
    """
    _cuda_ptx(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps,
        archs = archs,
        nvcc = NVCC,
        target_compatible_with = needs_cuda(),
        **kwargs
    )
