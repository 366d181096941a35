"""Messages and connections that no worker of ours sends.

Names like D13 are those of the public bug reports that the cases come from."""
import socket
import struct
import unittest
import urllib.request

import grpc
import raw_http2
from daemon import ADMIN, PATIENCE_SECONDS, TIER, Daemon, Session, layout, wait_until
from reflection import CallError

CACHE = {"cache": "c"}
OK, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = 0, 8, 4
MIB = 1 << 20


def grpc_message(data):
    return struct.pack(">BI", 0, len(data)) + data


class Sizes(unittest.TestCase):
    TOP_K = 2048

    def setUp(self):
        self.daemon = Daemon(self)
        self.session = Session(self, self.daemon)
        self.session.call("AttachCache", {**CACHE, "layout": layout(
            block_count=4, block_size=64, max_requests=1, rows_per_request=1, top_k=self.TOP_K,
            hot_size=self.TOP_K, row_bytes=16)})
        self.session.call("AdmitRequest", {**CACHE, "request_id": "r"})

    def swap_in(self, rows):
        """A step of rows for nobody: as long as others, and all masked."""
        request = self.daemon.client.request(TIER + "SwapIn", self.session.fields(
            {**CACHE, "use_slots": True, "inline": {}}))
        for topk in rows:
            request.inline.rows.add().topk.extend(topk)
        return self.daemon.client.call(TIER + "SwapIn", request), request.ByteSize()

    def test_d13_the_largest_step_is_answered(self):
        """1,024 rows x 2,048, far over gRPC's own limit of 4 MiB."""
        answer, size = self.swap_in([[3_300_000] * self.TOP_K] * 1024)
        self.assertGreater(size, 8 * MIB)
        self.assertEqual(len(answer.rows), 1024)
        self.assertEqual(set(answer.rows[1023].hot_indices), {-1})

    def test_d13_padding_is_small(self):
        answer, size = self.swap_in([[-1] * self.TOP_K] * 256)
        self.assertLess(size, MIB)
        self.assertEqual(len(answer.rows), 256)

    def test_d13_one_row_too_many(self):
        with self.assertRaises(CallError) as caught:
            self.swap_in([[]] * 1025)
        self.assertEqual(
            (caught.exception.code, caught.exception.reason, caught.exception.metadata),
            ("INVALID_ARGUMENT", "FIELD_INVALID",
             {"field": "inline.rows", "value": "1025 entries long",
              "limit": "0..1024 entries long"}))

    def test_d13_too_large_a_message(self):
        call = self.daemon.client.channel.unary_unary("/" + TIER + "SwapIn")
        other = self.daemon.connect(self)
        before = self.daemon.state()
        for size in (33 * MIB, 64 * MIB):
            with self.assertRaises(grpc.RpcError) as caught:
                call(bytes(size), timeout=PATIENCE_SECONDS)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn("%d vs. %d" % (size, 32 * MIB), caught.exception.details())
            self.assertEqual(self.daemon.state(), before)
            self.assertTrue(other.call(ADMIN + "GetStats"))

    def test_d13_a_length_with_nothing_behind_it(self):
        """No memory is taken for what a peer only promises."""
        before = self.daemon.rss_bytes()
        for length in (64 * MIB, 2**31 - 1, 2**32 - 1):
            with raw_http2.RawConnection(self.daemon.socket) as raw:
                self.assertNotEqual(raw.call("/" + TIER + "SwapIn",
                                             struct.pack(">BI", 0, length) + b"x"), OK)
        self.assertLess(self.daemon.rss_bytes() - before, 16 * MIB)
        self.assertEqual(self.daemon.health(), "SERVING")

    def test_an_expired_deadline_that_a_client_sends_all_the_same(self):
        self.session.call("ReleaseRequest", {**CACHE, "request_id": "r"})
        for method, fields in (("AdmitRequest", {"request_id": "late"}),
                               ("SwapIn", {"inline": {"rows": [{"request_id": "late",
                                                                "topk": [0]}]}}),
                               ("ReleaseRequest", {"request_id": "late"})):
            request = self.daemon.client.request(TIER + method,
                                                 self.session.fields({**CACHE, **fields}))
            data = grpc_message(request.SerializeToString())
            before = self.daemon.state()
            with self.subTest(method=method):
                self.assertEqual(self.raw_call(method, data, "0m"), DEADLINE_EXCEEDED)
                self.assertEqual(self.daemon.state(), before)
                # The same bytes with time left are taken: it was the deadline.
                self.assertEqual(self.raw_call(method, data, "30S"), OK)
                self.assertNotEqual(self.daemon.state(), before)

    def raw_call(self, method, data, timeout):
        with raw_http2.RawConnection(self.daemon.socket) as raw:
            return raw.call("/" + TIER + method, data, [("grpc-timeout", timeout)])


class Connections(unittest.TestCase):
    def expect_served(self, daemon):
        """On a connection that was not there before."""
        self.assertEqual(daemon.health(client=daemon.connect(self)), "SERVING")

    def test_d17_connections_that_say_nothing(self):
        daemon = Daemon(self)
        descriptors = daemon.descriptor_count()
        for _ in range(2000):
            raw_http2.connect(daemon.socket).close()
        self.expect_served(daemon)
        for text in (raw_http2.PREFACE[:10], raw_http2.PREFACE, b"GET / HTTP/1.1\r\n\r\n",
                     raw_http2.PREFACE + b"\xff" * 100):
            for _ in range(50):
                with raw_http2.connect(daemon.socket) as raw:
                    raw.send(text)
        self.expect_served(daemon)
        # The two clients of the test stay.
        wait_until(lambda: daemon.descriptor_count() <= descriptors + 2, "descriptors are back")

    def test_one_tcp_address_gets_its_share(self):
        daemon = Daemon(self, ["--tcp=127.0.0.1:0", "--tcp_connections_per_address_max=3",
                               "--metrics_address=127.0.0.1:0"])
        info = daemon.client.call(ADMIN + "GetNodeInfo")
        host, port = info.listen_addresses[1].rsplit(":", 1)
        words = raw_http2.PREFACE + raw_http2.frame(raw_http2.SETTINGS, 0, 0)

        def is_served(connection):
            """gRPC says its settings to those whom it is given; others are hung up on."""
            try:
                connection.sendall(words)
                return bool(connection.recv(1))
            except ConnectionResetError:
                return False
        held = []
        for _ in range(4):
            held.append(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS))
            self.addCleanup(held[-1].close)
        self.assertEqual([is_served(connection) for connection in held],
                         [True, True, True, False])
        self.assertIn("address=loopback why=address_full", daemon.text())
        with urllib.request.urlopen(info.metrics_address, timeout=PATIENCE_SECONDS) as answer:
            self.assertIn(b'kvtierd_connections_refused_total{why="address_full"} 1', answer.read())
        self.expect_served(daemon)
        held[0].close()

        def is_taken():
            with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as next_one:
                return is_served(next_one)
        wait_until(is_taken, "a place that is free is given again")

    def test_d17_packets_that_are_no_tokens(self):
        daemon = Daemon(self)
        session = Session(self, daemon)
        path = session.opened.fd_socket_path
        for packet in (b"", b"x", bytes(256), bytes(4096)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
                raw.settimeout(PATIENCE_SECONDS)
                raw.connect(path)
                raw.send(packet)
                answer, descriptors, _, _ = socket.recv_fds(raw, 4096, 1)
                self.assertEqual(descriptors, [])
                if answer:
                    self.assertNotEqual(struct.unpack("<i", answer[:4])[0], OK)
        self.assertTrue(session.call("AttachCache", {**CACHE, "layout": layout()}).created)

    def test_d17_no_descriptor_left(self):
        """Used up by caches: connections alone never get so far."""
        limit = 64
        daemon = Daemon(self, before=["prlimit", "--nofile=%d:%d" % (limit, limit), "--"])
        session = Session(self, daemon)
        attached = self.attach_until_refused(session)
        held = []
        try:
            for _ in range(limit):
                held.append(raw_http2.connect_and_speak(daemon.socket))
            daemon.wait_for_event("accept_failed")
            # Who is connected is served, and told what is wrong.
            wait_until(lambda: daemon.health() == "NOT_SERVING", "readiness is off")
            self.assertEqual(daemon.health("liveness"), "SERVING")
            self.assertIn("Too many open files",
                          daemon.client.call(ADMIN + "GetNodeInfo").not_ready_reason)
            session.call("AdmitRequest", {"cache": "c0", "request_id": "r"})
            session.call("AssignBlocks", {"cache": "c0", "request_id": "r", "count": 1})
        finally:
            for connection in held:
                connection.close()
            for cache in attached:
                session.call("DetachCache", {"cache": cache})
        wait_until(lambda: daemon.health() == "SERVING", "readiness is back")
        self.expect_served(daemon)
        self.assertTrue(session.call("AttachCache", {**CACHE, "layout": layout()}).created)
        self.assertEqual(daemon.stop(), 0)

    def attach_until_refused(self, session):
        attached = []
        while True:
            name = "c%d" % len(attached)
            try:
                session.call("AttachCache", {"cache": name, "layout": layout()})
            except CallError as error:
                self.assertEqual((error.code, error.reason),
                                 ("RESOURCE_EXHAUSTED", "LIMIT_REACHED"))
                self.assertGreater(len(attached), 0)
                return attached
            attached.append(name)

    def test_d17_silent_connections_keep_nobody_out(self):
        """However few descriptors there are: they wait, and give way."""
        limit = 64
        daemon = Daemon(self, before=["prlimit", "--nofile=%d:%d" % (limit, limit), "--"])
        held = [raw_http2.connect(daemon.socket) for _ in range(10 * limit)]
        try:
            self.expect_served(daemon)
            session = Session(self, daemon)
            self.assertTrue(session.call("AttachCache", {**CACHE, "layout": layout()}).created)
            self.assertLess(daemon.descriptor_count(), limit)
            self.assertIn("why=crowded", daemon.text())
        finally:
            for connection in held:
                connection.close()


if __name__ == "__main__":
    unittest.main()
