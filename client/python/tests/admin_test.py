"""What operators ask, as dictionaries."""
import os
import shutil
import subprocess
import threading
import unittest

import daemon
import kvtier
import kvtier.admin


class AdminTest(unittest.TestCase):
    def test_all_fields_are_there(self):
        host, session = daemon.start_and_open(self)
        with session.attach("kv", daemon.layout()) as cache, cache.admit("r") as request:
            request.assign_blocks(2)
            with kvtier.admin.Admin(host.socket) as admin:
                stats = admin.call("GetStats")
                self.assertEqual(stats["caches"][0]["cache"], "kv")
                self.assertEqual(stats["caches"][0]["counters"]["hits"], 0)
                self.assertIsNone(stats["caches"][0]["counters"]["hit_rate"])
                listed = admin.call("ListRequests", cache="kv")["requests"]
                self.assertEqual([entry["request_id"] for entry in listed], ["r"])
                self.assertEqual(admin.call("GetNodeInfo")["devices"][0]["backend"],
                                 daemon.BACKEND)
                watch = admin.watch(interval=0.1)
                self.assertEqual(next(watch)["sessions"], 1)
                watch.close()

    def test_errors(self):
        with kvtier.admin.Admin(daemon.Daemon(self).socket) as admin:
            with self.assertRaises(kvtier.NotFoundError) as raised:
                admin.call("EvictSession", session_id="nobody")
        self.assertEqual(raised.exception.reason, "SESSION_UNKNOWN")
        with kvtier.admin.Admin("/tmp/none.sock") as admin:
            with self.assertRaises(kvtier.UnavailableError):
                admin.call("GetStats")

    def test_nobody_is_cancelled_by_a_daemon_that_stops(self):
        """A third of such calls are, by its gRPC, which has received them and begins no more."""
        errors = []

        def ask(target):
            with kvtier.admin.Admin(target) as admin:
                while True:
                    try:
                        admin.call("GetNodeInfo")
                        asked.release()
                    except kvtier.KvtierError as error:
                        errors.append(error)
                        return
        for _ in range(5):
            host = daemon.Daemon(self)
            asked = threading.Semaphore(0)
            threads = [threading.Thread(target=ask, args=(host.socket,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for _ in range(100):
                self.assertTrue(asked.acquire(timeout=daemon.PATIENCE_SECONDS))
            host.stop()
            for thread in threads:
                thread.join()
        self.assertEqual(len(errors), 30)
        self.assertEqual({(type(error), error.code) for error in errors},
                         {(kvtier.UnavailableError, "UNAVAILABLE")}, errors)
        self.assertLessEqual({error.reason for error in errors}, {"", "DRAINING"})

    @staticmethod
    def certificate(folder, name):
        """(certificate, key), signed by itself."""
        paths = [os.path.join(folder, name + end) for end in (".crt", ".key")]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-subj", "/CN=" + name, "-addext", "subjectAltName=DNS:" + name, "-days", "2",
             "-out", paths[0], "-keyout", paths[1]], check=True,
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return paths

    def test_mutual_tls(self):
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl to make certificates with")
        folder = daemon.new_folder(self)
        # Of themselves: each side knows the other's as an authority.
        server, client = (self.certificate(folder, name) for name in ("server", "client"))
        host = daemon.Daemon(self, tcp="127.0.0.1:0", tls_certificate=server[0],
                             tls_key=server[1], tls_client_ca=client[0], tls_viewers="client")
        with kvtier.admin.Admin(host.socket) as admin:
            address = admin.call("GetNodeInfo")["listen_addresses"][1]
        tls = kvtier.admin.Tls(*client, ca=server[0], server_name="server")
        with kvtier.admin.Admin(address, tls=tls) as admin:
            self.assertEqual(admin.call("GetStats")["sessions"], 0)
            with self.assertRaises(kvtier.PermissionDeniedError) as raised:
                admin.call("Drain")
        self.assertEqual((raised.exception.reason, raised.exception.metadata["certificate"]),
                         ("ACCESS_DENIED", "client"))
        with kvtier.admin.Admin(address) as admin, self.assertRaises(kvtier.UnavailableError):
            admin.call("GetStats")

    def test_what_is_no_tls(self):
        tls = kvtier.admin.Tls("/none.crt", "/none.key", "/none.ca")
        for target in ("127.0.0.1:1", "/tmp/none.sock"):
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                kvtier.admin.Admin(target, tls=tls)
            self.assertEqual(raised.exception.metadata["field"][:3], "tls")


if __name__ == "__main__":
    unittest.main()
