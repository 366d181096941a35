"""A kvtierd whose pool outlives it, as its supervisor and its operators see it."""
import os
import shutil
import tempfile
import unittest

from daemon import (ADMIN, PATIENCE_SECONDS, Daemon, Process, Session, layout, new_folder,
                    wait_until)
from reflection import CallError, to_json

NO_POOL = 5  # as in server/main.cc
CACHE = {"cache": "c"}


class Restart(unittest.TestCase):
    def setUp(self):
        self.socket = os.path.join(new_folder(self), "d.sock")
        # In memory: the test's own folder may be on a disk.
        self.parent = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.parent, ignore_errors=True)
        self.folder = self.parent + "/pool"
        self.flags = ["--pool_path=" + self.folder]

    def start(self, *flags):
        return Daemon(self, [*self.flags, *flags], socket=self.socket)

    def expect_no_pool(self, text, *flags):
        process = Process(self, self.socket, [*self.flags, *flags])
        self.assertEqual(process.wait(), NO_POOL, process.text())
        self.assertIn(text, process.text())

    def hold(self, daemon, blocks=3, **attach):
        """A session with a request that holds blocks; their ids and generations."""
        session = Session(self, daemon)
        session.call("AttachCache", {**CACHE, "layout": layout(), **attach})
        session.call("AdmitRequest", {**CACHE, "request_id": "r"})
        assigned = session.call("AssignBlocks", {**CACHE, "request_id": "r", "count": blocks,
                                                 "block_tags": list(range(1, blocks + 1))})
        return session, list(assigned.block_ids), list(assigned.generations)

    def kept(self, daemon):
        """Number of kept blocks by cache."""
        caches = to_json(daemon.client.call(ADMIN + "ListCaches")).get("caches", [])
        return {cache["cache"]: cache["blocks_kept"] for cache in caches}

    def test_every_way_to_stop_keeps_what_was_held(self):
        daemon = self.start()
        _, blocks, generations = self.hold(daemon)
        for stop in ("kill", "stop"):
            getattr(daemon, stop)()
            daemon = self.start()
            self.assertEqual(self.kept(daemon), {"c": 3})
            session = Session(self, daemon)
            attached = session.call("AttachCache", {**CACHE, "layout": layout()})
            self.assertFalse(attached.created)
            self.assertEqual(attached.blocks_kept, 3)
            first = session.call("ListKeptBlocks", {**CACHE, "page_size": 2})
            rest = session.call("ListKeptBlocks", {**CACHE, "page_size": 2,
                                                   "page_token": first.next_page_token})
            self.assertEqual(rest.next_page_token, "")
            listed = [(b.block_id, b.generation, b.tag, b.rows_backed)
                      for page in (first, rest) for b in page.blocks]
            self.assertEqual(listed, list(zip(blocks, generations, (1, 2, 3), (0, 0, 0))))
            session.call("AdmitRequest", {**CACHE, "request_id": "r"})
            taken = session.call("AssignBlocks", {
                **CACHE, "request_id": "r", "shared_block_ids": blocks,
                "shared_generations": generations})
            self.assertEqual(list(taken.block_ids), blocks)
            self.assertEqual(self.kept(daemon), {"c": 0})

    def test_killed_while_it_pins_again(self):
        daemon = self.start("--pool_bytes=256MiB")
        self.hold(daemon)
        daemon.kill()
        for end in ("kill", "stop"):
            process = Process(self, self.socket, [*self.flags, "--pool_bytes=256MiB"])
            process.wait_for_event("listening")
            getattr(process, end)()
        self.assertEqual(self.kept(self.start("--pool_bytes=256MiB")), {"c": 3})

    def test_a_pool_of_another_size(self):
        daemon = self.start()
        self.hold(daemon)
        daemon.stop()
        self.expect_no_pool("pool_bytes 67108864", "--pool_bytes=128MiB")
        daemon = self.start()
        self.assertEqual(self.kept(daemon), {"c": 3})
        daemon.stop()
        daemon = self.start("--pool_bytes=128MiB", "--pool_mismatch=drop")
        self.assertEqual(self.kept(daemon), {})
        self.assertIn("event=dropped", daemon.text())

    def test_another_layout(self):
        daemon = self.start()
        self.hold(daemon)
        daemon.kill()
        daemon = self.start()
        session = Session(self, daemon)
        other = {**CACHE, "layout": layout(row_bytes=128)}
        with self.assertRaises(CallError) as caught:
            session.call("AttachCache", other)
        self.assertEqual(caught.exception.reason, "LAYOUT_MISMATCH")
        self.assertTrue(session.call("AttachCache", {**other, "replace_kept": True}).created)

    def test_folders_that_are_not_its_own(self):
        self.flags = ["--pool_path=" + new_folder(self) + "/pool"]
        self.expect_no_pool("tmpfs or hugetlbfs")
        self.flags = ["--pool_path=" + self.folder]
        daemon = self.start()
        other = Process(self, os.path.join(new_folder(self), "e.sock"), self.flags)
        self.assertEqual(other.wait(), NO_POOL)
        self.assertIn("another daemon uses it", other.text())
        daemon.stop()
        os.chmod(self.folder, 0o770)
        self.expect_no_pool("its mode lets others in")

    def test_rows_that_somebody_has_shrunk(self):
        daemon = self.start()
        self.hold(daemon)
        daemon.stop()
        os.truncate(self.folder + "/rows", 4096)
        daemon = self.start()
        self.assertEqual(self.kept(daemon), {})
        self.assertIn("4096 bytes by now", daemon.text())
        self.assertEqual(os.stat(self.folder + "/rows").st_size, 64 << 20)

    def test_caches_that_nobody_comes_back_to_end(self):
        daemon = self.start()
        self.hold(daemon)
        daemon.kill()
        daemon = self.start("--reattach_duration=300ms")
        daemon.wait_for_event("cache_expired")
        wait_until(lambda: daemon.stats()["pool"]["used_bytes"] == "0", "its memory is back")
        self.assertEqual(sorted(os.listdir(self.folder)), ["pool", "rows"])

    def test_a_cache_outlives_its_workers(self):
        daemon = Daemon(self, ["--retain_duration_max=1h"], socket=self.socket)
        with self.assertRaises(CallError) as caught:
            self.hold(daemon, retain={"duration": "3601s"})
        self.assertEqual(caught.exception.reason, "FIELD_INVALID")
        session, blocks, _ = self.hold(daemon, retain={"blocks_max": 2, "duration": "600s"})
        session.close()
        wait_until(lambda: self.kept(daemon) == {"c": 2}, "the younger two are kept")
        cache = to_json(daemon.client.call(ADMIN + "ListCaches"))["caches"][0]
        self.assertEqual(cache["retain"], {"blocks_max": 2, "duration": "600s"})
        self.assertIn("expires_time", cache)
        self.assertNotIn("session_ids", [key for key, value in cache.items() if value])
        # Until nobody wants it.
        session = Session(self, daemon)
        session.call("AttachCache", {**CACHE, "layout": layout(), "retain": {"duration": "0s"}})
        self.assertTrue(session.call("DetachCache", CACHE).cache_ended)


class Flags(unittest.TestCase):
    def test_values_that_are_wrong(self):
        socket = os.path.join(new_folder(self), "d.sock")
        for flag in ("--pool_mismatch=maybe", "--reattach_duration=-1s",
                     "--retain_duration_max=25h"):
            with self.subTest(flag=flag):
                process = Process(self, socket, [flag])
                self.assertEqual(process.wait(PATIENCE_SECONDS), 1)
                self.assertIn(flag[2:].partition("=")[0], process.text())


if __name__ == "__main__":
    unittest.main()
