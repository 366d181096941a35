"""Repository rule: the CUDA toolkit of this machine, or its absence.

The first of $CUDA_HOME, $CUDA_PATH, /usr/local/cuda and the nvcc in PATH that has
both nvcc and libcudart_static.a. `--repo_env=CUDA_HOME=none` says there is none.
`--repo_env=CUDA_ARCHS=80,90` chooses the GPUs to compile for.

    @local_cuda//:has_cuda        config_setting; use if_cuda() of //tools:cuda.bzl
    @local_cuda//:cudart_static   runtime and headers; the binary needs no CUDA file,
                                  the driver is opened at the first CUDA call
    @local_cuda//:headers         headers alone
    @local_cuda//:enable          bool_flag; false builds as if there were no CUDA
"""

# Ampere and Hopper; newer GPUs compile the PTX of the last one when they start.
_DEFAULT_ARCHS = "80,90"

_LIBRARY_FOLDERS = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"]

_HEAD = """load("@//third_party:flags.bzl", "bool_flag")

package(default_visibility = ["//visibility:public"])

constraint_setting(name = "presence")

constraint_value(
    name = "not_installed",
    constraint_setting = ":presence",
)

bool_flag(
    name = "enable",
    build_setting_default = {found},
)
"""

_FOUND = """
config_setting(
    name = "has_cuda",
    flag_values = {":enable": "True"},
)

cc_library(
    name = "headers",
    # What host code includes. nvcc has all headers by itself.
    hdrs = glob(
        ["include/*.h", "include/*.hpp", "include/crt/**", "include/nvtx3/**"],
        exclude = ["include/%s*" % p for p in [
            "cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse", "npp", "nv",
        ]],
    ),
    includes = ["include"],
)

cc_library(
    name = "cudart_static",
    srcs = ["lib/libcudart_static.a"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
    deps = [":headers"],
)
"""

_ABSENT = """
# Never true: --enable=true cannot conjure a toolkit.
config_setting(
    name = "has_cuda",
    define_values = {"cuda_is_not_on_this_machine": "always"},
)

[
    cc_library(
        name = name,
        target_compatible_with = [":not_installed"],
    )
    for name in ["cudart_static", "headers"]
]
"""

def _toolkit(rctx, home):
    """(home, folder of libcudart_static.a), or None where either half lacks."""
    if not rctx.path(home + "/bin/nvcc").exists:
        return None
    for folder in _LIBRARY_FOLDERS:
        if rctx.path("%s/%s/libcudart_static.a" % (home, folder)).exists:
            return home, "%s/%s" % (home, folder)
    return None

def _find(rctx):
    homes = [rctx.os.environ.get(v) for v in ["CUDA_HOME", "CUDA_PATH"]]
    if "none" in homes:
        return None
    nvcc = rctx.which("nvcc")
    homes += ["/usr/local/cuda", str(rctx.path(nvcc).realpath.dirname.dirname) if nvcc else None]
    for home in homes:
        found = _toolkit(rctx, home) if home else None
        if found:
            return found
    return None

def _cuda_configure_impl(rctx):
    found = _find(rctx)
    home, version = "", ""
    if found:
        home, libraries = found
        banner = rctx.execute([home + "/bin/nvcc", "--version"]).stdout
        version = banner.partition("release ")[2].partition(",")[0]
        rctx.symlink(home + "/include", "include")
        rctx.symlink(libraries + "/libcudart_static.a", "lib/libcudart_static.a")
    archs = rctx.os.environ.get("CUDA_ARCHS", _DEFAULT_ARCHS).split(",")
    rctx.file("defs.bzl", "\n".join([
        "NVCC = %r" % (home + "/bin/nvcc" if home else ""),
        "CUDA_VERSION = %r" % version,
        "CUDA_ARCHS = %r" % [a.strip() for a in archs if a.strip()],
        "",
    ]))
    rctx.file("BUILD.bazel", _HEAD.format(found = found != None) + (_FOUND if found else _ABSENT))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_ARCHS", "CUDA_HOME", "CUDA_PATH", "PATH"],
    # Asked again whenever the server starts: a toolkit may have come or gone.
    local = True,
    configure = True,
)
