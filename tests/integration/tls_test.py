"""Operators over mutual TLS: who gets in, who may do what, certificates that are renewed."""
import os
import signal
import socket
import ssl
import subprocess
import unittest

import grpc
from certificates import Authority
from daemon import (ADMIN, HEALTH, PATIENCE_SECONDS, Daemon, Process, Session, new_folder)
from reflection import CallError, Client

KVTIERCTL = "client/cli/kvtierctl"
NO_SOCKET, BAD_COMMAND_LINE = 2, 1  # as in server/main.cc
NOT_REACHED, REFUSED = 3, 4         # as in client/cli/arguments.h
SERVER_NAMES = ["DNS:localhost", "IP:127.0.0.1", "DNS:node.example"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Tls(unittest.TestCase):
    def setUp(self):
        self.folder = new_folder(self)
        self.ca = Authority(self, self.folder, "ours")
        self.server = self.ca.issue("server", SERVER_NAMES)
        self.viewer = self.ca.issue("viewer", ["DNS:watch.example"])
        self.operator = self.ca.issue("operator", ["URI:spiffe://example/ops", "DNS:other.example"])
        self.config = self.folder + "/kvtierd.yaml"
        self.configure()

    def configure(self, **changes):
        values = {"tls_viewers": ["watch.example"], "tls_operators": ["spiffe://example/ops"],
                  **changes}
        with open(self.config, "w") as file:
            file.write("".join("%s: %s\n" % item for item in values.items()))

    def flags(self, address="127.0.0.1:0"):
        return ["--config=" + self.config, "--tcp=" + address, "--tls_certificate=" + self.server[0],
                "--tls_key=" + self.server[1], "--tls_client_ca=" + self.ca.certificate]

    def start(self, *flags, address="127.0.0.1:0"):
        daemon = Daemon(self, self.flags(address) + list(flags), socket=self.folder + "/d.sock")
        daemon.address = daemon.client.call(ADMIN + "GetNodeInfo").listen_addresses[1]
        return daemon

    def client(self, daemon, certificate, ca=None):
        """With a certificate and its key, or with none."""
        pair = [read(path) for path in certificate or ()]
        credentials = grpc.ssl_channel_credentials(read(ca or self.ca.certificate), *pair[::-1])
        client = Client(daemon.address, credentials)
        self.addCleanup(client.close)
        return client

    def expect_denied(self, client, method, needs, names):
        with self.assertRaises(CallError) as caught:
            client.call(ADMIN + method)
        error = caught.exception
        self.assertEqual((error.code, error.reason, error.metadata),
                         ("PERMISSION_DENIED", "ACCESS_DENIED",
                          {"needs": needs, "certificate": names}))


class Roles(Tls):
    def test_by_the_names_of_their_certificates(self):
        daemon = self.start()
        viewer, operator = (self.client(daemon, each) for each in (self.viewer, self.operator))
        self.assertTrue(viewer.call(ADMIN + "GetNodeInfo").boot_id)
        self.expect_denied(viewer, "Drain", "operator", "watch.example")
        nobody = self.client(daemon, self.ca.issue("nobody", ["DNS:nobody.example"]))
        self.expect_denied(nobody, "GetStats", "viewer", "nobody.example")
        self.assertEqual(daemon.health(client=nobody), "SERVING")
        session = Session(self, daemon)
        operator.call(ADMIN + "EvictSession", {"session_id": session.id})
        self.assertEqual(session.wait_until_ended(), ["revoked"])
        self.assertIn("certificate spiffe://example/ops,other.example, ipv4:127.0.0.1:",
                      daemon.text())
        self.assertEqual(operator.call(ADMIN + "Drain").sessions, 0)

    def test_a_common_name_counts_where_there_is_no_other(self):
        self.configure(tls_viewers=["old", "watch.example"])
        daemon = self.start()
        old = self.client(daemon, self.ca.issue("old"))
        self.assertTrue(old.call(ADMIN + "GetNodeInfo").boot_id)
        # It is not believed beside names that are there.
        false = self.client(daemon, self.ca.issue("false", ["DNS:false.example"], "watch.example"))
        self.expect_denied(false, "GetStats", "viewer", "false.example")

    def test_a_certificate_without_names_has_no_role(self):
        daemon = self.start()
        nameless = self.client(daemon, self.ca.issue("nameless", subject="/O=somebody"))
        self.expect_denied(nameless, "GetStats", "viewer", "")
        self.expect_denied(nameless, "Drain", "operator", "")
        self.assertEqual(daemon.health(client=nameless), "SERVING")

    def test_workers_do_not_come_over_tcp(self):
        daemon = self.start()
        with self.assertRaises(CallError) as caught:
            Session(self, daemon, client=self.client(daemon, self.operator))
        self.assertEqual((caught.exception.reason, caught.exception.metadata),
                         ("ACCESS_DENIED", {"needs": "worker"}))

    def test_roles_change_with_the_configuration(self):
        daemon = self.start()
        viewer = self.client(daemon, self.viewer)
        viewer.call(ADMIN + "GetNodeInfo")
        watch = viewer.stream(ADMIN + "WatchStats", {"interval": "0.1s"}, timeout=PATIENCE_SECONDS)
        next(watch)
        self.configure(tls_viewers=[])
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_event("config_reloaded")
        self.expect_denied(viewer, "GetNodeInfo", "viewer", "watch.example")
        # What is open already ends with its next answer.
        with self.assertRaises(grpc.RpcError):
            for _ in watch:
                pass
        error = viewer.error_of(watch)
        self.assertEqual((error.code, error.reason), ("PERMISSION_DENIED", "ACCESS_DENIED"))


class Handshake(Tls):
    def expect_no_connection(self, client):
        with self.assertRaises(grpc.RpcError) as caught:
            client.channel.unary_unary("/" + HEALTH)(b"", timeout=PATIENCE_SECONDS)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_who_does_not_get_in(self):
        daemon = self.start()
        strangers = Authority(self, self.folder, "theirs")
        forged = strangers.issue("forged", ["DNS:watch.example", "URI:spiffe://example/ops"])
        for name, client in (("without a certificate", self.client(daemon, None)),
                             ("of another authority", self.client(daemon, forged)),
                             ("without TLS", Client(daemon.address))):
            self.addCleanup(client.close)
            with self.subTest(client=name):
                self.expect_no_connection(client)
        # And this end does not take any server for the daemon.
        self.expect_no_connection(self.client(daemon, self.viewer, ca=strangers.certificate))
        self.assertEqual(daemon.health(client=self.client(daemon, self.viewer)), "SERVING")

    def test_old_protocols_are_not_spoken(self):
        daemon = self.start()
        host, _, port = daemon.address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca.certificate)
        context.load_cert_chain(*self.viewer)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as plain:
            with self.assertRaises(OSError):
                context.wrap_socket(plain, server_hostname="localhost")

    def serial(self, daemon):
        """Of the certificate that a new connection is shown."""
        host, _, port = daemon.address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca.certificate)
        context.load_cert_chain(*self.viewer)
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                return secure.getpeercert()["serialNumber"]

    def test_renewed_without_a_restart(self):
        daemon = self.start()
        before = self.client(daemon, self.viewer)
        boot_id = before.call(ADMIN + "GetNodeInfo").boot_id
        first = self.serial(daemon)
        # What cannot be used leaves what is there: half a renewal, nonsense, no file.
        good = read(self.server[0]), read(self.server[1])
        for number, content in ((1, read(self.viewer[1])), (0, b"-----BEGIN CERTIFICATE-----\nx\n"),
                                (0, b""), (1, None)):
            if content is None:
                os.remove(self.server[number])
            else:
                with open(self.server[number], "wb") as file:
                    file.write(content)
            self.assertEqual(self.serial(daemon), first)
            for path, text in zip(self.server, good):
                with open(path, "wb") as file:
                    file.write(text)
        self.ca.issue("server", SERVER_NAMES)
        self.assertNotEqual(self.serial(daemon), first)
        # Whoever was connected still is; it is the same daemon.
        self.assertEqual(before.call(ADMIN + "GetNodeInfo").boot_id, boot_id)

    def test_another_authority_without_a_restart(self):
        daemon = self.start()
        theirs = Authority(self, self.folder, "theirs")
        viewer = theirs.issue("new", ["DNS:watch.example"])
        self.expect_no_connection(self.client(daemon, viewer))
        own = self.folder + "/own.crt"
        with open(own, "wb") as file:
            file.write(read(self.ca.certificate))
        with open(self.ca.certificate, "ab") as file:
            file.write(read(theirs.certificate))
        client = self.client(daemon, viewer, ca=own)
        self.assertTrue(client.call(ADMIN + "GetNodeInfo").boot_id)


class Files(Tls):
    def expect_exit(self, code, text, *flags):
        process = Process(self, self.folder + "/d.sock", [*self.flags(), *flags])
        self.assertEqual(process.wait(), code, process.text())
        self.assertIn(text, process.text())

    def test_some_of_them(self):
        for name in ("certificate", "key", "client_ca"):
            self.expect_exit(BAD_COMMAND_LINE, "all of tls_certificate, tls_key and tls_client_ca",
                             "--tls_%s=" % name)

    def test_that_cannot_be_used(self):
        self.expect_exit(NO_SOCKET, "No such file", "--tls_key=%s/none.key" % self.folder)
        self.expect_exit(NO_SOCKET, "no PEM file with a CERTIFICATE",
                         "--tls_certificate=" + self.server[1])
        self.expect_exit(NO_SOCKET, "no PEM file with a PRIVATE KEY", "--tls_key=" + self.config)
        self.expect_exit(NO_SOCKET, "tls_key the key of tls_certificate",
                         "--tls_key=" + self.viewer[1])
        os.chmod(self.server[1], 0o644)
        self.expect_exit(NO_SOCKET, "every user of the machine")

    def test_with_them_other_machines_may_reach_it(self):
        daemon = self.start(address="0.0.0.0:0")
        self.assertNotIn("insecure_address", daemon.text())


class Tools(Tls):
    def ctl(self, daemon, *words, certificate=None, address=None):
        certificate = certificate or self.operator
        done = subprocess.run(
            [KVTIERCTL, "--address=" + (address or daemon.address), "--tls-cert=" + certificate[0],
             "--tls-key=" + certificate[1], "--tls-ca=" + self.ca.certificate, *words],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_kvtierctl(self):
        daemon = self.start()
        code, text = self.ctl(daemon, "info")
        self.assertEqual(code, 0, text)
        self.assertIn(daemon.address, text)
        code, text = self.ctl(daemon, "drain", certificate=self.viewer)
        self.assertEqual(code, REFUSED)
        self.assertIn("ACCESS_DENIED", text)
        self.assertEqual(self.ctl(daemon, "drain")[0], 0)

    def test_kvtierctl_wants_the_name_that_the_certificate_has(self):
        self.server = self.ca.issue("server", ["DNS:node.example"])
        daemon = self.start()
        self.assertEqual(self.ctl(daemon, "health", "liveness")[0], NOT_REACHED)
        self.assertEqual(self.ctl(daemon, "health", "liveness", "--server-name=node.example")[0], 0)

    def test_what_kvtierctl_does_not_take(self):
        daemon = self.start()
        for words in (["--tls-ca="], ["--socket=" + daemon.socket], ["--tls-key=/none"]):
            code, text = self.ctl(daemon, *words, "info")
            self.assertEqual(code, 2, text)


if __name__ == "__main__":
    unittest.main()
