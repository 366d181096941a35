"""One clear error each: code, reason and metadata; the daemon is alive and nothing has changed."""
import contextlib
import re
import unittest

from daemon import PATIENCE_SECONDS, TIER, Daemon, Session, layout, wait_until
from reflection import CallError

CACHE = {"cache": "c"}


def documented():
    """{reason: (code, metadata keys)} as the comments of errors.proto say."""
    with open("proto/kvtier/v1/errors.proto") as f:
        text = f.read()
    reasons = {}
    for comment, name in re.findall(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = ", text):
        comment = " ".join(line.strip(" /") for line in comment.splitlines())
        code = re.match(r"\[(\w+)\]", comment)
        keys = re.search(r"\((\w+(?:, \w+)*)\)", comment)
        reasons[name] = (code and code.group(1), keys.group(1).split(", ") if keys else [])
    return reasons


DOCUMENTED = documented()


class Errors(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self)
        self.session = Session(self, self.daemon, "one")

    @contextlib.contextmanager
    def refused(self, code, reason, metadata, retry=False):
        """The call inside fails like this, and leaves everything as it was.

        What is compared is all that an operator can read, except for the time of reading."""
        before = self.daemon.state()
        with self.assertRaises(CallError) as caught:
            yield
        error = caught.exception
        self.assertEqual((error.code, error.reason, error.metadata), (code, reason, metadata),
                         error.message)
        self.assertEqual(error.domain, "kvtier.v1")
        # For people: one line that names what a machine is told as well.
        self.assertTrue(error.message)
        self.assertNotIn("\n", error.message)
        self.assertEqual(error.retry_seconds is not None, retry, error.retry_seconds)
        documented_code, keys = DOCUMENTED[reason]
        self.assertEqual(code, documented_code)
        self.assertLessEqual(set(keys), set(metadata))
        self.assertEqual(self.daemon.state(), before)
        self.assertTrue(self.daemon.running())
        self.assertEqual(self.daemon.health(), "SERVING")

    def field_invalid(self, field, value, limit):
        return self.refused("INVALID_ARGUMENT", "FIELD_INVALID",
                            {"field": field, "value": value, "limit": limit})

    def attach(self, session=None, **changes):
        return (session or self.session).call("AttachCache",
                                              {**CACHE, "layout": layout(**changes)})

    def admit(self, request_id="r", session=None, **more):
        return (session or self.session).call("AdmitRequest",
                                              {**CACHE, "request_id": request_id, **more})

    def assign(self, count, request_id="r", session=None):
        return list((session or self.session).call(
            "AssignBlocks", {**CACHE, "request_id": request_id, "count": count}).block_ids)

    def free(self, blocks, request_id="r", session=None):
        return (session or self.session).call(
            "FreeBlocks", {**CACHE, "request_id": request_id, "block_ids": blocks}).blocks_freed


    def release(self, request_id):
        """Waits until what it held can be had."""
        self.session.call("ReleaseRequest", {**CACHE, "request_id": request_id})
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_quarantined"] == 0,
                   "its blocks are free")


class Attach(Errors):
    def layout_invalid(self, field, value, limit):
        return self.refused("INVALID_ARGUMENT", "LAYOUT_INVALID",
                            {"field": field, "value": value, "limit": limit})

    def test_top_k_above_hot_size(self):
        with self.layout_invalid("groups[0].top_k", "6", "at most hot_size (4)"):
            self.attach(top_k=6, hot_size=4)
        self.assertTrue(self.attach(top_k=4, hot_size=4).created)

    def test_rows_that_no_vector_fits(self):
        for size, limit in ((584, "a multiple of 16"), (24, "a multiple of 16"), (0, "16..4096"),
                            (-16, "16..4096"), (4112, "16..4096")):
            with self.subTest(row_bytes=size), self.layout_invalid(
                    "groups[0].layers[0].row_bytes", str(size), limit):
                self.attach(row_bytes=size)

    def test_more_hot_slots_than_an_order_has(self):
        with self.layout_invalid("groups[0].hot_size", "32769", "1..32768"):
            self.attach(hot_size=32769)

    def test_a_policy_that_nobody_knows(self):
        with self.layout_invalid("eviction_policy", "7",
                                 "EVICTION_POLICY_LRU (1) or EVICTION_POLICY_AGED (2)"):
            self.attach(eviction_policy=7)
        self.assertEqual(self.attach(eviction_policy="EVICTION_POLICY_AGED")
                         .layout.eviction_policy, 2)
        other = Session(self, self.daemon, "two")
        with self.refused("FAILED_PRECONDITION", "LAYOUT_MISMATCH",
                          {"cache": "c", "field": "eviction_policy", "value": "LRU",
                           "expected": "AGED"}):
            self.attach(other)

    def test_rows_are_shared_by_all_or_none(self):
        self.assertTrue(self.attach(share_rows=True).layout.share_rows)
        other = Session(self, self.daemon, "two")
        with self.refused("FAILED_PRECONDITION", "LAYOUT_MISMATCH",
                          {"cache": "c", "field": "share_rows", "value": "false",
                           "expected": "true"}):
            self.attach(other)

    def test_the_same_name_with_another_layout(self):
        self.attach()
        other = Session(self, self.daemon, "two")
        for change, field, expected in (("row_bytes", "groups[0].layers[0].row_bytes", "64"),
                                        ("block_count", "block_count", "8"),
                                        ("max_requests", "max_requests", "2")):
            with self.subTest(field=field), self.refused(
                    "FAILED_PRECONDITION", "LAYOUT_MISMATCH",
                    {"cache": "c", "field": field, "value": "32", "expected": expected}):
                self.attach(other, **{change: 32})
        self.assertFalse(self.attach(other).created)

    def test_twice_with_another_layout(self):
        self.attach()
        with self.refused("ALREADY_EXISTS", "ID_CONFLICT", {"cache": "c"}):
            self.attach(row_bytes=128)
        self.assertFalse(self.attach().created)

    def test_a_cache_that_the_pool_has_no_room_for(self):
        self.attach()
        free = self.daemon.stats()["pool"]["largest_free_bytes"]
        size = 4096 * 16 * 1024  # 1024 blocks of 16 rows, all of the pool
        with self.refused("RESOURCE_EXHAUSTED", "POOL_EXHAUSTED",
                          {"requested_bytes": str(size), "free_bytes": free,
                           "used_bytes": str((64 << 20) - int(free)),
                           "largest_contiguous_bytes": free, "limit_bytes": str(64 << 20)},
                          retry=True):
            self.session.call("AttachCache", {"cache": "large", "layout": layout(
                block_count=1024, row_bytes=4096)}, timeout=PATIENCE_SECONDS)

    def test_an_unknown_device(self):
        with self.refused("FAILED_PRECONDITION", "DEVICE_UNKNOWN",
                          {"device_uuid": "GPU-7", "known": "CPU-0"}):
            self.session.call("AttachCache",
                              {**CACHE, "layout": layout(), "device_uuid": "GPU-7"})


class Names(Errors):
    def test_unknown_session(self):
        name = self.session.opened.boot_id + "." + 32 * "0"
        self.attach()
        for method, fields in (("AttachCache", {**CACHE, "layout": layout()}),
                               ("AdmitRequest", {**CACHE, "request_id": "r"}),
                               ("SwapIn", {**CACHE, "inline": {}}),
                               ("WaitTicket", CACHE)):
            with self.subTest(method=method), self.refused(
                    "NOT_FOUND", "SESSION_UNKNOWN", {"session_id": name}):
                self.daemon.client.call(TIER + method, {"session_id": name, **fields})

    def test_a_session_that_has_ended(self):
        ended = Session(self, self.daemon, "gone")
        self.daemon.client.call("kvtier.v1.KvTierAdmin/EvictSession", {"session_id": ended.id})
        self.assertEqual(ended.wait_until_ended(), ["revoked"])
        with self.refused("NOT_FOUND", "SESSION_UNKNOWN", {"session_id": ended.id}):
            self.attach(ended)

    def test_a_session_of_the_daemon_before(self):
        old = Daemon(self)
        stale = Session(self, old, "stale")
        old.stop()
        with self.refused("FAILED_PRECONDITION", "BOOT_ID_STALE",
                          {"boot_id": stale.opened.boot_id,
                           "expected": self.session.opened.boot_id}):
            self.daemon.client.call(TIER + "AttachCache", {
                "session_id": stale.id, **CACHE, "layout": layout()})

    def test_unknown_cache(self):
        self.attach()
        other = Session(self, self.daemon, "not attached")
        for session, name in ((self.session, "other"), (other, "c")):
            for method, fields in (("AdmitRequest", {"request_id": "r"}),
                                   ("DetachCache", {}),
                                   ("SwapIn", {"inline": {}}),
                                   ("InvalidateBlocks", {"block_ids": [0]})):
                with self.subTest(method=method), self.refused(
                        "NOT_FOUND", "CACHE_UNKNOWN", {"cache": name}):
                    session.call(method, {"cache": name, **fields})

    def test_unknown_request(self):
        self.attach()
        with self.refused("NOT_FOUND", "REQUEST_UNKNOWN", {"request_id": "r"}):
            self.assign(1)
        with self.refused("NOT_FOUND", "REQUEST_UNKNOWN", {"request_id": "r", "row": "0"}):
            self.session.call("SwapIn", {**CACHE, "inline": {"rows": [
                {"request_id": "r", "topk": [0]}]}})

    def test_oversized_strings(self):
        self.attach()
        long = 129 * "x"
        with self.field_invalid("cache", "129 bytes long", "1..128 bytes long"):
            self.session.call("AttachCache", {"cache": long, "layout": layout()})
        with self.field_invalid("request_id", "129 bytes long", "1..128 bytes long"):
            self.admit(long)
        with self.field_invalid("client_name", "129 bytes long", "0..128 bytes long"):
            Session(self, self.daemon, long)
        with self.field_invalid("message", "1025 bytes long", "at most 1024 bytes long"):
            self.daemon.client.call("kvtier.v1.KvTierAdmin/Drain", {"message": 1025 * "x"})
        self.assertEqual(self.admit(128 * "x").region, 0)

    def test_a_megabyte_where_a_name_belongs(self):
        """The answer's trailers have a limit of their own: the value comes back cut."""
        name = (1 << 20) * "x"
        fields = {"session_id": name, **CACHE}
        with self.refused("NOT_FOUND", "SESSION_UNKNOWN", {"session_id": 253 * "x" + "..."}):
            self.daemon.client.call(TIER + "FreeBlocks", {**fields, "block_ids": [0]})
        # Where nothing large belongs it is not even looked at.
        size = self.daemon.client.request(TIER + "DetachCache", fields).ByteSize()
        with self.refused("RESOURCE_EXHAUSTED", "LIMIT_REACHED",
                          {"limit": str(64 << 10), "requested": str(size)}):
            self.daemon.client.call(TIER + "DetachCache", fields)


class Blocks(Errors):
    def setUp(self):
        super().setUp()
        self.attach()
        self.admit()

    def blocks_exhausted(self, requested, free, retry=True):
        return self.refused("RESOURCE_EXHAUSTED", "BLOCKS_EXHAUSTED",
                            {"cache": "c", "requested": requested, "free": free,
                             "used": str(8 - int(free)), "limit": "8"},
                            retry=retry)

    def test_double_free(self):
        self.assertEqual(self.assign(3), [0, 1, 2])
        self.assertEqual(self.free([1]), 1)
        with self.refused("FAILED_PRECONDITION", "BLOCK_NOT_ASSIGNED", {"block_id": "1"}):
            self.free([1])
        # Not the half that could be freed either.
        with self.refused("FAILED_PRECONDITION", "BLOCK_NOT_ASSIGNED", {"block_id": "1"}):
            self.free([0, 1, 2])
        with self.field_invalid("block_ids", "0 more than once", "without repetition"):
            self.free([0, 0])
        released = self.session.call("ReleaseRequest", {**CACHE, "request_id": "r"})
        self.assertEqual(released.blocks_freed, 2)
        # They wait for what the device streams were given before.
        wait_until(lambda: self.daemon.stats()["caches"][0]["blocks_free"] == 8, "all are free")

    def test_a_block_of_another_request(self):
        self.assertEqual(self.assign(1), [0])
        self.admit("s")
        with self.refused("PERMISSION_DENIED", "BLOCK_FOREIGN", {"block_id": "0"}):
            self.free([0], "s")

    def test_block_out_of_range(self):
        self.assign(1)
        for block in (8, -1, 2**31 - 1, -2**31):
            for method, fields in (("FreeBlocks", {"request_id": "r", "block_ids": [block]}),
                                   ("InvalidateBlocks", {"block_ids": [0, block]}),
                                   ("AssignBlocks", {"request_id": "r", "count": 1,
                                                     "shared_block_ids": [block]})):
                with self.subTest(method=method, block=block), self.refused(
                        "INVALID_ARGUMENT", "BLOCK_OUT_OF_RANGE",
                        {"block_id": str(block), "limit": "8"}):
                    self.session.call(method, {**CACHE, **fields})

    def test_exhausted_pool(self):
        self.assign(7)
        self.admit("s")
        with self.blocks_exhausted("2", "1"):
            self.assign(2, "s")
        self.assertEqual(self.assign(1, "s"), [7])
        with self.blocks_exhausted("1", "0"):
            self.assign(1, "s")
        # Never to be had, whoever frees what.
        with self.blocks_exhausted("9", "0", retry=False):
            self.assign(9, "s")
        self.assertEqual(self.free([0, 1]), 2)
        self.assertEqual(sorted(self.assign(2, "s")), [0, 1])

    def test_exhausted_by_reservations(self):
        self.admit("s", reserve_blocks=6)
        with self.blocks_exhausted("3", "2"):
            self.assign(3)

    def test_d08_admission_counts_the_output_too(self):
        """A prompt of 3 blocks with an output of 2 is refused where only the prompt would fit, and
        one that is admitted can't fail later."""
        self.assign(2)
        prompt, output = 3, 2
        self.admit("s", reserve_blocks=prompt + output)
        self.assertEqual(len(self.assign(prompt, "s")), prompt)
        self.release("r")
        self.admit("t")
        with self.blocks_exhausted("4", "3"):
            self.assign(4, "t")
        self.assertEqual(len(self.assign(3, "t")), 3)
        # The pool is full but for what was promised.
        with self.blocks_exhausted("1", "0"):
            self.assign(1, "t")
        for _ in range(output):
            self.assertEqual(len(self.assign(1, "s")), 1)
        self.release("t")
        with self.blocks_exhausted(str(prompt + output), "3"):
            self.admit("u", reserve_blocks=prompt + output)

    def test_exhausted_regions(self):
        self.admit("s")
        with self.refused("RESOURCE_EXHAUSTED", "REGIONS_EXHAUSTED",
                          {"cache": "c", "used": "2", "limit": "2"}, retry=True):
            self.admit("t")
        self.session.call("ReleaseRequest", {**CACHE, "request_id": "s"})
        self.assertEqual(self.admit("t").region, 1)

    def test_none_asked_for(self):
        with self.field_invalid("count", "0", "at least 1 where no blocks are shared"):
            self.assign(0)
        with self.field_invalid("count", "-1", "at least 0"):
            self.assign(-1)

    def test_more_than_an_answer_may_have(self):
        most = 2**21
        with self.field_invalid("count", str(most + 1), "at most %d with 0 shared blocks" % most):
            self.assign(most + 1)
        with self.field_invalid("count", str(2**31 - 1), "at most %d with 0 shared blocks" % most):
            self.assign(2**31 - 1)
        with self.blocks_exhausted(str(most), "8", retry=False):
            self.assign(most)
        self.assertEqual(self.assign(1), [0])
        with self.field_invalid("count", str(most), "at most %d with 1 shared blocks" % (most - 1)):
            self.session.call("AssignBlocks", {
                **CACHE, "request_id": "r", "count": most, "shared_block_ids": [0]})

    def test_a_shared_block_of_an_earlier_tenant(self):
        self.assign(1)
        self.free([0])
        self.assertIn(0, self.assign(8))  # again, to a later tenant
        self.admit("s")
        with self.refused("FAILED_PRECONDITION", "GENERATION_STALE",
                          {"block_id": "0", "value": "1", "expected": "2"}):
            self.session.call("AssignBlocks", {
                **CACHE, "request_id": "s", "shared_block_ids": [0], "shared_generations": [1]})


class Steps(Errors):
    def setUp(self):
        super().setUp()
        self.attach()
        self.admit()
        self.assign(1)

    def swap_in(self, *rows):
        return self.session.call("SwapIn", {**CACHE, "use_slots": True,
                                            "inline": {"rows": list(rows)}})

    def test_rows_wider_than_top_k(self):
        with self.field_invalid("rows[1].topk", "5 entries long", "0..4 entries long"):
            self.swap_in({}, {"request_id": "r", "topk": [0, 1, 2, 3, 4]})

    def test_a_request_twice(self):
        row = {"request_id": "r", "topk": [0]}
        with self.refused("INVALID_ARGUMENT", "REQUEST_REPEATED",
                          {"request_id": "r", "limit": "1"}):
            self.swap_in(row, row)

    def test_a_slot_past_the_cache(self):
        for slot in (128, -1, 2**31 - 1):
            with self.subTest(slot=slot), self.refused(
                    "OUT_OF_RANGE", "SLOT_OUT_OF_RANGE",
                    {"slot": str(slot), "limit": "128", "row": "1"}):
                self.session.call("Backup", {**CACHE, "inline": {"rows": [
                    {"request_id": "r", "slot": 0}, {"request_id": "r", "slot": slot}]}})

    def test_a_ticket_that_was_never_given(self):
        with self.refused("NOT_FOUND", "TICKET_UNKNOWN", {"ticket": "99", "limit": "0"}):
            self.session.call("WaitTicket", {**CACHE, "ticket": 99})

    def test_d11_tensors_of_a_worker(self):
        with self.refused("UNIMPLEMENTED", "NOT_IMPLEMENTED",
                          {"feature": "BackupRequest.tensor"}):
            self.session.call("Backup", {**CACHE, "tensor": {}})

    def test_a_failed_step_does_not_end_the_stream(self):
        client = self.daemon.client
        bad = self.session.fields({"cache": "other", "inline": {}})
        good = self.session.fields({**CACHE, "inline": {}})
        answers = list(client.stream(TIER + "RunSteps", iter(
            client.request(TIER + "RunSteps", {"step_id": i, "swap_in": fields})
            for i, fields in enumerate((bad, good))), timeout=PATIENCE_SECONDS))
        self.assertEqual([a.WhichOneof("result") for a in answers], ["error", "swap_in"])
        error = answers[0].error
        self.assertEqual((error.code, error.reason, dict(error.metadata)),
                         (5, "CACHE_UNKNOWN", {"cache": "other"}))

    def test_unknown_methods(self):
        import grpc
        call = self.daemon.client.channel.unary_unary("/kvtier.v1.KvTier/NoSuchMethod")
        before = self.daemon.state()
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"", timeout=PATIENCE_SECONDS)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(self.daemon.state(), before)

    def test_bytes_that_are_no_message(self):
        import grpc
        call = self.daemon.client.channel.unary_unary("/kvtier.v1.KvTier/SwapIn")
        before = self.daemon.state()
        with self.assertRaises(grpc.RpcError) as caught:
            call(b"\xff\xff\xff", timeout=PATIENCE_SECONDS)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertEqual(self.daemon.state(), before)


class Documentation(unittest.TestCase):
    def test_every_reason_is_read(self):
        self.assertEqual(len(DOCUMENTED), 32)
        self.assertEqual([r for r, (code, _) in DOCUMENTED.items() if not code], ["UNSPECIFIED"])
        self.assertEqual(DOCUMENTED["LAYOUT_MISMATCH"], (
            "FAILED_PRECONDITION", ["cache", "field", "value", "expected"]))


if __name__ == "__main__":
    unittest.main()
