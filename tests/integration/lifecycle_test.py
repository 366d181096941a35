"""The process: how it starts, where it refuses to, what it leaves, who may come and go.

Names like D14 are those of the public bug reports that the cases come from; exit codes are in
server/main.cc."""
import os
import signal
import socket
import stat
import subprocess
import unittest

from daemon import (ADMIN, PATIENCE_SECONDS, POOL_BYTES, TIER, Daemon, Process, Session, layout,
                    new_folder, wait_until)
from reflection import CallError, Client, to_json

BAD_COMMAND_LINE, NO_SOCKET, SOCKET_IN_USE, NO_POOL = 1, 2, 3, 5
SOCKET_PATH_BYTES_MAX = 107


class Lifecycle(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)
        self.socket = os.path.join(self.folder, "d.sock")

    def expect_exit(self, code, *texts, socket_path=None, flags=()):
        """A start that fails at once, with a line that says why."""
        process = Process(self, self.socket if socket_path is None else socket_path, flags)
        self.assertEqual(process.wait(), code, process.text())
        last = process.text().splitlines()[-1]
        for text in texts:
            self.assertIn(text, last)

    def boot_id(self, daemon):
        return daemon.client.call(ADMIN + "GetNodeInfo").boot_id

    def files(self):
        return sorted(os.listdir(self.folder))


class SocketPath(Lifecycle):
    def path_of(self, length):
        return self.folder + "/" + "s" * (length - len(self.folder) - 1)

    def test_d16_the_longest_path_is_served(self):
        for length in (100, SOCKET_PATH_BYTES_MAX):
            daemon = Daemon(self, socket=self.path_of(length))
            session = Session(self, daemon)
            self.assertTrue(session.call("AttachCache", {"cache": "c", "layout": layout()}).created)
            self.assertEqual(daemon.stop(), 0)
            self.assertEqual(self.files(), [])

    def test_d16_a_longer_one_is_refused(self):
        for length in (108, 150, 4096):
            self.expect_exit(BAD_COMMAND_LINE, str(length), "107", socket_path=self.path_of(length))
        self.assertEqual(self.files(), [])

    def test_d16_other_spellings(self):
        for path in ("unix://" + self.socket, "unix:" + self.socket, self.socket + "\n"):
            with self.subTest(path=path):
                process = Process(self, path)
                process.wait_for_event("listening")
                self.assertEqual(self.files(), ["d.sock", "d.sock.fd", "d.sock.lock"])
                self.assertEqual(process.stop(), 0)
        for path in ("", " ", "unix://", self.folder + "/a\tb"):
            with self.subTest(path=path):
                self.expect_exit(BAD_COMMAND_LINE, "--socket", socket_path=path)
        self.assertEqual(self.files(), [])

    def test_d15_a_missing_folder(self):
        folder = self.folder + "/none"
        self.expect_exit(NO_SOCKET, folder, "No such file or directory",
                         socket_path=folder + "/d.sock")
        self.assertEqual(self.files(), [])

    def test_d15_what_is_no_socket_stays(self):
        with open(self.socket, "w") as f:
            f.write("precious")
        self.expect_exit(NO_SOCKET, self.socket, "File exists")
        with open(self.socket) as f:
            self.assertEqual(f.read(), "precious")
        self.assertEqual(self.files(), ["d.sock"])
        os.remove(self.socket)
        os.mkdir(self.socket)
        self.expect_exit(NO_SOCKET, self.socket, "Is a directory")
        self.expect_exit(NO_SOCKET, self.socket + "/no/d.sock", socket_path=self.socket + "/no/d.sock")
        self.assertEqual(self.files(), ["d.sock"])

    def test_d15_a_folder_that_is_a_file(self):
        with open(self.folder + "/file", "w"):
            pass
        self.expect_exit(NO_SOCKET, self.folder + "/file", socket_path=self.folder + "/file/d.sock")


class OneOfThem(Lifecycle):
    def test_d14_a_second_daemon_leaves_the_first_alone(self):
        first = Daemon(self, socket=self.socket)
        boot_id = self.boot_id(first)
        inode = os.stat(self.socket).st_ino
        self.expect_exit(SOCKET_IN_USE, self.socket, "in use")
        self.assertEqual(os.stat(self.socket).st_ino, inode)
        fresh = first.connect(self)
        self.assertEqual(fresh.call(ADMIN + "GetNodeInfo").boot_id, boot_id)
        self.assertEqual(self.boot_id(first), boot_id)
        self.assertEqual(first.stop(), 0)
        self.assertEqual(self.files(), [])

    def test_d14_of_many_that_start_at_once_one_serves(self):
        starts = [Process(self, self.socket) for _ in range(10)]

        def one_is_left():
            running = [p for p in starts if p.running()]
            self.assertTrue(running, [p.text() for p in starts])
            return running[0] if len(running) == 1 else None
        winner = wait_until(one_is_left, "all but one have ended")
        winner.wait_for_event("listening")
        for process in starts:
            if process is not winner:
                self.assertEqual(process.wait(), SOCKET_IN_USE, process.text())
        client = Client("unix:" + self.socket)
        self.addCleanup(client.close)
        self.assertEqual(client.call(ADMIN + "GetNodeInfo").pid, winner.pid)

    def test_d14_somebody_else_listens_there(self):
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.socket)
            other.listen()
            self.expect_exit(SOCKET_IN_USE, self.socket, "in use")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self.socket)
        self.assertEqual(self.files(), ["d.sock"])

    def test_d15_a_dead_daemons_files_are_taken_over(self):
        daemon = Daemon(self, socket=self.socket)
        client, first = daemon.client, self.boot_id(daemon)
        for _ in range(3):
            daemon.kill()
            self.assertEqual(self.files(), ["d.sock", "d.sock.fd", "d.sock.lock"])
            daemon = Daemon(self, socket=self.socket)
            self.assertNotEqual(self.boot_id(daemon), first)
            # Q04: who was connected before finds the new one by itself.
            wait_until(lambda: self.answers(client), "the old client is served again")
            self.assertEqual(client.call(ADMIN + "GetNodeInfo").pid, daemon.pid)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(self.files(), [])

    @staticmethod
    def answers(client):
        try:
            return client.call(ADMIN + "GetNodeInfo")
        except CallError as error:
            if error.code != "UNAVAILABLE":
                raise
            return None

    def test_a_file_in_the_sockets_place_is_not_deleted(self):
        daemon = Daemon(self, socket=self.socket)
        for name in ("d.sock", "d.sock.fd"):
            os.remove(self.folder + "/" + name)
            with open(self.folder + "/" + name, "w") as f:
                f.write("precious")
        self.assertEqual(daemon.stop(), 0, daemon.text())
        self.assertEqual(self.files(), ["d.sock", "d.sock.fd"])
        with open(self.socket) as f:
            self.assertEqual(f.read(), "precious")

    def test_another_socket_in_the_sockets_place_is_not_deleted(self):
        daemon = Daemon(self, socket=self.socket)
        os.remove(self.socket)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.socket)
            self.assertEqual(daemon.stop(), 0)
            self.assertEqual(self.files(), ["d.sock"])


class Access(Lifecycle):
    def modes(self):
        return {name: stat.S_IMODE(os.stat(self.folder + "/" + name).st_mode)
                for name in ("d.sock", "d.sock.fd")}

    def test_q03_the_mode_is_the_one_asked_for_whatever_the_umask(self):
        for umask in (0o000, 0o022, 0o077):
            for flags, mode in (([], 0o660), (["--socket_mode=0600"], 0o600)):
                with self.subTest(umask=umask, mode=mode):
                    process = Process(self, self.socket, flags, umask=umask)
                    process.wait_for_event("listening")
                    self.assertEqual(self.modes(), {"d.sock": mode, "d.sock.fd": mode})
                    lock = os.stat(self.socket + ".lock").st_mode
                    self.assertEqual(stat.S_IMODE(lock) & 0o077, 0)
                    self.assertEqual(process.stop(), 0)

    def test_q03_a_socket_for_everybody_needs_a_word(self):
        self.expect_exit(BAD_COMMAND_LINE, "--allow_world_writable_socket",
                         flags=["--socket_mode=0666"])
        process = Process(self, self.socket,
                          ["--socket_mode=0666", "--allow_world_writable_socket"], umask=0o077)
        process.wait_for_event("listening")
        self.assertEqual(self.modes(), {"d.sock": 0o666, "d.sock.fd": 0o666})

    @staticmethod
    def tcp_listeners(pid):
        """Ports at which a process listens."""
        inodes = set()
        for fd in os.listdir("/proc/%d/fd" % pid):
            target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            if target.startswith("socket:["):
                inodes.add(target[len("socket:["):-1])
        ports = []
        for table in ("tcp", "tcp6"):
            with open("/proc/%d/net/%s" % (pid, table)) as f:
                for line in f.read().splitlines()[1:]:
                    words = line.split()
                    if words[9] in inodes and words[3] == "0A":
                        ports.append(int(words[1].rpartition(":")[2], 16))
        return ports

    def test_no_tcp_unless_asked_for(self):
        daemon = Daemon(self, socket=self.socket)
        self.assertEqual(self.tcp_listeners(daemon.pid), [])
        self.assertEqual(list(daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses),
                         ["unix:" + self.socket])

    def test_tcp_where_asked_for(self):
        daemon = Daemon(self, ["--tcp=127.0.0.1:0"], socket=self.socket)
        addresses = list(daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses)
        ports = self.tcp_listeners(daemon.pid)
        self.assertEqual(addresses, ["unix:" + self.socket, "127.0.0.1:%d" % ports[0]])
        self.assertEqual(len(ports), 1)
        client = Client(addresses[1])
        self.addCleanup(client.close)
        self.assertEqual(client.call(ADMIN + "GetNodeInfo").boot_id, self.boot_id(daemon))
        # A port that is taken, also by one of our own.
        self.expect_exit(NO_SOCKET, addresses[1], socket_path=self.folder + "/other.sock",
                         flags=["--tcp=" + addresses[1]])


class Start(Lifecycle):
    def test_flags_that_are_wrong(self):
        for flag in ("--pool_bytes=much", "--pool_bytes=-1", "--socket_mode=rw",
                     "--shutdown_grace=-1s", "--huge_pages=some", "--backend=abacus",
                     "--pin_threads=0"):
            with self.subTest(flag=flag):
                self.expect_exit(BAD_COMMAND_LINE, flag[2:].partition("=")[0], flags=[flag])
        process = Process(self, self.socket, ["--no_such_flag"])
        self.assertEqual(process.wait(), BAD_COMMAND_LINE)
        self.assertIn("no_such_flag", process.text())
        self.assertEqual(self.files(), [])

    def test_d29_a_pool_larger_than_the_machine(self):
        self.expect_exit(NO_POOL, str(1 << 50), flags=["--pool_bytes=1024TiB"])
        self.assertEqual(self.files(), [])

    def test_the_log_says_how_far_the_pool_is(self):
        process = Process(self, self.socket, ["--pool_bytes=64MiB", "--huge_pages=never"])
        process.wait_for_event("ready")
        self.assertIn("event=pinning pinned_bytes=67108864 total_bytes=67108864", process.text())
        self.assertIn("event=ready pool_bytes=67108864 in_2mib_pages_bytes=0", process.text())
        self.assertEqual(process.stop(), 0, process.text())

    def test_signals_end_it_in_order(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon = Daemon(self, socket=self.socket)
            daemon.process.send_signal(number)
            self.assertEqual(daemon.wait(), 0)
            self.assertEqual(self.files(), [])

    def test_a_closed_pipe_is_no_end(self):
        """Nobody reads the log any more."""
        ends = os.pipe()
        process = subprocess.Popen(
            ["server/kvtierd", "--socket=" + self.socket, "--backend=cpu",
             "--pool_bytes=%d" % POOL_BYTES], stdin=subprocess.DEVNULL, stderr=ends[1])
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.terminate)
        os.close(ends[1])
        os.close(ends[0])
        client = Client("unix:" + self.socket)
        self.addCleanup(client.close)
        wait_until(lambda: os.path.exists(self.socket), "the socket is there")
        session = client.stream(TIER + "OpenSession", {}, timeout=PATIENCE_SECONDS)
        self.assertEqual(next(session).WhichOneof("event"), "opened")
        session.cancel()
        self.assertIsNone(process.poll())


class Peers(Lifecycle):
    def setUp(self):
        super().setUp()
        self.daemon = Daemon(self, socket=self.socket)

    def start_worker(self):
        worker = subprocess.Popen(["/usr/bin/python3", "tests/integration/worker.py", self.socket],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.stdin.close)
        self.addCleanup(worker.wait, PATIENCE_SECONDS)
        self.addCleanup(worker.kill)
        self.assertEqual(worker.stdout.readline(), b"3\n")
        return worker

    def blocks(self):
        cache = self.daemon.stats()["caches"][0]
        return [cache["blocks_" + name] for name in ("used", "reserved", "free", "quarantined")]

    def test_d01_blocks_of_a_killed_worker_come_back(self):
        witness = Session(self, self.daemon, "witness")
        witness.call("AttachCache", {"cache": "c", "layout": layout()})
        before = self.daemon.state()
        descriptors = self.daemon.descriptor_count()
        for _ in range(3):
            worker = self.start_worker()
            self.assertEqual(self.blocks(), [3, 2, 5 - 2, 0])
            listed = to_json(self.daemon.client.call(ADMIN + "ListSessions"))["sessions"]
            self.assertEqual([(s["client_name"], s["peer_pid"]) for s in listed],
                             [("witness", os.getpid()), ("victim", worker.pid)])
            worker.kill()
            wait_until(lambda: self.blocks() == [0, 0, 8, 0], "the blocks are back")
            wait_until(lambda: self.daemon.state() == before, "all is as before")
        wait_until(lambda: self.daemon.descriptor_count() <= descriptors, "its descriptors")
        request = {"cache": "c", "request_id": "mine"}
        witness.call("AdmitRequest", request)
        self.assertEqual(len(witness.call("AssignBlocks", {**request, "count": 8}).block_ids), 8)

    def test_d02_a_worker_that_is_idle_is_alive(self):
        """Killed, it is noticed at once; stopped, it still lives."""
        worker = self.start_worker()
        worker.send_signal(signal.SIGSTOP)
        self.assertEqual(self.daemon.stats()["sessions"], 1)
        worker.kill()
        wait_until(lambda: self.daemon.stats()["sessions"] == 0, "its session has ended")
        wait_until(lambda: self.daemon.stats()["pool"]["used_bytes"] == "0", "its memory is back")

    def test_drain_is_told(self):
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "c", "layout": layout()})
        drained = self.daemon.client.call(ADMIN + "Drain", {"message": "maintenance"})
        self.assertEqual(drained.sessions, 1)
        self.assertEqual(self.daemon.health(), "NOT_SERVING")
        self.assertEqual(self.daemon.health("kvtier.v1.KvTier"), "NOT_SERVING")
        self.assertEqual(self.daemon.health("liveness"), "SERVING")
        event = session.events.get(timeout=PATIENCE_SECONDS)
        self.assertEqual(event.draining.message, "maintenance")
        for call in (lambda: Session(self, self.daemon),
                     lambda: session.call("AttachCache", {"cache": "d", "layout": layout()}),
                     lambda: session.call("AdmitRequest", {"cache": "c", "request_id": "r"})):
            with self.assertRaises(CallError) as caught:
                call()
            self.assertEqual((caught.exception.code, caught.exception.reason),
                             ("UNAVAILABLE", "DRAINING"))
        self.assertTrue(self.daemon.stats()["draining"])
        self.assertEqual(self.daemon.stop(), 0)


if __name__ == "__main__":
    unittest.main()
