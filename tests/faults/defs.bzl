"""Tests in which calls of the operating system fail."""

load("//tools:cc.bzl", "kv_cc_library")

# As in system_calls.h.
_SYSTEM_CALLS = [
    "accept4",
    "bind",
    "chmod",
    "connect",
    "eventfd",
    "fallocate",
    "fchmod",
    "fchownat",
    "fcntl",
    "fdopendir",
    "flock",
    "fstat",
    "fstatfs",
    "ftruncate",
    "getsockopt",
    "listen",
    "lstat",
    "madvise",
    "mbind",
    "memfd_create",
    "mincore",
    "mkdir",
    "mmap",
    "open",
    "openat",
    "poll",
    "pthread_create",
    "read",
    "readdir",
    "recv",
    "recvmsg",
    "renameat",
    "send",
    "sendmsg",
    "sendto",
    "socket",
    "stat",
    "unlink",
    "unlinkat",
    "write",
]

def system_calls_library(name, **kwargs):
    """A library before whose users the linker puts it wherever they call the system."""
    kv_cc_library(
        name = name,
        linkopts = ["-Wl," + ",".join(["--wrap=" + call for call in _SYSTEM_CALLS])],
        alwayslink = True,
        **kwargs
    )
