"""Starts a program as a container engine would, as far as the image depends on it: a root file
system that is read-only, folders mounted into it, a user, no capability, no new privileges.

Linux, and root: user namespaces would map one user alone.
"""
import ctypes
import os
import subprocess

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_IPC = 0x20000, 0x08000000
_BIND, _REC, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 0x40000, 0x20, 0x1
_SET_NO_NEW_PRIVILEGES, _DROP_OF_BOUNDING_SET, _KEEP_NO_CAPABILITIES = 38, 24, 28
_SECURE_NO_ROOT = 0b11  # root is a user like any other, and stays so
_LAST_CAPABILITY = 63


def _call(function, *arguments):
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _mount(source, target, kind, flags):
    _call(_LIBC.mount, source.encode(), target.encode(), kind and kind.encode(),
          ctypes.c_ulong(flags), None)


def start(root, command, user, group, mounts, **popen):
    """The process. `mounts`: {path in the container: folder outside}."""
    for inside in mounts:
        os.makedirs(root + inside, exist_ok=True)

    def enter():
        _call(_LIBC.unshare, _NEW_MOUNTS | _NEW_IPC)
        _mount("none", "/", None, _REC | _PRIVATE)
        _mount(root, root, None, _BIND)
        _mount("proc", root + "/proc", "proc", 0)
        for inside, outside in mounts.items():
            _mount(outside, root + inside, None, _BIND)
        _mount("none", root, None, _REMOUNT | _BIND | _READ_ONLY)
        os.chroot(root)
        os.chdir("/")
        _call(_LIBC.prctl, _KEEP_NO_CAPABILITIES, _SECURE_NO_ROOT, 0, 0, 0)
        for capability in range(_LAST_CAPABILITY + 1):
            _LIBC.prctl(_DROP_OF_BOUNDING_SET, capability, 0, 0, 0)  # those that there are
        _call(_LIBC.prctl, _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        os.umask(0o022)

    return subprocess.Popen(command, preexec_fn=enter, stdin=subprocess.DEVNULL, env={}, **popen)
