"""What operators ask, as dictionaries."""
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


if __name__ == "__main__":
    unittest.main()
