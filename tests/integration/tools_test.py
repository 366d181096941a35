"""What an operator's tools see: everything described, and every zero printed.

Names like O04 are those of the public bug reports that the cases come from."""
import json
import unittest

from daemon import ADMIN, Daemon, Session, layout
from google.protobuf import json_format
from reflection import CallError


class Tools(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(self)

    def test_o01_everything_can_be_described(self):
        client = self.daemon.client
        services = client.services()
        self.assertEqual(services, [
            "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
            "kvtier.v1.KvTier", "kvtier.v1.KvTierAdmin"])
        for name in services:
            for method in client.service(name).methods:
                with self.subTest(method=method.full_name):
                    self.assertTrue(client.message_class(method.input_type.full_name)())
        with self.assertRaises(LookupError):
            client.message_class("kvtier.v1.NoSuchMessage")

    def test_reasons_can_be_looked_up(self):
        reasons = self.daemon.client.enum("kvtier.v1.ErrorReason").values_by_name
        self.assertIn("ERROR_REASON_BLOCKS_EXHAUSTED", reasons)

    def test_o04_zeros_are_there(self):
        Session(self, self.daemon).call("AttachCache", {"cache": "c", "layout": layout()})
        stats = self.daemon.client.call(ADMIN + "GetStats")
        # Also where the tool leaves out what is at its default.
        for plain in (False, True):
            with self.subTest(including_default_value_fields=not plain):
                text = json_format.MessageToJson(stats, including_default_value_fields=not plain)
                self.expect_zeros(json.loads(text))

    def expect_zeros(self, stats):
        cache = stats["caches"][0]
        for counters in (stats["counters"], cache["counters"], cache["groups"][0]["counters"],
                         cache["sessions"][0]["counters"]):
            self.assertEqual((counters["hits"], counters["misses"]), ("0", "0"))
            self.assertEqual(set(counters.values()), {"0"})
            self.assertEqual(len(counters), 19)
            # O05: no rate of nothing.
            self.assertNotIn("hitRate", counters)
        self.assertEqual((cache["blocksUsed"], cache["blocksReserved"],
                          cache["blocksQuarantined"]), (0, 0, 0))
        self.assertEqual(cache["groups"][0]["groupIndex"], 0)
        self.assertEqual(cache["sessions"][0]["requests"], 0)
        self.assertEqual(cache["sessions"][0]["operationsInFlight"], "0")
        self.assertIs(stats["draining"], False)
        self.assertEqual(stats["pool"]["state"], "POOL_STATE_READY")

    def test_o05_the_rate_is_there_with_the_first_lookup(self):
        session = Session(self, self.daemon)
        session.call("AttachCache", {"cache": "c", "layout": layout()})
        request = {"cache": "c", "request_id": "r"}
        session.call("AdmitRequest", request)
        session.call("AssignBlocks", {**request, "count": 1})
        session.call("Backup", {"cache": "c", "inline": {"rows": [
            {"request_id": "r", "slot": 0, "source_hot_row": 0}]}})
        # Masked ones and the newest are no lookups.
        for topk, rate in (([-1, 5], None), ([0], 0.0), ([0], 0.5), ([0, 0], 2 / 3)):
            session.call("SwapIn", {"cache": "c", "use_slots": True, "inline": {"rows": [
                {"request_id": "r", "topk": topk, "newest_slot": 5}]}})
            counters = self.daemon.stats()["counters"]
            self.assertEqual(counters.get("hit_rate"), rate, counters)

    def test_a_call_that_fails_can_be_found_in_the_log(self):
        daemon = Daemon(self, ["--log_level=debug"])
        for named, found in (("job-17", "job-17"), (None, r"[0-9a-f]{8}-1"), ("a b", "ab")):
            metadata = [("x-request-id", named)] if named else []
            with self.assertRaises(CallError) as caught:
                daemon.client.call(ADMIN + "GetStats", {"cache": "none"}, metadata=metadata)
            self.assertRegex(caught.exception.request_id, "^%s$" % found)
            self.assertIn(" level=debug event=call_failed request_id=%s method=GetStats "
                          "code=NOT_FOUND reason=CACHE_UNKNOWN" % caught.exception.request_id,
                          daemon.text())


if __name__ == "__main__":
    unittest.main()
