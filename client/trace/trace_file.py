"""Packs top-k traces (.npy) into the small files of tests/traces/, and unpacks them.

As a command it is tools/demo_pack_traces.py:

    demo_pack_traces.py pack IN.npy OUT.kvtrace --columns 256 --first-position 16128
    demo_pack_traces.py check IN.npy OUT.kvtrace   the file holds what the array holds
    demo_pack_traces.py show OUT.kvtrace           the header and the first row

IN.npy: an unsigned integer array [layers, steps, columns] of positions, best first.
The format is described in tests/traces/README.md. Nothing is lost but the columns that
--columns leaves out.
"""

import argparse
import struct
import sys

import numpy

MAGIC = b"KVTTRACE"
VERSION = 1
HEADER = struct.Struct("<8s6I")  # magic, version, layers, steps, top_k, bits, first position


def pack(positions, first_position):
    """The bytes of a trace file. positions: [layers, steps, top_k], unsigned."""
    layers, steps, top_k = positions.shape
    own = first_position + numpy.arange(steps)
    if (positions > own[None, :, None]).any():
        raise ValueError("a step names a position after its own")
    bits = max(1, int(positions.max()).bit_length())
    # Least significant bit first; each row starts at a byte.
    unpacked = (positions[..., None].astype(numpy.uint32) >> numpy.arange(bits)) & 1
    rows = unpacked.astype(numpy.uint8).reshape(layers, steps, top_k * bits)
    body = numpy.packbits(rows, axis=-1, bitorder="little")
    return HEADER.pack(MAGIC, VERSION, layers, steps, top_k, bits, first_position) + body.tobytes()


def unpack(data):
    """(positions [layers, steps, top_k] uint32, first position) of a trace file's bytes."""
    if len(data) < HEADER.size:
        raise ValueError("shorter than its header")
    magic, version, layers, steps, top_k, bits, first_position = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or not 1 <= bits <= 31:
        raise ValueError("not a trace file of version %d" % VERSION)
    row_bytes = (top_k * bits + 7) // 8
    if len(data) != HEADER.size + layers * steps * row_bytes:
        raise ValueError("its size does not fit its header")
    body = numpy.frombuffer(data, numpy.uint8, offset=HEADER.size)
    body = body.reshape(layers, steps, row_bytes)
    flags = numpy.unpackbits(body, axis=-1, count=top_k * bits, bitorder="little")
    flags = flags.reshape(layers, steps, top_k, bits).astype(numpy.uint32)
    return (flags << numpy.arange(bits, dtype=numpy.uint32)).sum(axis=-1, dtype=numpy.uint32), (
        first_position)


def main(argv):
    parser = argparse.ArgumentParser(
        prog="demo_pack_traces.py", description=__doc__.split("\n", maxsplit=1)[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pack")
    command.add_argument("npy")
    command.add_argument("trace")
    command.add_argument("--columns", type=int, required=True)
    command.add_argument("--first-position", type=int, required=True)
    command = commands.add_parser("check")
    command.add_argument("npy")
    command.add_argument("trace")
    command = commands.add_parser("show")
    command.add_argument("trace")
    options = parser.parse_args(argv)

    if options.command == "pack":
        positions = numpy.load(options.npy)[:, :, : options.columns]
        data = pack(positions, options.first_position)
        with open(options.trace, "wb") as file:
            file.write(data)
        print("%s: %d bytes" % (options.trace, len(data)))
        return 0

    with open(options.trace, "rb") as file:
        positions, first_position = unpack(file.read())
    if options.command == "show":
        print("layers %d, steps %d, top_k %d" % positions.shape, "first position", first_position)
        print(positions[0, 0].tolist())
        return 0
    expected = numpy.load(options.npy)[:, :, : positions.shape[2]]
    if not numpy.array_equal(positions, expected):
        print("%s differs from %s" % (options.trace, options.npy), file=sys.stderr)
        return 1
    print("%s: equal, %s" % (options.trace, positions.shape))
    return 0
