"""What a service manager such as systemd hears from the daemon, at a socket of the test's own."""
import os
import signal
import socket
import unittest

from daemon import PATIENCE_SECONDS, POOL_BYTES, Daemon, Process, new_folder

SOCKET_IN_USE = 3


class ServiceManager(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(self.folder + "/notify")
        self.manager.settimeout(PATIENCE_SECONDS)

    def environment(self, watchdog_microseconds=None):
        environment = {**os.environ, "NOTIFY_SOCKET": self.folder + "/notify"}
        if watchdog_microseconds:
            environment["WATCHDOG_USEC"] = str(watchdog_microseconds)
        return environment

    def hear(self):
        """The next message, as a dict."""
        return dict(line.split("=", 1) for line in self.manager.recv(4096).decode().splitlines())

    def hear_until(self, name):
        """The messages up to the one that says `name`."""
        heard = [self.hear()]
        while name not in heard[-1]:
            heard.append(self.hear())
        return heard

    def test_start_and_stop(self):
        daemon = Daemon(self, socket=self.folder + "/d.sock", env=self.environment())
        start = self.hear_until("READY")
        self.assertEqual(start[-1], {"READY": "1", "STATUS": "serving"})
        # Pinning said how far it is, and asked for time.
        self.assertIn("pinned %d of %d bytes" % (POOL_BYTES, POOL_BYTES),
                      [message.get("STATUS") for message in start])
        self.assertGreater(int(start[0]["EXTEND_TIMEOUT_USEC"]), 10**6)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(self.hear(), {"STOPPING": "1",
                                       "STATUS": "stopping: signal %d" % signal.SIGTERM})

    def test_a_reload_is_announced(self):
        daemon = Daemon(self, socket=self.folder + "/d.sock", env=self.environment())
        self.hear_until("READY")
        daemon.process.send_signal(signal.SIGHUP)
        self.assertGreater(int(self.hear_until("RELOADING")[-1]["MONOTONIC_USEC"]), 0)
        self.assertEqual(self.hear(), {"READY": "1", "STATUS": "serving"})
        self.assertEqual(daemon.stop(), 0)

    def test_heartbeats_while_it_lives(self):
        daemon = Daemon(self, socket=self.folder + "/d.sock", env=self.environment(300000))
        for _ in range(3):
            self.hear_until("WATCHDOG")
        # One that hangs is silent, and so gets restarted.
        daemon.process.send_signal(signal.SIGSTOP)
        self.manager.settimeout(0.6)
        with self.assertRaises(TimeoutError):
            while True:
                self.hear()
        daemon.process.send_signal(signal.SIGCONT)
        self.manager.settimeout(PATIENCE_SECONDS)
        self.hear_until("WATCHDOG")
        self.assertEqual(daemon.stop(), 0)

    def test_a_start_that_fails_is_never_ready(self):
        first = Daemon(self, socket=self.folder + "/d.sock")
        second = Process(self, self.folder + "/d.sock", env=self.environment())
        self.assertEqual(second.wait(), SOCKET_IN_USE)
        self.manager.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.hear()
        self.assertEqual(first.stop(), 0)

    def test_a_manager_that_is_gone_is_no_trouble(self):
        self.manager.close()
        daemon = Daemon(self, socket=self.folder + "/d.sock", env=self.environment(300000))
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    unittest.main()
