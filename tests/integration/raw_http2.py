"""HTTP/2 by hand: what no gRPC library sends, as a broken or hostile peer does.

    with RawConnection(socket_path) as raw:
        code = raw.call("/kvtier.v1.KvTier/SwapIn", data=b"...")
"""
import re
import socket
import struct

from daemon import PATIENCE_SECONDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
_FRAME_BYTES_MAX = 16384
_STREAM = 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(fields):
    """HPACK: each a literal that nobody remembers, without Huffman coding."""
    block = b""
    for name, value in fields:
        assert len(name) < 127 and len(value) < 127
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def connect(path):
    raw = socket.socket(socket.AF_UNIX)
    # Unlike settimeout, this waits where many connect at once.
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE_SECONDS, 0))
    raw.connect(path)
    raw.settimeout(PATIENCE_SECONDS)
    return raw


def connect_and_speak(path):
    """A connection that the daemon serves, and that says no more."""
    raw = connect(path)
    raw.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return raw


class RawConnection:
    """One call on one connection."""

    def __init__(self, path):
        self._socket = connect_and_speak(path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def call(self, path, data, headers=()):
        """Sends a request whose body is `data` and reads until the daemon ends it. The
        grpc-status, or None where it ended the stream or the connection without one."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path),
                  (":authority", "localhost"), ("te", "trailers"),
                  ("content-type", "application/grpc"), *headers]
        request = frame(HEADERS, END_HEADERS, _STREAM, header_block(fields))
        for at in range(0, len(data), _FRAME_BYTES_MAX):
            request += frame(DATA, 0, _STREAM, data[at:at + _FRAME_BYTES_MAX])
        self._socket.sendall(request + frame(DATA, END_STREAM, _STREAM))
        while True:
            head = self._read(9)
            if head is None:
                return None
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._read(struct.unpack(">I", b"\0" + head[:3])[0])
            if kind == SETTINGS and not flags & ACK:
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._socket.sendall(frame(PING, ACK, 0, payload))
            elif kind == HEADERS and stream == _STREAM:
                # gRPC sends the name plainly, the first time on a connection.
                status = re.search(rb"grpc-status.(\d+)", payload, re.DOTALL)
                if flags & END_STREAM:
                    return int(status.group(1)) if status else None
            elif kind in (RST_STREAM, GOAWAY):
                return None

    def _read(self, count):
        data = b""
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            data += part
        return data
