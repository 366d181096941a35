"""A process of another user that talks to the daemon.

    stranger = Stranger(case, daemon.socket, uid=4711, groups=[4242])
    session = stranger.open()
    refused = stranger.call(TIER + "AttachCache", {"session_id": session, ...})
    refused["reason"]

Only root may start processes of others, and not in a user namespace: elsewhere a test skips itself
and says so. The process runs from a copy of these files that everybody may read.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

FILES = ("reflection.py", "daemon.py", "memory.py", "stranger.py")


class Stranger:
    """Users and groups need no entry anywhere: to the kernel they are numbers."""

    def __init__(self, case, socket, uid, gid=None, groups=()):
        if os.getuid() != 0:
            case.skipTest("another user's process is root's to start")
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/tmp")
        case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        for name in FILES:
            shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), folder)
            os.chmod(os.path.join(folder, name), 0o644)
        # Not by Popen's own `user`: then it forks, and a process in which gRPC runs may hang there.
        others = ",".join(str(group) for group in groups)
        become = ["/usr/bin/setpriv", "--reuid=%d" % uid,
                  "--regid=%d" % (uid if gid is None else gid),
                  "--groups=" + others if others else "--clear-groups", "--"]
        trial = subprocess.run(become + ["/bin/true"], stderr=subprocess.PIPE, text=True, env={},
                               check=False)
        if trial.returncode != 0:  # a user namespace, like that of a sandbox
            case.skipTest("another user's process cannot be started here: %s" % trial.stderr)
        self._process = subprocess.Popen(
            become + ["/usr/bin/python3", "-B", folder + "/stranger.py", socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env={})
        case.addCleanup(self.end)

    def _ask(self, **command):
        print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError("the other user's process ended with %s" % self._process.wait())
        return json.loads(line)

    def open(self):
        """The id of a session of its own, which stays open; or what refused() gives."""
        return self._ask(do="open")

    def call(self, path, fields=None):
        """The answer as a dict, or what refused() gives."""
        return self._ask(do="call", path=path, fields=fields or {})

    def stream(self, path, fields):
        """The first answer of a streaming call."""
        return self._ask(do="stream", path=path, fields=fields)

    def redeem(self, fd_socket, token):
        """The status code that the token gets."""
        return self._ask(do="redeem", fd_socket=fd_socket, token=token)

    def connects(self, path):
        """Is its connection accepted? None, or the error's name."""
        return self._ask(do="connect", path=path)

    def end(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()


def refused(error):
    """A CallError for the other side."""
    return {"code": error.code, "reason": error.reason, "metadata": error.metadata,
            "message": error.message}


class _Child:
    def __init__(self, socket):
        import reflection
        self._reflection = reflection
        self._client = reflection.Client("unix:" + socket)
        self._streams = []

    def answer(self, command):
        try:
            return getattr(self, command.pop("do"))(**command)
        except self._reflection.CallError as error:
            return refused(error)

    def open(self):
        stream = self._client.stream("kvtier.v1.KvTier/OpenSession", {"client_name": "stranger"})
        opened = self._first(stream)
        self._streams.append(stream)
        return opened.opened.session_id

    def call(self, path, fields):
        return self._reflection.to_json(self._client.call(path, fields))

    def stream(self, path, fields):
        request = self._client.request(path, fields)
        many = path.endswith("RunSteps")
        call = self._client.stream(path, iter([request]) if many else request,
                                   timeout=self._reflection.SECONDS)
        answer = self._reflection.to_json(self._first(call))
        call.cancel()
        return answer

    def _first(self, call):
        import grpc
        try:
            return next(call)
        except grpc.RpcError as error:
            raise self._client.error_of(error) from None

    @staticmethod
    def redeem(fd_socket, token):
        import memory
        with memory.connect(fd_socket) as channel:
            code, _, fd = memory.redeem(channel, token)
        if fd is not None:
            os.close(fd)
        return code

    @staticmethod
    def connect(path):
        import errno
        import socket
        with socket.socket(socket.AF_UNIX) as channel:
            try:
                channel.connect(path)
            except OSError as error:
                return errno.errorcode[error.errno]
        return None


if __name__ == "__main__":
    child = _Child(sys.argv[1])
    for text in sys.stdin:
        print(json.dumps(child.answer(json.loads(text))), flush=True)
