"""SGLang's calls over a real daemon on the CPU backend, without torch."""
import unittest

import daemon
from sglang_world import BLOCK_SIZE, GROUPS, HOT_SIZE, TOP_K, World

import kvtier
from kvtier import EvictionPolicy
from kvtier.sglang import HiSparseConfig, HiSparseCoordinator


class SglangTest(unittest.TestCase):
    def setUp(self):
        self.session = daemon.session(self)

    def world(self, **options):
        world = World(self.session, **options)
        self.addCleanup(world.tier.close)
        return world

    def test_long_requests_decode_under_eviction(self):
        world = self.world()
        world.prefill("a", 1, HOT_SIZE + 5)
        world.prefill("b", 0, HOT_SIZE + 11)
        for step in range(12):
            rids = ["a", "b"] if step % 3 else ["b", "a"]
            self.assertEqual(world.step(rids), 0)
        self.assertGreater(world.counters("hits"), 0)
        self.assertGreater(world.counters("evictions"), 0)
        self.assertEqual(world.counters("unbacked_reads"), 0)

    def test_short_requests_take_the_fast_path(self):
        world = self.world()
        world.prefill("a", 1, 3)
        loaded = world.counters("misses")
        self.assertEqual(loaded, 3 * len(GROUPS))
        for _ in range(HOT_SIZE - 3):
            self.assertEqual(world.step(["a"]), 0)
        self.assertEqual(world.length("a"), HOT_SIZE)
        self.assertEqual(world.counters("misses"), loaded)
        self.assertEqual(world.counters("hits"), 0)

    def test_a_short_request_becomes_a_long_one(self):
        world = self.world()
        world.prefill("a", 1, HOT_SIZE - 4)
        world.prefill("b", 2, 2)
        for _ in range(20):
            self.assertEqual(world.step(["a", "b"]), 0)
        self.assertGreater(world.length("a"), HOT_SIZE + 10)
        self.assertGreater(world.length("b"), HOT_SIZE)
        self.assertEqual(world.counters("unbacked_reads"), 0)

    def test_sizes_around_the_hot_buffer(self):
        for tokens in (1, TOP_K, TOP_K + 1, HOT_SIZE - 1, HOT_SIZE, HOT_SIZE + 1):
            world = self.world(name="size-%d" % tokens)
            world.prefill("a", 0, tokens)
            for _ in range(3):
                self.assertEqual(world.step(["a"], padding=2), 0, "%d tokens" % tokens)

    def test_admissions_come_between_the_beginning_of_a_step_and_the_step(self):
        world = self.world()
        world.prefill("a", 1, HOT_SIZE + 3)
        for tokens in (6, HOT_SIZE + 1):
            self.assertEqual(world.step(["a"], between=lambda: world.prefill("b", 2, tokens)), 0)
            self.assertEqual(world.step(["b", "a"]), 0)
            world.finish("b")

    def test_rows_that_arrive_in_the_host_pool(self):
        world = self.world()
        world.receive("a", 1, HOT_SIZE + 3)
        world.receive("b", 2, 6)
        for _ in range(5):
            self.assertEqual(world.step(["b", "a"], padding=1), 0)

    def test_staging_ends_when_the_rows_have_arrived(self):
        world = self.world()
        req = world.prefill("a", 1, 7)
        self.assertTrue(req.hisparse_staging)
        self.assertTrue(world.tier.has_ongoing_staging())
        self.assertEqual(world.tier.collect_ready_reqs(), [req])
        self.assertFalse(req.hisparse_staging)
        self.assertFalse(world.tier.has_ongoing_staging())
        self.assertEqual(world.tier.collect_ready_reqs(), [])

    def test_a_request_may_end_in_staging_and_twice(self):
        world = self.world()
        req = world.prefill("a", 1, 7)
        world.tier.abort_staging_request(req)
        world.tier.request_finished(req)
        self.assertFalse(world.tier.has_ongoing_staging())
        self.assertEqual(world.tier.get_token_stats().host_tokens, 0)
        world.prefill("a", 1, 9)
        self.assertEqual(world.step(["a"]), 0)

    def test_blocks_and_rows_go_round(self):
        world = self.world(num_blocks=16, max_num_reqs=2)
        for number in range(9):
            world.prefill("long", 1, HOT_SIZE + 4)
            world.prefill("short", 2, 5 + number)
            for _ in range(3):
                self.assertEqual(world.step(["short", "long"]), 0)
            world.finish("short")
            self.assertEqual(world.step(["long"]), 0)
            world.finish("long")
        self.assertEqual(world.counters("unbacked_reads"), 0)

    def test_blocks_that_are_reserved_are_there(self):
        world = self.world(num_blocks=10, max_num_reqs=2)
        world.prefill("a", 0, 4, reserve_tokens=36)
        with self.assertRaises(kvtier.ResourceExhaustedError) as raised:
            world.prefill("b", 1, 8)
        self.assertEqual(raised.exception.reason, "BLOCKS_EXHAUSTED")
        self.assertNotIn(1, world.tier.requests)
        for _ in range(32):
            self.assertEqual(world.step(["a"]), 0)

    def test_statistics(self):
        world = self.world()
        world.prefill("a", 0, HOT_SIZE + 10)
        world.prefill("b", 1, 5)
        stats = world.tier.get_token_stats()
        self.assertEqual(stats.host_tokens, HOT_SIZE + 15)
        self.assertEqual(stats.device_tokens, HOT_SIZE + 5)
        self.assertAlmostEqual(stats.host_token_usage, (HOT_SIZE + 15) / (40 * BLOCK_SIZE))

    def test_mistakes_of_an_engine_are_named(self):
        world = self.world()
        world.prefill("a", 1, HOT_SIZE + 3)
        with self.assertRaisesRegex(ValueError, "1 still belongs to request 'a'"):
            world.prefill("b", 1, 3)
        with self.assertRaisesRegex(ValueError, "9.*0..3"):
            world.prefill("b", 0, 3).req_pool_idx = 9
            world.tier.requests.admit("c", 9, 1, 0)
        self.assertEqual(world.step(["a"]), 0)
        world.truth["a"] = world.rows(world.length("a") + 4)
        with self.assertRaisesRegex(ValueError, "'a' has %d tokens" % (HOT_SIZE + 3)):
            world.step(["a"])
        with self.assertRaisesRegex(KeyError, "req_pool_idx 3"):
            world.tier.map_last_loc_to_buffer([5], [0], [3], [5], [3])
        for groups in ((), ((0,), (0,))):
            with self.assertRaises(ValueError):
                HiSparseCoordinator(self.session, "x", HiSparseConfig(8), row_width=16,
                                    kv_dtype="uint8", layer_groups=groups, max_num_reqs=1,
                                    num_blocks=1)

    def test_a_long_random_life(self):
        for seed in range(4):
            policy = EvictionPolicy.AGED if seed % 2 else EvictionPolicy.LRU
            world = self.world(name="life-%d" % seed, seed=seed,
                               layout_options={"eviction_policy": policy})
            wrong, made, running = 0, 0, []
            for step in range(120):
                if len(running) < 3 and step % 5 == 0:
                    rid, made = "r%d" % made, made + 1
                    used = {world.requests[r].req_pool_idx for r in running}
                    index = min(set(range(4)) - used)
                    grow = world.receive if made % 2 else world.prefill
                    grow(rid, index, int(world.random.integers(1, HOT_SIZE + 12)))
                    running.append(rid)
                world.random.shuffle(running)
                if running and world.length(running[0]) > HOT_SIZE + 15:
                    world.finish(running.pop(0))
                if running:
                    wrong += world.step(running, padding=3 - len(running))
            self.assertEqual(wrong, 0, "seed %d" % seed)
            self.assertGreater(world.counters("evictions"), 20)
            self.assertEqual(world.counters("unbacked_reads"), 0)


if __name__ == "__main__":
    unittest.main()
