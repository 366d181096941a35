#!/usr/bin/python3
"""Packs a recorded top-k trace (.npy) into a file like those of tests/traces/; see --help."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from client.trace import trace_file  # noqa: E402  (the path comes first)

if __name__ == "__main__":
    sys.exit(trace_file.main(sys.argv[1:]))
