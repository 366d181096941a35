"""HiSparse over a real daemon on the CPU backend: rows, blocks and batches, without torch."""
import threading
import unittest

import daemon
import numpy as np
from hisparse_world import BLOCK_SIZE, HOT_SIZE, TOP_K, World

import kvtier
from kvtier import EvictionPolicy
from kvtier.hisparse import (Assignment, HiSparseConfig, HiSparseCoordinator, HiSparseTier,
                             Ranks, kv_cache_shape)


class ConfigTest(unittest.TestCase):
    def test_the_hot_buffer_is_twice_top_k(self):
        self.assertEqual(HiSparseConfig(2048).hot_size, 4096)
        self.assertEqual(HiSparseConfig(2048, 2048).hot_size, 2048)
        self.assertEqual(HiSparseConfig(20000).hot_size, 32768)

    def test_sizes_that_cannot_be_say_both_numbers(self):
        for arguments, words in (
            ((2048, 2047), ("2047", "2048", "4096")),
            ((2048, 32769), ("32769", "32768")),
            ((0,), ("0",)),
            ((8, None, 0.0), ("host_pool_gib",)),
            ((8, None, None, 0), ("block_size",)),
        ):
            with self.assertRaises(ValueError) as raised:
                HiSparseConfig(*arguments)
            for word in words:
                self.assertIn(word, str(raised.exception))

    def test_rows_are_multiples_of_16_bytes(self):
        tier = HiSparseTier(None, "kv", HiSparseConfig(8), max_num_reqs=1)
        for width, dtype, words in ((577, "bfloat16", "1154"), (650, "uint8", "650"),
                                    (640, "fp8_ds_mla", "656"), (0, "uint8", "0 bytes")):
            with self.assertRaisesRegex(ValueError, words):
                HiSparseCoordinator(HiSparseConfig(8), 1, width, dtype, tier=tier)
        with self.assertRaisesRegex(ValueError, "complex64"):
            HiSparseCoordinator(HiSparseConfig(8), 1, 16, "complex64", tier=tier)
        HiSparseCoordinator(HiSparseConfig(8), 1, 656, "fp8_ds_mla", tier=tier)
        HiSparseCoordinator(HiSparseConfig(8), 1, 16, np.float32, tier=tier)

    def test_shapes_of_caches(self):
        self.assertEqual(kv_cache_shape(9, 64, 576, "fp8_ds_mla"), (9, 64, 656))
        self.assertEqual(kv_cache_shape(9, 64, 576, "bfloat16"), (9, 64, 576))

    def test_layers_are_of_one_tier(self):
        config = HiSparseConfig(8)
        tier = HiSparseTier(None, "kv", config, max_num_reqs=2)
        with self.assertRaisesRegex(ValueError, "max_num_reqs"):
            HiSparseCoordinator(config, 3, 16, "uint8", tier=tier)
        with self.assertRaisesRegex(ValueError, "cuda"):
            HiSparseCoordinator(config, 2, 16, "uint8", "cuda:0", tier=tier)
        leader = HiSparseCoordinator(config, 2, 16, "uint8", "cpu", tier=tier)
        follower = HiSparseCoordinator(config, 2, 16, "uint8", tier=tier)
        follower.join_group(leader)
        with self.assertRaisesRegex(ValueError, "leader"):
            leader.join_group(follower)
        with self.assertRaisesRegex(ValueError, "not bound"):
            tier.assign_blocks("r", [0])


class HiSparseTest(unittest.TestCase):
    """Each test has a daemon's session of its own."""

    def setUp(self):
        self.session = daemon.session(self)

    def world(self, **options):
        world = World(self.session, **options)
        self.addCleanup(world.close)
        return world

    def test_host_pool_gib_says_how_many_blocks_there_are(self):
        config = HiSparseConfig(TOP_K, HOT_SIZE, 1 / 1024, BLOCK_SIZE)  # 1 MiB
        with HiSparseTier(self.session, "small", config, max_num_reqs=1) as tier:
            HiSparseCoordinator(config, 1, 656, "fp8_ds_mla", tier=tier)
            (cache,) = tier.bind()
            self.assertEqual(cache.shape, ((1 << 20) // (4 * 656), 4, 656))
            self.assertEqual(cache.dtype, np.uint8)
            del cache

    def test_selected_rows_are_those_written(self):
        world = self.world()
        world.start("a", [5, 3, 9], 10)
        world.start("b", [1, 0, 7, 8, 2, 20], 20)
        for _ in range(2):
            self.assertEqual(world.step(["a", "b"]), 0)
        world.assign("a", [4])
        for _ in range(2):
            self.assertEqual(world.step(["b", "a"]), 0)
        self.assertGreater(world.counters("hits"), 0)
        self.assertGreater(world.counters("evictions"), 0)
        self.assertEqual(world.counters("unbacked_reads"), 0)
        self.assertEqual(world.counters("rejected_rows"), 0)

    def test_one_launch_may_copy_for_all_layers(self):
        world = self.world(copy_followers_with_leader=True)
        world.start("a", [5, 3, 9, 1, 2], 16)
        for _ in range(4):
            self.assertEqual(world.step(["a"]), 0)

    def test_reordering_a_batch_moves_no_state(self):
        world = self.world()
        for index, request in enumerate("abcd"):
            world.start(request, list(range(4 * index, 4 * index + 4)), 12)
        topk = {r: np.arange(TOP_K, dtype=np.int32) for r in "abcd"}
        self.assertEqual(world.step(list("abcd"), topk), 0)
        misses = world.counters("misses")
        for order in ("dcba", "bd", "acb"):
            self.assertEqual(world.step(list(order), topk), 0)
        self.assertEqual(world.counters("misses"), misses)

    def test_padding_touches_nothing(self):
        world = self.world()
        world.start("a", [0, 1, 2, 3], 12)
        world.start("b", [4, 5, 6, 7], 12)
        self.assertEqual(world.step(["a", None, "b"], padding=1), 0)
        self.assertEqual(world.step(["b"], padding=3), 0)
        self.assertEqual(world.step([], padding=4), 0)
        self.assertEqual(world.step(["a", "b"]), 0)
        self.assertEqual(world.counters("rejected_rows"), 0)

    def test_without_newest_slots_the_host_pool_is_asked(self):
        """A batch with prefills in it: new rows went to the host pool, not to the reserved rows."""
        world = self.world()
        world.start("a", [0, 1, 2], 9)
        self.assertEqual(world.step(["a"]), 0)
        world.prefill("a", 9, 10)
        topk = np.full((1, TOP_K), -1, np.int32)
        topk[0, 0] = 9
        hot, indices = world.layers[0].swap_in(
            req_id_per_token=np.zeros(1, np.int32), topk_indices=topk, block_size=BLOCK_SIZE,
            slot_mapping=None)
        row = hot.reshape(-1, hot.shape[-1])[indices[0, 0]]
        np.testing.assert_array_equal(row, world.truth[0][9])

    def test_a_run_for_warming_up_leaves_nothing_behind(self):
        world = self.world()
        world.start("a", [0, 1, 2, 3], 12)
        world.start("b", [4, 5, 6, 7], 12)
        self.assertEqual(world.step([], padding=2, backup=False), 0)
        self.assertEqual(world.step([None, "b"], backup=False), 0)
        world.lengths["b"] -= 1  # its token was not kept
        self.assertEqual(world.step(["a", "b"]), 0)
        with self.assertRaisesRegex(ValueError, "no step"):
            world.tier.backup_step()

    def test_a_recycled_block_is_not_served_stale(self):
        self.assertEqual(self.resume_in_other_order(self.world()), 0)

    def test_without_invalidation_it_would_be(self):
        """The test before can fail."""
        world = self.world()
        world.tier.blocks.recycle = lambda blocks: None
        self.assertGreater(self.resume_in_other_order(world), 0)

    def resume_in_other_order(self, world):
        """A request is preempted and comes back in its own blocks, the other way round."""
        world.start("a", [0, 1, 2], 11)
        topk = {"a": np.arange(TOP_K, dtype=np.int32)}
        wrong = world.step(["a"], topk)
        world.tier.truncate_blocks("a")
        world.blocks["a"] = []
        world.assign("a", [2, 1, 0])
        world.prefill("a", 0, 11)
        return wrong + world.step(["a"], topk)

    def test_a_rewound_request_keeps_what_it_has(self):
        world = self.world()
        world.start("a", [0, 1, 2], 11)
        topk = {"a": np.arange(TOP_K, dtype=np.int32)}
        self.assertEqual(world.step(["a"], topk), 0)
        misses = world.counters("misses")
        world.tier.truncate_blocks("a", 2)
        world.blocks["a"] = [0, 1]
        world.start("b", [2], 3)
        world.lengths["a"] = 8
        world.assign("a", [7])
        self.assertEqual(world.step(["a"], topk), 0)
        self.assertEqual(world.counters("misses"), misses)

    def test_a_row_that_was_not_written_again_is_no_one_elses(self):
        world = self.world()
        world.start("a", [0, 1, 2], 11)
        world.finish("a")
        world.assign("b", [2, 0])
        world.lengths["b"] = 7
        world.truth[:] = 0  # zeros, not what `a` has left there
        topk = {"b": np.array([0, 1, 2, 3, 4, 5, 6, 7], np.int32)}
        self.assertEqual(world.step(["b"], topk), 0)
        self.assertEqual(world.counters("unbacked_reads"), 7 * 2)  # two groups

    def test_several_requests_get_blocks_at_once(self):
        world = self.world()
        world.start("a", [0, 1, 2], 9)
        world.start("b", [3, 4], 6)
        world.finish("a")
        world.tier.assign([Assignment("c", [2, 0]), Assignment("b", [1]),
                           Assignment("d", [3, 5], reused_blocks=1)])
        world.blocks["b"] += [1]
        world.blocks.update(c=[2, 0], d=[3, 5])
        world.prefill("c", 0, 7)
        world.prefill("b", 6, 9)
        world.prefill("d", 4, 7)
        self.assertEqual(world.tier.blocks.recycled_blocks, 3)
        self.assertEqual(world.step(["b", "c", "d"]), 0)
        for bad, words in (([Assignment("c", [6]), Assignment("d", [6])], "block 6 .*'d'.*1 other"),
                           ([Assignment("c", [6]), Assignment("d", [24])], "block 24")):
            with self.assertRaisesRegex(ValueError, words):
                world.tier.assign(bad)
        self.assertEqual(world.tier.blocks.blocks_of("c"), [2, 0])
        self.assertEqual(world.counters("unbacked_reads"), 0)

    def test_a_cached_prefix_keeps_its_rows(self):
        world = self.world()
        world.start("a", [0, 1, 2], 11)
        world.finish("a")
        world.assign("b", [0, 1, 5], reused=2)
        world.lengths["b"] = 8
        world.assign("c", [0, 1, 6], reused=2)
        world.lengths["c"] = 8
        topk = {r: np.arange(TOP_K, dtype=np.int32) for r in "bc"}
        self.assertEqual(world.step(["b", "c"], topk), 0)
        self.assertEqual(world.counters("unbacked_reads"), 0)

    def test_rows_that_others_wrote(self):
        world = self.world()
        world.assign("a", [3, 4])
        rows = world.new_rows(2 * BLOCK_SIZE)
        for layer, cache in enumerate(world.kv_caches):
            cache[[3, 4]] = rows[layer].reshape(2, BLOCK_SIZE, -1)
        world.tier.mark_loaded([3, 4])
        world.truth[:, 12:20] = rows
        world.lengths["a"] = 7
        topk = {"a": np.array([0, 1, 2, 3, 4, 5, 6, -1], np.int32)}
        self.assertEqual(world.step(["a"], topk, backup=False), 0)
        world.truth[:, 12:16] = world.new_rows(BLOCK_SIZE)
        for layer, cache in enumerate(world.kv_caches):
            cache[3] = world.truth[layer, 12:16]
        self.assertEqual(world.tier.invalidate_blocks([3]), 4 * 2)
        world.lengths["a"] = 7
        self.assertEqual(world.step(["a"], topk), 0)

    def test_rows_are_reset(self):
        world = self.world()
        world.start("a", [0, 1, 2], 10)
        topk = {"a": np.arange(TOP_K, dtype=np.int32)}
        world.step(["a"], topk)
        misses = world.counters("misses")
        world.tier.reset_rows([0])
        self.assertEqual(world.step(["a"], topk), 0)
        self.assertEqual(world.counters("misses"), 2 * misses)

    def test_more_requests_than_regions_over_time(self):
        world = self.world(max_num_reqs=2)
        for number in range(7):
            for half, request in enumerate(("x%d" % number, "y%d" % number)):
                world.start(request, [3 * half, 3 * half + 1, 3 * half + 2], 10)
            self.assertEqual(world.step(["x%d" % number, "y%d" % number]), 0)
            world.finish("x%d" % number)
            world.finish("y%d" % number)
        self.assertEqual(world.tier.blocks.recycled_blocks, 6 * 6)

    def test_mistakes_of_an_engine_are_named_and_change_nothing(self):
        world = self.world()
        world.start("a", [0, 1, 2], 10)
        world.start("b", [3, 4, 5], 10)
        for call, words in (
            (lambda: world.tier.assign_blocks("b", [1]), "block 1 .*'b'.*1 other"),
            (lambda: world.tier.assign_blocks("c", [1]), "block 1 .*'c'"),
            (lambda: world.tier.assign_blocks("a", [2]), "'a' has block 2 twice"),
            (lambda: world.tier.assign_blocks("a", [24]), "block 24.*0..23"),
            (lambda: world.tier.assign_blocks("a", [6], 2), "reused_blocks is 2 of 1"),
            (lambda: world.tier.set_batch(list("abcde")), "5 rows.*4"),
            (lambda: world.tier.set_batch(["a", "a"]), "two rows"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                call()
        for call in (lambda: world.tier.finish_request("z"), lambda: world.tier.set_batch(["z"]),
                     lambda: world.tier.truncate_blocks("z")):
            with self.assertRaisesRegex(KeyError, "'z'"):
                call()
        with self.assertRaisesRegex(ValueError, "columns"):
            world.layers[0].swap_in(
                req_id_per_token=np.zeros(1, np.int32), slot_mapping=np.zeros(1, np.int64),
                topk_indices=np.zeros((1, TOP_K + 1), np.int32), block_size=BLOCK_SIZE)
        with self.assertRaisesRegex(ValueError, "applies"):
            world.layers[1].swap_in(
                req_id_per_token=np.zeros(1, np.int32), slot_mapping=np.zeros(1, np.int64),
                topk_indices=np.zeros((1, TOP_K), np.int32), block_size=BLOCK_SIZE)
        with self.assertRaisesRegex(ValueError, "no leader"):
            world.layers[0].apply_plan(block_size=BLOCK_SIZE, num_tokens=1)
        with self.assertRaisesRegex(ValueError, "pages"):
            world.layers[0].hot_cache_paged(7)
        with self.assertRaisesRegex(ValueError, "bind"):
            world.layers[1].apply_plan(kv_cache=np.zeros((1, 1, 1), np.uint16),
                                       block_size=BLOCK_SIZE, num_tokens=1)
        self.assertEqual(world.step(["a", "b"]), 0)

    def test_a_long_random_life(self):
        for seed in range(4):
            policy = EvictionPolicy.AGED if seed % 2 else EvictionPolicy.LRU
            world = self.world(name="life-%d" % seed, seed=seed,
                               layout_options={"eviction_policy": policy})
            self.assertEqual(long_life(world, 150), 0, "seed %d" % seed)
            self.assertGreater(world.counters("evictions"), 100)
            self.assertGreater(world.tier.blocks.recycled_blocks, 50)
            self.assertEqual(world.counters("unbacked_reads"), 0)


def long_life(world, steps):
    """Requests come and go, are preempted, change rows. Returns how many rows were wrong."""
    random, free, running = world.random, list(range(24)), []
    wrong, made = 0, 0
    for step in range(steps):
        if len(running) < 4 and len(free) >= 5:
            request, made = "r%d" % made, made + 1
            tokens = int(random.integers(5, 20))
            world.start(request, [free.pop() for _ in range(-(-tokens // 4))], tokens)
            running.append(request)
        random.shuffle(running)
        for request in list(running):
            if world.lengths[request] == 4 * len(world.blocks[request]):
                if not free:
                    running.remove(request)
                    free.extend(world.blocks[request])
                    world.finish(request)
                    continue
                world.assign(request, [free.pop()])
        if running and step % 7 == 0:
            request, taken = running[0], world.blocks[running[0]]
            world.tier.truncate_blocks(request)
            world.blocks[request] = []
            world.assign(request, [taken[i] for i in random.permutation(len(taken))])
            world.prefill(request, 0, world.lengths[request])
        wrong += world.step(list(running), padding=4 - len(running))
    return wrong


class RanksTest(unittest.TestCase):
    """Two ranks, each with a session of its own, and one copy of the rows."""

    def on_each(self, work):
        """work(rank) on a thread of its own, as ranks wait for each other."""
        faults = []

        def run(rank):
            try:
                work(rank)
            except BaseException as fault:
                faults.append(fault)
                self.barrier.abort()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def test_two_ranks_share_the_rows(self):
        self.barrier = threading.Barrier(2, timeout=60)
        server, first = daemon.start_and_open(self)
        sessions = [first, daemon.open_session(self, server)]
        worlds, wrong = [None, None], [None, None]

        def live(rank):
            ranks = Ranks(first=rank == 0, barrier=self.barrier.wait)
            worlds[rank] = World(sessions[rank], ranks=ranks)
            wrong[rank] = long_life(worlds[rank], 100)

        self.on_each(live)
        self.assertEqual(wrong, [0, 0])
        for world in worlds:
            self.assertGreater(world.counters("evictions"), 50)
            self.assertEqual(world.counters("unbacked_reads"), 0)
        one, other = worlds
        self.assertTrue(one.tier.cache.created)
        self.assertFalse(other.tier.cache.created)
        one.kv_caches[0][3] = 7
        np.testing.assert_array_equal(other.kv_caches[0][3], one.kv_caches[0][3])
        self.on_each(lambda rank: worlds[rank].close())

    def test_the_first_rank_alone_recycles(self):
        """The other one finds what the first has written since, and writes nothing itself."""
        server, session = daemon.start_and_open(self)
        one = World(session, ranks=Ranks(first=True))
        self.addCleanup(one.close)
        other = World(daemon.open_session(self, server), ranks=Ranks(first=False))
        self.addCleanup(other.close)
        topk = {"a": np.arange(TOP_K, dtype=np.int32)}
        for order in ([0, 1, 2], [2, 1, 0]):
            for world in (one, other):
                world.tier.truncate_blocks("a") if "a" in world.blocks else None
                world.blocks["a"] = []
                world.assign("a", order)
                world.lengths["a"] = 10
                if world is one:
                    world.prefill("a", 0, 10)
            other.truth[:] = one.truth
            for world in (one, other):
                self.assertEqual(world.step(["a"], topk, backup=world is one), 0)
                self.assertEqual(world.counters("unbacked_reads"), 0)
        self.assertEqual(one.tier.invalidate_blocks([0, 1, 2]), 2 * 2 * TOP_K)
        self.assertIsNone(other.tier.invalidate_blocks([0, 1, 2]))


class LostDaemonTest(unittest.TestCase):
    def test_the_loss_is_reported_before_a_step(self):
        process, session = daemon.start_and_open(self)
        world = World(session)
        world.start("a", [0, 1, 2], 10)
        self.assertEqual(world.step(["a"]), 0)
        process.kill()
        session.wait_until_ended(30)
        with self.assertRaises(kvtier.UnavailableError):
            world.tier.check()


if __name__ == "__main__":
    unittest.main()
