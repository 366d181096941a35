"""Who may do what: users of caches and sessions, viewers, operators, and whoever comes over TCP."""
import os
import shutil
import signal
import tempfile
import unittest

import grpc
from daemon import (ADMIN, HEALTH, PATIENCE_SECONDS, TIER, Daemon, Process, Session, layout,
                    new_folder, wait_until)
from memory import connect, redeem
from reflection import CallError, Client, to_json
from stranger import Stranger

OTHER, FRIEND, GROUP = 4711, 4712, 4242  # users and a group that own nothing
CACHE = {"cache": "c"}
REQUEST = {**CACHE, "request_id": "r"}
OK, NOT_FOUND = 0, 5
BAD_COMMAND_LINE = 1  # as in server/main.cc

# A call of each method that workers have, good but for who calls it.
WORKERS = {
    "AttachCache": {**CACHE, "layout": layout()},
    "AdmitRequest": {**CACHE, "request_id": "s"},
    "AssignBlocks": {**REQUEST, "count": 1},
    "ListKeptBlocks": CACHE,
    "FreeBlocks": {**REQUEST, "block_ids": [0]},
    "InvalidateBlocks": {**CACHE, "block_ids": [0]},
    "SwapIn": {**CACHE, "inline": {"rows": [{"request_id": "r", "topk": [0]}]}},
    "ReplayPlan": {**CACHE, "num_rows": 0},
    "Backup": {**CACHE, "inline": {"rows": [{"request_id": "r", "slot": 0}]}},
    "WaitTicket": {**CACHE, "ticket": 1},
    "ReleaseRequest": REQUEST,
    "DetachCache": CACHE,
}
READERS = {"GetStats": {}, "ListCaches": {}, "ListSessions": {}, "ListRequests": CACHE,
           "GetNodeInfo": {}}


class Access(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)
        os.chmod(self.folder, 0o755)
        self.socket = self.folder + "/d.sock"

    def start(self, *flags):
        """A daemon whose socket everybody may open."""
        return Daemon(self, ["--socket_mode=0666", "--allow_world_writable_socket", *flags],
                      socket=self.socket)

    def stranger(self, uid=OTHER, **more):
        return Stranger(self, self.socket, uid, **more)

    def work(self, daemon, **attach):
        """A session with a request that holds a block."""
        session = Session(self, daemon)
        session.attached = session.call("AttachCache", {**WORKERS["AttachCache"], **attach})
        session.call("AdmitRequest", REQUEST)
        session.call("AssignBlocks", {**REQUEST, "count": 2})
        return session

    def expect_denied(self, answer, needs, **metadata):
        self.assertEqual((answer.get("code"), answer.get("reason")),
                         ("PERMISSION_DENIED", "ACCESS_DENIED"), answer)
        self.assertEqual(answer["metadata"], {"needs": needs, **metadata})


class Users(Access):
    def attach(self, stranger, **more):
        return stranger.call(TIER + "AttachCache", {"session_id": stranger.open(),
                                                    **WORKERS["AttachCache"], **more})

    def test_a_cache_is_its_makers(self):
        daemon = self.start()
        self.work(daemon)
        before = daemon.state()["caches"]
        stranger = self.stranger()
        for more in ({}, {"layout": layout(row_bytes=128)}, {"replace_kept": True}):
            self.expect_denied(self.attach(stranger, **more), "owner", cache="c", uid=str(OTHER))
        self.assertEqual(daemon.state()["caches"], before)
        self.assertEqual(before["caches"][0]["owner_uid"], os.getuid())
        # The same name is free for others once the cache has ended, and then it is theirs.
        other = self.attach(stranger, cache="d")
        self.assertTrue(other["created"])
        with self.assertRaises(CallError) as caught:
            Session(self, daemon).call("AttachCache", {**WORKERS["AttachCache"], "cache": "d"})
        self.assertEqual(caught.exception.reason, "ACCESS_DENIED")

    def test_a_cache_that_is_shared(self):
        daemon = self.start()
        self.work(daemon, share={"uids": [FRIEND], "gids": [GROUP]})
        self.assertEqual(to_json(daemon.client.call(ADMIN + "ListCaches"))["caches"][0]["share"],
                         {"uids": [FRIEND], "gids": [GROUP], "everybody": False})
        for stranger in (self.stranger(FRIEND), self.stranger(groups=[7, GROUP]),
                         self.stranger(gid=GROUP)):
            self.assertFalse(self.attach(stranger)["created"])
        self.expect_denied(self.attach(self.stranger()), "owner", cache="c", uid=str(OTHER))
        # What a refusal does not give is the pool.
        self.assertEqual(daemon.text().count("event=users_share_the_pool uid=%d other_uid=%d"
                                             % (os.getuid(), FRIEND)), 1)

    def test_a_cache_without_sessions(self):
        daemon = self.start()
        self.work(daemon, retain={"duration": "60s"}).close()
        wait_until(lambda: not to_json(daemon.client.call(ADMIN + "ListSessions"))["sessions"],
                   "the session has ended")
        stranger = self.stranger()
        self.expect_denied(self.attach(stranger), "owner", cache="c", uid=str(OTHER))
        self.expect_denied(self.attach(stranger, replace_kept=True, layout=layout(row_bytes=128)),
                           "owner", cache="c", uid=str(OTHER))
        self.assertFalse(Session(self, daemon).call("AttachCache", WORKERS["AttachCache"]).created)

    def test_after_a_restart(self):
        parent = tempfile.mkdtemp(prefix="kvt-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, parent, ignore_errors=True)
        daemon = self.start("--pool_path=%s/pool" % parent)
        self.work(daemon, share={"uids": [FRIEND]})
        daemon.kill()
        daemon = self.start("--pool_path=%s/pool" % parent)
        self.expect_denied(self.attach(self.stranger()), "owner", cache="c", uid=str(OTHER))
        self.assertFalse(self.attach(self.stranger(FRIEND))["created"])
        session = Session(self, daemon)
        self.assertFalse(session.call("AttachCache", WORKERS["AttachCache"]).created)

    def test_a_session_is_its_users(self):
        """With its id, which operators can read, and a connection of another user."""
        daemon = self.start()
        session = self.work(daemon)
        before = daemon.state()
        stranger = self.stranger()
        denied = {"session_id": session.id, "uid": str(OTHER)}
        for method, fields in WORKERS.items():
            with self.subTest(method=method):
                self.expect_denied(
                    stranger.call(TIER + method, {"session_id": session.id, **fields}), "owner",
                    **denied)
        for verb, method in (("swap_in", "SwapIn"), ("backup", "Backup"),
                             ("replay_plan", "ReplayPlan"), ("wait_ticket", "WaitTicket")):
            with self.subTest(step=verb):
                step = stranger.stream(TIER + "RunSteps", {
                    "step_id": "1", verb: {"session_id": session.id, **WORKERS[method]}})
                self.assertEqual((step["error"]["code"], step["error"]["reason"],
                                  step["error"]["metadata"]),
                                 (7, "ACCESS_DENIED", {"needs": "owner", **denied}))
        self.assertEqual(daemon.state(), before)

    def test_tokens_are_their_sessions_users(self):
        daemon = self.start()
        session = self.work(daemon)
        path, token = session.opened.fd_socket_path, session.attached.segments[0].fd_token
        stranger = self.stranger()
        stranger.open()
        self.assertEqual(stranger.redeem(path, token), NOT_FOUND)
        with connect(path) as channel:
            code, _, fd = redeem(channel, token)
            self.assertEqual(code, OK)  # it was not spent
            os.close(fd)
            self.assertEqual(redeem(channel, token)[0], NOT_FOUND)  # and is now
            late = session.attached.segments[1].fd_token
            session.close()
            wait_until(lambda: redeem(channel, late)[0] == NOT_FOUND, "it ends with its session")
            for guess in ("", "0" * 32, token[:-1] + ("0" if token[-1] != "0" else "1")):
                if guess:
                    self.assertEqual(redeem(channel, guess)[0], NOT_FOUND)
        self.assertRegex(token, "^[0-9a-f]{32}$")

    def test_a_users_quota_leaves_others_theirs(self):
        daemon = self.start("--pool_bytes=64MiB", "--pool_bytes_per_uid_max=4MiB",
                            "--sessions_per_uid_max=2")
        stranger = self.stranger()
        self.assertTrue(self.attach(stranger, cache="a")["created"])
        large = layout(block_count=4096)  # of 16 rows of 64 bytes: 4 MiB
        refused = stranger.call(TIER + "AttachCache", {"session_id": stranger.open(),
                                                       "cache": "b", "layout": large})
        self.assertEqual((refused["code"], refused["reason"]),
                         ("RESOURCE_EXHAUSTED", "LIMIT_REACHED"))
        self.assertEqual((refused["metadata"]["setting"], refused["metadata"]["limit"],
                          refused["metadata"]["uid"]),
                         ("pool_bytes_per_uid_max", str(4 << 20), str(OTHER)))
        third = stranger.open()
        self.assertEqual(third["metadata"],
                         {"setting": "sessions_per_uid_max", "limit": "2", "used": "2",
                          "requested": "1", "uid": str(OTHER)})
        self.work(daemon)  # another user, who has the rest
        users = to_json(daemon.client.call(ADMIN + "GetStats"))["users"]
        self.assertEqual([(user["uid"], user["sessions"], user["caches"], user["pool_bytes"])
                          for user in users],
                         [(os.getuid(), 1, 1, str(2 << 20)), (OTHER, 2, 1, str(2 << 20))])
        info = daemon.client.call(ADMIN + "GetNodeInfo")
        self.assertEqual((info.pool_bytes_per_uid_max, info.sessions_per_uid_max,
                          info.caches_per_uid_max), (4 << 20, 2, 0))

    def test_whom_the_sockets_mode_keeps_out(self):
        if os.getuid() != 0:
            self.skipTest("a socket is root's to give to another group")
        Daemon(self, ["--socket_mode=0660", "--socket_gid=%d" % GROUP], socket=self.socket)
        for path in (self.socket, self.socket + ".fd"):
            self.assertEqual(self.stranger().connects(path), "EACCES")
        member = self.stranger(groups=[GROUP])
        self.assertIsNone(member.connects(self.socket))
        self.assertNotIn("reason", member.open())


class Operators(Access):
    def test_users_who_are_neither(self):
        daemon = self.start()
        session = self.work(daemon)
        before = daemon.state()
        stranger = self.stranger()
        for method, fields in READERS.items():
            self.expect_denied(stranger.call(ADMIN + method, fields), "viewer", uid=str(OTHER))
        self.expect_denied(stranger.stream(ADMIN + "WatchStats", {}), "viewer", uid=str(OTHER))
        self.expect_denied(stranger.call(ADMIN + "Drain"), "operator", uid=str(OTHER))
        self.expect_denied(stranger.call(ADMIN + "EvictSession", {"session_id": session.id}),
                           "operator", uid=str(OTHER))
        self.assertEqual(daemon.state(), before)
        self.assertEqual(stranger.call(HEALTH)["status"], "SERVING")

    def test_viewers_look_and_operators_act(self):
        path = self.folder + "/kvtierd.yaml"

        def configure(**lists):
            with open(path, "w") as file:
                file.write("".join("%s: %s\n" % item for item in lists.items()))
        configure(viewer_uids=[OTHER], operator_uids=[FRIEND])
        daemon = self.start("--config=" + path)
        session = self.work(daemon)
        viewer, operator = self.stranger(OTHER), self.stranger(FRIEND)
        evict = {"session_id": session.id, "message": "for a reason"}
        for method, fields in READERS.items():
            for each in (viewer, operator):
                self.assertNotIn("reason", each.call(ADMIN + method, fields))
        self.expect_denied(viewer.call(ADMIN + "EvictSession", evict), "operator", uid=str(OTHER))
        self.expect_denied(viewer.call(ADMIN + "Drain"), "operator", uid=str(OTHER))
        # Rights are looked at with each call, not with the connection.
        configure(operator_uids=[OTHER])
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_event("config_reloaded")
        self.expect_denied(operator.call(ADMIN + "GetStats"), "viewer", uid=str(FRIEND))
        self.assertEqual(viewer.call(ADMIN + "EvictSession", evict), {})
        self.assertEqual(session.wait_until_ended(), ["revoked"])
        self.assertRegex(daemon.text(), r'event=evict_session by="uid %d, pid \d+"' % OTHER)
        self.assertEqual(viewer.call(ADMIN + "Drain")["sessions"], 0)

    def test_the_daemons_own_user_always_is_one(self):
        daemon = self.start("--operator_uids=")
        self.assertEqual(daemon.client.call(ADMIN + "Drain").sessions, 0)


class NotAllowed(Access):
    """allowed_uids keeps a user out, who hears why."""

    def ask(self, path):
        """(code, text, details) of a call on a connection of its own."""
        with grpc.insecure_channel("unix:" + self.socket) as channel:
            call = channel.unary_unary("/" + path)
            with self.assertRaises(grpc.RpcError) as caught:
                call(b"", timeout=PATIENCE_SECONDS)
        error = caught.exception
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        return error.code().name, error.details(), details

    def test_each_call_says_so(self):
        process = Process(self, self.socket, ["--allowed_uids=%d" % (os.getuid() + 1)])
        process.wait_for_event("listening")
        for path in (TIER + "OpenSession", ADMIN + "GetStats", HEALTH,
                     "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "no.Such/Call"):
            with self.subTest(path=path):
                code, text, details = self.ask(path)
                self.assertEqual(code, "PERMISSION_DENIED")
                self.assertIn("user %d may not connect" % os.getuid(), text)
                self.assertIn("--allowed_uids", text)
                self.assertIn(b"ACCESS_DENIED", details)
        self.assertIn("event=connection_refused uid=%d" % os.getuid(), process.text())

    def test_many_of_them_take_nothing_from_others(self):
        process = Process(self, self.socket, ["--allowed_uids=%d" % (os.getuid() + 1)])
        process.wait_for_event("listening")
        before = len(os.listdir("/proc/%d/fd" % process.pid))
        held = [connect_stream(self.socket) for _ in range(100)]
        for each in held:
            self.addCleanup(each.close)
        # They are ended, whether or not they ever say anything.
        for each in held:
            each.settimeout(PATIENCE_SECONDS)
            while each.recv(4096):
                pass
        wait_until(lambda: len(os.listdir("/proc/%d/fd" % process.pid)) <= before,
                   "connections of those who may not connect are closed")
        self.assertEqual(self.ask(HEALTH)[0], "PERMISSION_DENIED")


def connect_stream(path):
    import socket
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(path)
    return channel


class Tcp(Access):
    def test_no_data_plane_and_nothing_that_changes(self):
        daemon = self.start("--tcp=127.0.0.1:0")
        session = self.work(daemon)
        before = daemon.state()
        client = Client(daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses[1])
        self.addCleanup(client.close)

        def expect_denied(needs, call):
            with self.assertRaises(CallError) as caught:
                call()
            error = caught.exception
            self.assertEqual((error.code, error.reason, error.metadata),
                             ("PERMISSION_DENIED", "ACCESS_DENIED", {"needs": needs}))
        for method, fields in WORKERS.items():
            with self.subTest(method=method):
                expect_denied("worker", lambda m=method, f=fields: client.call(
                    TIER + m, {"session_id": session.id, **f}))
        with self.subTest(method="OpenSession"):
            expect_denied("worker", lambda: Session(self, daemon, client=client))
        with self.subTest(method="RunSteps"):
            stream = client.stream(TIER + "RunSteps", iter([]), timeout=PATIENCE_SECONDS)
            with self.assertRaises(grpc.RpcError) as caught:
                next(stream)
            self.assertEqual(client.error_of(caught.exception).metadata, {"needs": "worker"})
        covered = set(WORKERS) | {"OpenSession", "RunSteps"}
        methods = {m.name for m in client.service("kvtier.v1.KvTier").methods}
        self.assertEqual(covered, methods)
        for method, fields in READERS.items():
            self.assertIsNotNone(client.call(ADMIN + method, fields))
        next(client.stream(ADMIN + "WatchStats", {}, timeout=PATIENCE_SECONDS))
        expect_denied("operator", lambda: client.call(ADMIN + "Drain"))
        expect_denied("operator", lambda: client.call(ADMIN + "EvictSession",
                                                      {"session_id": session.id}))
        self.assertEqual(set(READERS) | {"WatchStats", "Drain", "EvictSession"},
                         {m.name for m in client.service("kvtier.v1.KvTierAdmin").methods})
        self.assertEqual(daemon.health(client=client), "SERVING")
        self.assertEqual(daemon.state(), before)

    def test_what_others_reach_needs_a_word(self):
        for flag, word in (("--tcp=0.0.0.0:0", "--allow_insecure_tcp"),
                           ("--tcp=[::]:0", "--allow_insecure_tcp"),
                           ("--tcp=example:0", "--allow_insecure_tcp"),
                           ("--metrics_address=0.0.0.0:0", "--allow_insecure_metrics")):
            with self.subTest(flag=flag):
                process = Process(self, self.socket, [flag])
                self.assertEqual(process.wait(), BAD_COMMAND_LINE)
                self.assertIn(word, process.text())
        process = Process(self, self.socket, ["--tcp=0.0.0.0:0", "--allow_insecure_tcp",
                                              "--metrics_address=0.0.0.0:0",
                                              "--allow_insecure_metrics"])
        process.wait_for_event("pinning")
        self.assertEqual(process.text().count("level=warning event=insecure_address"), 2)

    def test_nothing_but_tcp(self):
        """gRPC would listen at a socket file, without asking who comes."""
        for address in ("unix:%s/x.sock" % self.folder, "unix-abstract:x", "7400", ":7400",
                        "127.0.0.1", "127.0.0.1:70000", "::1:7400"):
            with self.subTest(address=address):
                process = Process(self, self.socket, ["--tcp=" + address])
                self.assertEqual(process.wait(), BAD_COMMAND_LINE)
                self.assertIn("write host:port", process.text())


if __name__ == "__main__":
    unittest.main()
