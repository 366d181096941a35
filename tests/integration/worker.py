"""A worker for tests to kill: `worker.py SOCKET [CACHE]` holds three blocks, says so and waits.

`worker.py SOCKET CACHE attach` has attached, and has called nothing else."""
import sys
import unittest

from daemon import Session, layout
from reflection import Client

CACHE = {"cache": sys.argv[2] if len(sys.argv) > 2 else "c"}


class Case(unittest.TestCase):
    """Whose clean-ups are never run."""


def main():
    session = Session(Case(), None, "victim", client=Client("unix:" + sys.argv[1]))
    session.call("AttachCache", {**CACHE, "layout": layout()})
    blocks = []
    if sys.argv[3:] != ["attach"]:
        session.call("AdmitRequest", {**CACHE, "request_id": "r", "reserve_blocks": 5})
        blocks = session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": 3}).block_ids
    print(len(blocks), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
