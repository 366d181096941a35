"""Repository rule: the C++ libraries and code generators installed on this machine.

    @system_libs//:grpc++, :absl_status, :gmock_main, ...   cc_library targets
    @system_libs//:bin/protoc, ...                          the generators
    @system_libs//:static                                   bool_flag; see below
    @system_libs//:not_installed                            satisfied by no platform
    @system_libs//:defs.bzl                                 COMPILER, PROTOBUF_INCLUDE,
                                                            MISSING, ONLY_SHARED

pkg-config knows the flags. What is not installed becomes an incompatible target, so
that `bazel build //...` skips its users, and one line names the packages to install.

`--config=static` links archives in place of shared objects, where the machine has
both; ONLY_SHARED names the libraries without an archive.
"""

# Headers of every Abseil library lie in one folder and its libraries name one
# another, so all are linked as one group (with gRPC, which needs most of them):
# the linker keeps what is used. The names tell readers what a target is about.
_ABSL = [
    "any_invocable",
    "base",
    "bind_front",
    "btree",
    "cleanup",
    "cord",
    "core_headers",
    "failure_signal_handler",
    "fixed_array",
    "flags",
    "flat_hash_map",
    "flat_hash_set",
    "function_ref",
    "hash",
    "inlined_vector",
    "memory",
    "numeric",
    "optional",
    "random",
    "span",
    "stacktrace",
    "status",
    "strings",
    "symbolize",
    "synchronization",
    "time",
    "variant",
]

def _lib(package, module = None, libs = [], deps = []):
    return struct(package = package, module = module, libs = libs, deps = deps)

# Those without a module have no .pc file, or add nothing to what deps link.
_LIBRARIES = {
    "grpc++": _lib("libgrpc++-dev", deps = ["core", "protobuf"]),
    "grpc++_reflection": _lib("libgrpc++-dev", libs = ["grpc++_reflection"], deps = ["grpc++"]),
    "grpcpp_channelz": _lib("libgrpc++-dev", libs = ["grpcpp_channelz"], deps = ["grpc++"]),
    "protobuf": _lib("libprotobuf-dev", module = "protobuf"),
    "gtest": _lib("libgtest-dev", module = "gtest"),
    "gmock": _lib("libgmock-dev", module = "gmock", deps = ["gtest"]),
    "gmock_main": _lib("libgmock-dev", module = "gmock_main", deps = ["gmock"]),
    "benchmark": _lib("libbenchmark-dev", module = "benchmark"),
    "benchmark_main": _lib("libbenchmark-dev", libs = ["benchmark_main"], deps = ["benchmark"]),
    "prometheus_core": _lib("prometheus-cpp-dev", module = "prometheus-cpp-core"),
    "civetweb": _lib("libcivetweb-dev", libs = ["civetweb"]),
    "numa": _lib("libnuma-dev", module = "numa"),
}

_GENERATORS = {
    "protoc": "protobuf-compiler",
    "grpc_cpp_plugin": "protobuf-compiler-grpc",
    "grpc_python_plugin": "protobuf-compiler-grpc",
}

# glibc's and the compiler's own: shared, whatever the flag says.
_NEVER_STATIC = ["atomic", "c", "dl", "m", "pthread", "rt"]

_HEAD = """load("@//third_party:flags.bzl", "bool_flag")

package(default_visibility = ["//visibility:public"])

constraint_setting(name = "presence")

constraint_value(
    name = "not_installed",
    constraint_setting = ":presence",
)

bool_flag(
    name = "static",
    build_setting_default = False,
)

config_setting(
    name = "link_static",
    flag_values = {":static": "True"},
)
"""

_PRESENT = """
cc_library(
    name = "{name}",
    hdrs = {headers},
    includes = {includes},
    defines = {defines},
    linkopts = select({{
        ":link_static": {static},
        "//conditions:default": {shared},
    }}),
    deps = {deps},
)
"""

_ABSENT = """
cc_library(
    name = "{name}",
    target_compatible_with = [":not_installed"],
)
"""

def _unique(items):
    return {item: None for item in items}.keys()

def _output(rctx, args):
    """The words a command prints, or None if it fails."""
    result = rctx.execute(args)
    if result.return_code != 0:
        return None
    return [w for w in result.stdout.replace("\n", " ").split(" ") if w]

def _pkg_config(rctx, module):
    # --static also for shared linking: --as-needed drops what is too much.
    return _output(rctx, ["pkg-config", "--static", "--cflags", "--libs", module])

def _sort_flags(words):
    flags = struct(defines = [], includes = [], folders = [], libs = [], other = [])
    for word in words:
        if word.startswith("-D"):
            if word != "-DNOMINMAX":  # Abseil's, for another system
                flags.defines.append(word[2:])
        elif word.startswith("-I"):
            flags.includes.append(word[2:])
        elif word.startswith("-L"):
            flags.folders.append(word[2:])
        elif word.startswith("-l"):
            flags.libs.append(word[2:])
        elif word == "-pthread":
            flags.libs.append("pthread")
        elif word not in ["-Wl,--push-state,--as-needed", "-Wl,--pop-state"]:
            flags.other.append(word)
    return flags

def _has_archive(rctx, cc, lib, folders):
    name = "lib%s.a" % lib
    for folder in folders:
        if rctx.path(folder + "/" + name).exists:
            return True

    # The compiler answers the bare name where it finds nothing.
    return _output(rctx, [cc, "-print-file-name=" + name]) != [name]

def _linkopts(flags, archives):
    """Linker options for the libraries of `flags`, those in `archives` by their .a."""
    shared = [lib for lib in _unique(flags.libs) if lib not in archives]
    out = ["-L" + f for f in _unique(flags.folders)] + flags.other
    if archives:
        out += ["-Wl,--start-group"] + ["-l:lib%s.a" % lib for lib in archives] + ["-Wl,--end-group"]
    if shared:
        # Debian's gcc keeps every library named, used or not, unless told.
        out += ["-Wl,--push-state,--as-needed"] + ["-l" + lib for lib in shared] + ["-Wl,--pop-state"]
    return out

def _present(rctx, cc, name, words, deps):
    """(BUILD text, libraries without an archive)."""
    flags = _sort_flags(words)
    includes = []
    for folder in _unique(flags.includes):
        # The compiler's own folders need no word. Another prefix (PKG_CONFIG_PATH)
        # does; `includes` makes it -isystem, so that our warnings leave it alone.
        if folder not in ["/usr/include", "/usr/local/include"]:
            includes.append("include/%s_%d" % (name, len(includes)))
            rctx.symlink(folder, includes[-1])
    linkable = [lib for lib in _unique(flags.libs) if lib not in _NEVER_STATIC]
    archives = [lib for lib in linkable if _has_archive(rctx, cc, lib, flags.folders)]
    text = _PRESENT.format(
        name = name,
        headers = "glob(%r)" % [i + "/**" for i in includes] if includes else "[]",
        includes = repr(includes),
        defines = repr(_unique(flags.defines)),
        static = repr(_linkopts(flags, archives)),
        shared = repr(_linkopts(flags, [])),
        deps = repr([":" + d for d in deps]),
    )
    return text, [lib for lib in linkable if lib not in archives]

def _abseil_words(rctx):
    """Flags for all of Abseil, or None.

    By the names of the files: pkg-config takes seconds, as every one of the 90 .pc
    files lists most of the others.
    """
    libdir = _output(rctx, ["pkg-config", "--variable=libdir", "absl_base"])
    if not libdir:
        return None
    words = _pkg_config(rctx, "absl_config") or []
    for entry in rctx.path(libdir[0]).readdir():
        if entry.basename.startswith("libabsl_") and entry.basename.endswith(".so"):
            words.append("-l" + entry.basename[len("lib"):-len(".so")])
    return words

def _compiler(rctx):
    cc = rctx.which(rctx.os.environ.get("CC", "gcc")) or rctx.which("gcc")
    if not cc:
        fail("no C++ compiler here: run tools/install_deps")
    banner = rctx.execute([cc, "--version"]).stdout
    return cc, "clang" if "clang" in banner else "gcc"

def _libraries(rctx, cc):
    """(BUILD texts, packages not installed, libraries without an archive)."""
    texts, missing, only_shared = [], [], []
    absl = _abseil_words(rctx)
    grpc = _pkg_config(rctx, "grpc++")
    if absl == None:
        missing.append("libabsl-dev")
    if grpc == None:
        missing.append("libgrpc++-dev")
    text, only = _present(rctx, cc, "core", (grpc or []) + (absl or []), [])
    texts.append(text)
    only_shared += only

    libraries = {"absl_" + name: _lib("libabsl-dev", deps = ["core"]) for name in _ABSL}
    libraries.update(_LIBRARIES)
    for name, lib in libraries.items():
        words = _pkg_config(rctx, lib.module) if lib.module else []
        if words == None:
            missing.append(lib.package)
        if lib.package in missing:
            texts.append(_ABSENT.format(name = name))
            continue
        text, only = _present(rctx, cc, name, words + ["-l" + x for x in lib.libs], lib.deps)
        texts.append(text)
        only_shared += only
    return texts, missing, only_shared

def _system_libs_impl(rctx):
    if not rctx.which("pkg-config"):
        fail("pkg-config is not installed: run tools/install_deps")
    cc, compiler = _compiler(rctx)
    texts, missing, only_shared = _libraries(rctx, cc)
    for tool, package in _GENERATORS.items():
        path = rctx.which(tool)
        if path:
            rctx.symlink(path, "bin/" + tool)
        else:
            missing.append(package)
            rctx.file("bin/" + tool, "#!/bin/sh\necho '%s is not installed (package %s)' >&2\nexit 1\n" % (tool, package))
    texts.append('\nexports_files(glob(["bin/*"]))\n')

    include = _output(rctx, ["pkg-config", "--variable=includedir", "protobuf"])
    rctx.file("defs.bzl", "\n".join([
        "COMPILER = %r" % compiler,
        "PROTOBUF_INCLUDE = %r" % (include[0] if include else "/usr/include"),
        "MISSING = %r" % _unique(missing),
        "ONLY_SHARED = %r" % _unique(only_shared),
        "",
    ]))
    rctx.file("BUILD.bazel", _HEAD + "".join(texts))
    if missing:
        # buildifier: disable=print
        print("not installed, and what needs them is skipped: %s (tools/install_deps)" % " ".join(_unique(missing)))

system_libs = repository_rule(
    implementation = _system_libs_impl,
    environ = ["CC", "PATH", "PKG_CONFIG_PATH"],
    # Asked again whenever the server starts: a package may have come since.
    local = True,
    configure = True,
)
