"""The memory of an attached cache, mapped as a worker maps it.

    memory = Memory(case, session, session.call("AttachCache", ...))
    memory.int32s(memory.groups[0].owner)[0]

One-time tokens go in at the descriptor socket, and descriptors come out:
proto/support/fd_channel.h says how.
"""
import mmap
import os
import socket
import struct

from daemon import PATIENCE_SECONDS


def connect(path):
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(PATIENCE_SECONDS)
    channel.connect(path)
    return channel


def redeem(channel, token):
    """(status code, text, descriptor or None)."""
    channel.send(token.encode())
    data, fds, _, _ = socket.recv_fds(channel, 4096, 1)
    return struct.unpack("<i", data[:4])[0], data[4:].decode(), fds[0] if fds else None


class Memory:
    def __init__(self, case, session, attached):
        self.groups = attached.buffers.groups
        self.buffers = attached.buffers
        self._segments = {}
        with connect(session.opened.fd_socket_path) as channel:
            for segment in attached.segments:
                self._segments[segment.segment_index] = self._map(channel, segment)
        case.addCleanup(self.close)

    def _map(self, channel, segment):
        code, text, fd = redeem(channel, segment.fd_token)
        if code != 0:
            raise AssertionError("%d %s" % (code, text))
        access = mmap.PROT_READ | (0 if segment.read_only else mmap.PROT_WRITE)
        try:
            return mmap.mmap(fd, segment.size_bytes, mmap.MAP_SHARED, access,
                             offset=segment.offset_bytes)
        finally:
            os.close(fd)

    def bytes(self, buffer):
        view = memoryview(self._segments[buffer.segment_index])
        return view[buffer.offset_bytes:buffer.offset_bytes + buffer.size_bytes]

    def int32s(self, buffer):
        return self.bytes(buffer).cast("i")

    def int16s(self, buffer):
        return self.bytes(buffer).cast("h")

    def close(self):
        """Fails where a view is still held."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
