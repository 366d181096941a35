"""What a worker can do with the memory that it is given, what a core of the daemon would hold, and
what errors give away."""
import ctypes
import errno
import fcntl
import mmap
import os
import re
import shutil
import tempfile
import unittest

from daemon import ADMIN, TIER, Daemon, Session, layout, new_folder
from memory import connect, redeem
from reflection import CallError, Client

SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16
GET_SEALS, ADD_SEALS = 1034, 1033
POOL, GENERATION = 1, 2  # SegmentKind
CACHE = {"cache": "c"}
LIBC = ctypes.CDLL(None, use_errno=True)


def errno_of(call, *arguments):
    """0, or why it failed."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


class Memory(unittest.TestCase):
    def attach(self, daemon):
        """{segment: descriptor} of a cache."""
        session = Session(self, daemon)
        attached = session.call("AttachCache", {**CACHE, "layout": layout()})
        descriptors = {}
        with connect(session.opened.fd_socket_path) as channel:
            for segment in attached.segments:
                code, text, fd = redeem(channel, segment.fd_token)
                self.assertEqual(code, 0, text)
                self.addCleanup(os.close, fd)
                descriptors[segment.kind] = (segment, fd)
        return descriptors

    def kept_folder(self):
        folder = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder + "/pool"

    def test_nothing_changes_its_size(self):
        """Whoever could shrink it would kill everybody who has it mapped."""
        for segment, fd in self.attach(Daemon(self)).values():
            size = os.fstat(fd).st_size
            for wanted in (size - 1, size + 4096):
                self.assertEqual(errno_of(os.ftruncate, fd, wanted), errno.EPERM, segment.kind)
            self.assertEqual(errno_of(os.posix_fallocate, fd, size, 4096), errno.EPERM)
            seals = fcntl.fcntl(fd, GET_SEALS)
            self.assertEqual(seals & (SEAL_SHRINK | SEAL_GROW | SEAL_SEAL),
                             SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)
            # Nor does anybody seal what others write.
            self.assertEqual(errno_of(fcntl.fcntl, fd, ADD_SEALS, SEAL_WRITE), errno.EPERM)

    def expect_read_only(self, segment, fd, path_too):
        size, offset = segment.size_bytes, segment.offset_bytes
        write = mmap.PROT_READ | mmap.PROT_WRITE
        self.assertTrue(segment.read_only)
        self.assertIn(errno_of(mmap.mmap, fd, size, mmap.MAP_SHARED, write, 0, offset),
                      (errno.EPERM, errno.EACCES))
        self.assertIn(errno_of(os.pwrite, fd, b"x", offset), (errno.EPERM, errno.EBADF))
        with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset) as mapped:
            # A mapping cannot be made writable afterwards: ctypes, as Python has no mprotect.
            LIBC.mmap.restype = ctypes.c_void_p
            LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                  ctypes.c_int, ctypes.c_long]
            address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
            self.assertNotEqual(address, ctypes.c_void_p(-1).value)
            LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
            self.assertEqual(LIBC.mprotect(address, size, write), -1)
            self.assertIn(ctypes.get_errno(), (errno.EACCES, errno.EPERM))
            LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
            LIBC.munmap(address, size)
            self.assertEqual(len(mapped), size)
        if path_too:  # the same file, opened anew
            again = os.open("/proc/self/fd/%d" % fd, os.O_RDWR)
            self.addCleanup(os.close, again)
            self.assertEqual(errno_of(mmap.mmap, again, size, mmap.MAP_SHARED, write, 0, offset),
                             errno.EPERM)

    def test_generations_are_the_daemons_to_write(self):
        self.expect_read_only(*self.attach(Daemon(self))[GENERATION], path_too=True)

    def test_of_a_kept_pool_as_well(self):
        daemon = Daemon(self, ["--pool_path=" + self.kept_folder()])
        self.expect_read_only(*self.attach(daemon)[GENERATION], path_too=False)

    def test_the_pool_is_one_for_all(self):
        """docs/SECURITY.md says so: who has attached a cache can map the rows of every cache."""
        daemon = Daemon(self)
        segment, fd = self.attach(daemon)[POOL]
        self.assertEqual(os.fstat(fd).st_size, daemon.client.call(ADMIN + "GetNodeInfo")
                         .pool.total_bytes)
        self.assertLess(segment.size_bytes, os.fstat(fd).st_size)

    def test_no_rows_in_a_core(self):
        """dd: left out of core dumps."""
        for flags in ([], ["--pool_path=" + self.kept_folder()]):
            with self.subTest(flags=flags):
                daemon = Daemon(self, flags)
                self.attach(daemon)
                with open("/proc/%d/smaps" % daemon.pid) as file:
                    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", file.read(), flags=re.M)
                shared = [area for area in areas
                          if re.search(r"/memfd:kvtier|/pool/rows", area.split("\n")[0])]
                self.assertTrue(any("host-pool" in a or "/pool/rows" in a for a in shared))
                self.assertTrue(any("hot" in a.split("\n")[0] for a in shared), [
                    a.split("\n")[0] for a in shared])
                for area in shared:
                    dump = re.search(r"^VmFlags:.*$", area, re.M).group(0).split()
                    self.assertIn("dd", dump, area.split("\n")[0])
                daemon.kill()


class Errors(unittest.TestCase):
    """No error that a worker sees names a file of the machine or a value of the environment."""

    def setUp(self):
        self.parent = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.parent, ignore_errors=True)
        self.folder = new_folder(self)
        self.secret = "value-of-a-variable-4711"
        self.daemon = Daemon(self, ["--pool_path=%s/pool" % self.parent, "--tcp=127.0.0.1:0"],
                             socket=self.folder + "/d.sock",
                             env={**os.environ, "KVTIERD_LOG_LEVEL": "debug",
                                  "SECRET": self.secret})
        self.session = Session(self, self.daemon)
        self.seen = set()

    def expect_private(self, method, fields, client=None):
        """It fails, and says nothing of the kind."""
        client = client or self.daemon.client
        with self.assertRaises(CallError) as caught:
            client.call(method, fields)
        error = caught.exception
        said = " ".join([error.message, *error.metadata, *error.metadata.values()])
        for word in (self.folder, self.parent, os.getcwd(), "/dev/shm", "/proc/", "/tmp/",
                     "kvtierd.cc", ".cc:", self.secret, os.environ["PATH"]):
            self.assertNotIn(word, said)
        # Beside names that the caller gave itself there is no path in it at all.
        self.assertIsNone(re.search(r"(?<![\w./-])/[a-z]\w*/", said), said)
        self.seen.add(error.reason)

    def call(self, method, fields):
        self.expect_private(TIER + method, {"session_id": self.session.id, **fields})

    def test_each(self):
        good = {**CACHE, "layout": layout()}
        self.session.call("AttachCache", good)
        self.session.call("AdmitRequest", {**CACHE, "request_id": "r", "reserve_blocks": 6})
        request = {**CACHE, "request_id": "r"}
        self.call("AttachCache", {"cache": "../../etc/passwd\n", "layout": layout()})
        self.call("AttachCache", {"cache": "d", "layout": layout(row_bytes=1)})
        self.call("AttachCache", {"cache": "d"})
        self.call("AttachCache", {**CACHE, "layout": layout(row_bytes=128)})
        other = Session(self, self.daemon)
        self.expect_private(TIER + "AttachCache", {"session_id": other.id, **CACHE,
                                                   "layout": layout(row_bytes=128)})
        self.call("AttachCache", {"cache": "big", "layout": layout(block_count=1 << 20)})
        self.call("AttachCache", {**good, "cache": "d", "device_uuid": "GPU-0"})
        self.call("AttachCache", {**good, "cache": "d", "retain": {"duration": "99999s"}})
        self.call("AttachCache", {**good, "cache": "d", "share": {"uids": [-1]}})
        self.call("DetachCache", {"cache": "d"})
        self.call("AdmitRequest", {**CACHE, "request_id": ""})
        self.call("AdmitRequest", {**CACHE, "request_id": "s", "reserve_blocks": 7})
        self.call("AdmitRequest", {**request, "reserve_blocks": 5})
        self.session.call("AdmitRequest", {**CACHE, "request_id": "s"})
        self.call("AdmitRequest", {**CACHE, "request_id": "t"})
        self.call("AssignBlocks", {**CACHE, "request_id": "nobody", "count": 1})
        self.call("AssignBlocks", {**request, "count": 99})
        self.call("AssignBlocks", {**request, "shared_block_ids": [99]})
        self.call("AssignBlocks", {**request, "shared_block_ids": [0]})
        self.session.call("AssignBlocks", {**request, "count": 1})
        self.call("AssignBlocks", {**CACHE, "request_id": "s", "shared_block_ids": [0],
                                   "shared_generations": [77]})
        self.call("FreeBlocks", {**CACHE, "request_id": "s", "block_ids": [0]})
        self.call("ListKeptBlocks", {**CACHE, "page_token": "x"})
        self.call("SwapIn", {**CACHE})
        self.call("SwapIn", {**CACHE, "inline": {"rows": [{"request_id": "r"}] * 2}})
        self.call("SwapIn", {**CACHE, "step": {"num_rows": 9}})
        self.call("Backup", {**CACHE, "inline": {"rows": [{"request_id": "r", "slot": 9999}]}})
        self.call("Backup", {**CACHE, "tensor": {"ipc_handle": "AAAA"}})
        self.call("WaitTicket", {**CACHE, "ticket": 99})
        self.expect_private(TIER + "DetachCache", {"session_id": "x", **CACHE})
        self.expect_private(TIER + "DetachCache", {"session_id": "boot.x", **CACHE})
        self.expect_private(ADMIN + "GetStats", {"cache": "d"})
        self.expect_private(ADMIN + "ListRequests", {"cache": "c", "page_token": "x"})
        tcp = Client(self.daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses[1])
        self.addCleanup(tcp.close)
        self.expect_private(TIER + "DetachCache", CACHE, client=tcp)
        self.daemon.client.call(ADMIN + "Drain")
        self.call("AssignBlocks", {**request, "count": 1})
        self.assertGreaterEqual(self.seen, {
            "ACCESS_DENIED", "BLOCKS_EXHAUSTED", "BLOCK_FOREIGN", "BLOCK_NOT_ASSIGNED",
            "BLOCK_OUT_OF_RANGE", "BOOT_ID_STALE", "CACHE_UNKNOWN", "DEVICE_UNKNOWN", "DRAINING",
            "FIELD_INVALID", "GENERATION_STALE", "ID_CONFLICT", "INPUT_MISMATCH", "LAYOUT_INVALID",
            "LAYOUT_MISMATCH", "NOT_IMPLEMENTED", "POOL_EXHAUSTED", "REGIONS_EXHAUSTED",
            "REQUEST_REPEATED", "REQUEST_UNKNOWN", "SESSION_UNKNOWN", "SLOT_OUT_OF_RANGE",
            "TICKET_UNKNOWN"})


class Log(unittest.TestCase):
    def test_what_peers_say_stays_on_its_line(self):
        """Names, messages and metadata of clients, with all that would forge a line or a field."""
        daemon = Daemon(self, ["--log_level=debug"])
        forged = 'x\n2026-01-01 level=error event=forged "\\ \x1b[2J\x7f\u00e4'
        session = Session(self, daemon, forged)
        daemon.client.call(ADMIN + "EvictSession", {"session_id": session.id, "message": forged})
        for method, fields in ((ADMIN + "EvictSession", {"session_id": forged, "message": forged}),
                               (TIER + "DetachCache", {"session_id": session.id, "cache": forged})):
            with self.assertRaises(CallError):
                daemon.client.call(method, fields,
                                   metadata=(("x-request-id", "a b=c\"d event=forged"),))
        daemon.client.call(ADMIN + "Drain", {"message": forged})
        daemon.wait_for_event("drain")
        lines = daemon.text().splitlines()
        for line in lines:
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT[\d:.]+Z level=\w+ event=\w+")
            self.assertRegex(line, r"^[ -~]+$")
            self.assertNotIn(" event=forged", re.sub(r'"(?:[^"\\]|\\.)*"', '""', line))
        evicted = [line for line in lines if "event=evict_session" in line]
        self.assertIn("status=OK", evicted[0])
        self.assertTrue(evicted[1].endswith("status=NOT_FOUND"), evicted[1])


if __name__ == "__main__":
    unittest.main()
