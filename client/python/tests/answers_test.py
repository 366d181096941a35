"""A daemon that answers what it must not: each lie is named, and nothing stays mapped or attached."""
import os
import unittest
import unittest.mock

import daemon
import grpc
import kvtier
from kvtier import wire
from kvtier.session import Session


def buffers(answer):
    return answer.buffers.groups[0]


LIES = [
    ("another block size", "layout.block_size", lambda a: setattr(a.layout, "block_size", 32)),
    ("another tag", "dtype_tag", lambda a: setattr(a.layout, "dtype_tag", "x")),
    ("another layer", "layout.groups[0].layers[0].row_bytes",
     lambda a: setattr(a.layout.groups[0].layers[0], "row_bytes", 80)),
    ("one group more", "has 2 entries, and 1", lambda a: a.layout.groups.add()),
    ("a large hot buffer", "layout.groups[0].hot_size", lambda a: setattr(a.layout.groups[0], "hot_size", 32769)),
    ("endless step", "layout.step_rows is 0", lambda a: setattr(a.layout, "step_rows", 0)),
    ("negative blocks", "layout.max_blocks_per_request",
     lambda a: setattr(a.layout, "max_blocks_per_request", -1)),
    ("no rows' stride", "row_stride_bytes",
     lambda a: setattr(a.layout.groups[0].layers[0], "row_stride_bytes", 8)),
    ("another device", "on device GPU-1", lambda a: setattr(a.device, "uuid", "GPU-1")),
    ("no group's arrays", "arrays of 0 groups", lambda a: a.buffers.ClearField("groups")),
    ("one layer less", "arrays of 0 layers", lambda a: buffers(a).ClearField("layers")),
    ("another stride", "region_stride is 1", lambda a: setattr(buffers(a), "region_stride", 1)),
    ("an array past its segment", "topk",
     lambda a: setattr(buffers(a).topk, "offset_bytes", 1 << 40)),
    ("a negative array", "topk", lambda a: setattr(buffers(a).topk, "offset_bytes", -64)),
    ("an unaligned array", "groups[0].owner",
     lambda a: setattr(buffers(a).owner, "offset_bytes", buffers(a).owner.offset_bytes + 2)),
    ("unaligned rows", "layers[0].hot",
     lambda a: setattr(buffers(a).layers[0].hot, "offset_bytes", 8)),
    ("a short array", "lru", lambda a: setattr(buffers(a).lru, "size_bytes", 1)),
    ("an array elsewhere", "segment 99", lambda a: setattr(buffers(a).stats, "segment_index", 99)),
    ("another kind", "block_table", lambda a: setattr(a.buffers.block_table, "segment_index",
                                                      a.buffers.row_to_request.segment_index)),
    ("a written array is read-only", "read-only", lambda a: [setattr(s, "read_only", True)
                                                             for s in a.segments]),
    ("two segments of a number", "have number",
     lambda a: setattr(a.segments[1], "segment_index", a.segments[0].segment_index)),
    ("a long segment", "descriptor has",
     lambda a: setattr(a.segments[0], "size_bytes", 1 << 40)),
    ("an offset of no page", "descriptor has",
     lambda a: setattr(a.segments[0], "offset_bytes", 8)),
]


class AnswersTest(unittest.TestCase):
    def setUp(self):
        self.host, self.session = daemon.start_and_open(self)
        self.layout = kvtier.CacheLayout([kvtier.LayerGroup([kvtier.Layer(row_bytes=64)], 4)], 8, 2,
                                         block_size=16)

    def attach_with(self, change):
        call = Session.call

        def lying(session, name, fields, timeout=None):
            answer = call(session, name, fields, timeout)
            if name == "AttachCache":
                change(answer)
            return answer
        with unittest.mock.patch.object(Session, "call", lying):
            self.session.attach("kv", self.layout)

    def mapped(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum("memfd:" in line for line in maps)

    def test_every_lie_is_named(self):
        for name, text, change in LIES:
            with self.subTest(name):
                with self.assertRaises(kvtier.InternalError) as raised:
                    self.attach_with(change)
                self.assertEqual(raised.exception.reason, "INTERNAL")
                self.assertIn(text, str(raised.exception))
                raised.exception.__traceback__ = None
                del raised
                self.assertEqual(len(self.host.stats()["caches"]), 0)
                self.assertEqual(self.mapped(), 0)

    def test_memory_that_cannot_be_mapped_here(self):
        def change(answer):
            answer.segments[0].transport = 3
        with self.assertRaises(kvtier.UnimplementedError) as raised:
            self.attach_with(change)
        self.assertEqual(raised.exception.reason, "NOT_IMPLEMENTED")

    def test_a_token_works_once(self):
        def change(answer):
            os.close(self.session.connection.redeem_token(answer.segments[0].fd_token))
        with self.assertRaises(kvtier.NotFoundError) as raised:
            self.attach_with(change)
        self.assertIn("gave no descriptor", str(raised.exception))

    def test_the_session_goes_on(self):
        with self.assertRaises(kvtier.InternalError):
            self.attach_with(LIES[0][2])
        self.session.attach("kv", self.layout)

    def test_attaching_has_a_time_of_its_own(self):
        call, times = Session.call, []

        def timed(session, name, fields, timeout=None):
            times.append((name, timeout))
            return call(session, name, fields, timeout)
        with unittest.mock.patch.object(Session, "call", timed):
            self.session.attach("kv", self.layout).close()
            self.session.attach("kv", self.layout, attach_timeout=480.0).close()
        self.assertEqual([time for name, time in times if name == "AttachCache"], [60.0, 480.0])
        with self.assertRaises(kvtier.InvalidArgumentError) as raised:
            self.session.attach("kv", self.layout, attach_timeout=0)
        self.assertIn("attach_timeout", str(raised.exception))

    def test_the_truth(self):
        self.attach_with(lambda answer: None)


class CancelledTest(unittest.TestCase):
    def test_nothing_is_cancelled_that_nobody_has_cancelled(self):
        """What gRPC's server says of calls that it has received and does not begin, as it ends."""
        call = unittest.mock.Mock(**{"code.return_value": grpc.StatusCode.CANCELLED,
                                     "details.return_value": "CANCELLED",
                                     "trailing_metadata.return_value": ()})
        error = wire.error_of(call, "AdmitRequest", "/d.sock", 1.0)
        self.assertIsInstance(error, kvtier.UnavailableError)
        self.assertEqual((error.code, error.reason), ("UNAVAILABLE", "DRAINING"))


if __name__ == "__main__":
    unittest.main()
