"""Sessions: opened, lost, revoked, closed, and what is said where none can be."""
import concurrent.futures
import itertools
import logging
import os
import pickle
import resource
import socket
import unittest
import unittest.mock

import daemon
import grpc
import kvtier


def is_open(descriptor):
    try:
        os.fstat(descriptor)
        return True
    except OSError:
        return False


class SessionTest(unittest.TestCase):
    def test_says_what_it_is(self):
        host, session = daemon.start_and_open(self)
        self.assertTrue(session.id.startswith(session.boot_id))
        self.assertEqual(session.daemon_version, kvtier.__version__)
        self.assertEqual([d.backend for d in session.devices], [daemon.BACKEND])
        self.assertIs(session.state, kvtier.SessionState.OPEN)
        session.check()
        self.assertEqual(host.stats()["sessions"], 1)

    def test_the_end_of_the_block_ends_it(self):
        host = daemon.Daemon(self)
        with kvtier.open_session("unix:" + host.socket, client_name="worker") as session:
            pass
        self.assertIs(session.state, kvtier.SessionState.CLOSED)
        with self.assertRaises(kvtier.FailedPreconditionError) as raised:
            session.attach("kv", daemon.layout())
        self.assertIn("open a new one", str(raised.exception))
        daemon.wait_until(lambda: host.stats()["sessions"] == 0, "the daemon has heard of it")
        session.close()  # again

    def test_one_that_nobody_has_any_more_ends(self):
        host = daemon.Daemon(self)
        session = kvtier.open_session(host.socket)
        del session
        daemon.wait_until(lambda: host.stats()["sessions"] == 0, "the daemon has heard of it")

    def test_no_descriptor_left(self):
        _, session = daemon.start_and_open(self)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        refused = 0
        for spare in range(20):
            # Under this limit so many numbers are free.
            free = (number for number in itertools.count() if not is_open(number))
            resource.setrlimit(resource.RLIMIT_NOFILE,
                               (next(itertools.islice(free, spare, None)), before[1]))
            try:
                session.attach("kv", daemon.layout())
                break
            except kvtier.ResourceExhaustedError as error:
                self.assertEqual(error.reason, "LIMIT_REACHED")
                refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        self.assertGreaterEqual(refused, 2)
        self.assertLess(refused, 10)

    def test_a_lost_daemon_is_reported(self):
        host = daemon.Daemon(self)
        events = []
        session = host.session(self, on_event=events.append)
        with self.assertLogs("kvtier", logging.WARNING) as logged:
            host.kill()
            self.assertTrue(session.wait_until_ended(daemon.PATIENCE_SECONDS))
            daemon.wait_until(lambda: events, "the event")
        self.assertIn("is lost", logged.output[0])
        self.assertEqual([event.state for event in events], [kvtier.SessionState.LOST])
        with self.assertRaises(kvtier.UnavailableError) as raised:
            session.check()
        self.assertIn("open a new session and attach again", str(raised.exception))
        self.assertIsInstance(raised.exception, ConnectionError)

    def test_an_evicted_session_is_revoked(self):
        host = daemon.Daemon(self)
        events = []
        session = host.session(self, on_event=events.append)
        with kvtier.admin.Admin(host.socket) as admin:
            admin.call("EvictSession", session_id=session.id)
        daemon.wait_until(lambda: session.state is kvtier.SessionState.REVOKED, "revoked")
        with self.assertRaises(kvtier.NotFoundError) as raised:
            session.attach("kv", daemon.layout())
        self.assertEqual(raised.exception.reason, "SESSION_UNKNOWN")
        self.assertEqual(raised.exception.metadata["session_id"], session.id)

    def test_a_draining_daemon_says_so(self):
        host = daemon.Daemon(self)
        events = []
        session = host.session(self, on_event=events.append)
        with kvtier.admin.Admin(host.socket) as admin:
            admin.call("Drain")
        daemon.wait_until(lambda: events, "the event")
        self.assertIs(events[0].state, kvtier.SessionState.DRAINING)
        session.check()
        with self.assertRaises(kvtier.UnavailableError) as raised:
            session.attach("kv", daemon.layout())
        self.assertEqual(raised.exception.reason, "DRAINING")

    def test_a_forked_child_is_refused(self):
        session = daemon.session(self)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                session.check()
            except kvtier.FailedPreconditionError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        self.assertIn(b"was forked from it", os.read(read, 4096))
        os.close(read)
        os.close(write)
        session.check()


class NoSessionTest(unittest.TestCase):
    """Each says what to do."""

    def refused(self, kind, path, **options):
        with self.assertRaises(kind) as raised:
            kvtier.open_session(path, **options)
        return str(raised.exception)

    def test_without_a_daemon(self):
        path = os.path.join(daemon.new_folder(self), "none.sock")
        text = self.refused(kvtier.UnavailableError, path)
        self.assertIn(path + " does not exist: is kvtierd running, with this --socket?", text)

    def test_a_daemon_that_has_died(self):
        host = daemon.Daemon(self)
        host.kill()
        self.assertIn("start it again", self.refused(kvtier.UnavailableError, host.socket))

    def test_no_socket(self):
        path = os.path.join(daemon.new_folder(self), "file")
        with open(path, "w", encoding="utf-8"):
            pass
        self.assertIn("is no socket", self.refused(kvtier.UnavailableError, path))

    def test_another_server(self):
        path = os.path.join(daemon.new_folder(self), "other.sock")
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        server.add_insecure_port("unix:" + path)
        server.start()
        self.addCleanup(server.stop, 0)
        text = self.refused(kvtier.UnimplementedError, path)
        self.assertIn("no kvtierd, or one of another API version; this package speaks version 1",
                      text)

    def test_a_daemon_of_another_api(self):
        host = daemon.Daemon(self)
        with unittest.mock.patch("kvtier.session.API_VERSION", 2):
            text = self.refused(kvtier.UnimplementedError, host.socket)
        self.assertIn("install the kvtier of the daemon's release", text)

    def test_nobody_answers(self):
        """It is waited for as long as for any call: a daemon may be slow to get its turn."""
        path = os.path.join(daemon.new_folder(self), "mute.sock")
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(path)
            mute.listen()
            text = self.refused(kvtier.DeadlineExceededError, path, call_timeout=0.5)
        self.assertIn("does not open a session: is it kvtierd?", text)

    def test_bad_arguments(self):
        for options in ({"path": ""}, {"path": "/x" * 60}, {"path": "/tmp/a\n"},
                        {"path": "/tmp/a", "call_timeout": 0}):
            with self.subTest(options):
                text = self.refused(kvtier.InvalidArgumentError, **options)
                self.assertIn("it must be", text)

    def test_waits_for_a_daemon(self):
        path = os.path.join(daemon.new_folder(self), "none.sock")
        text = self.refused(kvtier.DeadlineExceededError, path, wait_for_daemon=True,
                            call_timeout=0.3)
        self.assertIn("is kvtierd running", text)


class ErrorsTest(unittest.TestCase):
    def test_every_reason_is_known(self):
        self.assertIn("LAYOUT_MISMATCH", kvtier.messages.reasons())

    def test_an_error_survives_pickling(self):
        error = pickle.loads(pickle.dumps(kvtier.ResourceExhaustedError(
            "none left", reason="BLOCKS_EXHAUSTED", metadata={"free": "0"}, retry_delay=0.5)))
        self.assertEqual(str(error), "RESOURCE_EXHAUSTED / BLOCKS_EXHAUSTED: none left")
        self.assertEqual((error.metadata, error.retry_delay), ({"free": "0"}, 0.5))


if __name__ == "__main__":
    unittest.main()
