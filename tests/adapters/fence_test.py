"""What waits for the device, and what does not: with fences that the test opens.

On the CPU backend work is done when its call returns, so the adapters' own fences never wait there.
"""
import unittest

import daemon

import kvtier
from kvtier.hisparse.blocks import Assignment, BlockBook
from kvtier.sglang.requests import RequestBook


class Fence:
    """Shut until a test opens it; a wait opens it and is remembered."""

    def __init__(self):
        self.open = False
        self.waits = 0

    def done(self):
        return self.open

    def wait(self):
        self.waits += 1
        self.open = True


class FenceTest(unittest.TestCase):
    REGIONS = 3  # one is the book's own

    def setUp(self):
        self.fences = []
        session = daemon.session(self)
        layer = kvtier.Layer(row_bytes=16)
        self.cache = session.attach("fences", kvtier.CacheLayout(
            [kvtier.LayerGroup([layer], top_k=4)], block_count=8, max_requests=self.REGIONS,
            block_size=4))
        self.addCleanup(self.cache.close)

    def fence(self):
        self.fences.append(Fence())
        return self.fences[-1]


class BlockBookTest(FenceTest):
    def setUp(self):
        super().setUp()
        self.book = BlockBook(self.cache, 8, self.fence)
        self.addCleanup(self.close)

    def assign(self, request_id, blocks):
        self.book.assign([Assignment(request_id, blocks)])

    def close(self):
        self.book.close()
        self.book = None

    def test_a_request_that_ends_waits_for_nothing_and_keeps_its_region(self):
        self.assign("a", [0, 1])
        region = self.book.region_of("a")
        self.book.finish("a")
        (fence,) = self.fences
        self.assertEqual(fence.waits, 0)
        self.assign("a", [2])  # the engine brings the id again
        self.assertNotEqual(self.book.region_of("a"), region)
        self.assertEqual(fence.waits, 0)
        self.assertEqual(list(self.cache.block_table.numpy()[region][:2]), [0, 1])

    def test_the_region_is_given_back_when_the_work_is_done(self):
        self.assign("a", [0])
        self.book.finish("a")
        self.fences[0].open = True
        self.assign("b", [1])
        self.assign("c", [2])
        self.assertEqual(self.fences[0].waits, 0)

    def test_an_admission_waits_where_no_region_is_left(self):
        self.assign("a", [0])
        self.assign("b", [1])
        self.book.finish("a")
        self.assign("c", [2])
        self.assertEqual(self.fences[0].waits, 1)

    def test_recycling_waits_for_the_last_reader(self):
        self.assign("a", [0, 1])
        self.book.finish("a")
        self.assign("b", [2])
        self.assertEqual(self.fences[0].waits, 0)
        self.assign("b", [1])
        self.assertEqual(self.fences[0].waits, 1)
        self.assertEqual(self.book.recycled_blocks, 1)

    def test_a_cached_prefix_needs_no_wait(self):
        self.assign("a", [0, 1])
        self.book.finish("a")
        self.book.assign([Assignment("b", [0, 1, 2], reused_blocks=2)])
        self.assertEqual(self.fences[0].waits, 0)
        self.assertEqual(self.book.recycled_blocks, 0)

    def test_blocks_leave_a_table_when_no_step_reads_it(self):
        self.assign("a", [0, 1, 2])
        self.book.truncate("a", 1)
        self.assertEqual(self.fences[0].waits, 1)
        self.assertEqual(self.book.blocks_of("a"), [0])

    def test_closing_waits_for_all(self):
        self.assign("a", [0])
        self.book.finish("a")
        self.book.close()
        self.assertGreaterEqual(min(fence.waits for fence in self.fences), 1)
        self.book = BlockBook(self.cache, 8, self.fence)  # all blocks are free again


class RequestBookTest(FenceTest):
    REGIONS = 4

    def setUp(self):
        super().setUp()
        self.book = RequestBook(self.cache, 4, self.fence)
        self.addCleanup(self.book.close)

    def test_a_request_that_ends_waits_for_nothing(self):
        first = self.book.admit("a", 1, 8, 0)
        blocks = set(first.slots // 4)
        self.book.finish(1)
        again = self.book.admit("a", 1, 8, 0)
        self.assertEqual(self.fences[0].waits, 0)
        self.assertNotEqual(again.request.region, first.request.region)
        self.assertTrue(blocks.isdisjoint(again.slots // 4))

    def test_an_admission_waits_where_no_region_is_left(self):
        self.book.admit("a", 1, 4, 0)
        self.book.admit("b", 2, 4, 0)
        self.book.admit("c", 3, 4, 0)
        self.book.finish(1)
        self.assertEqual(self.fences[0].waits, 0)
        self.book.admit("d", 1, 4, 0)
        self.assertEqual(self.fences[0].waits, 1)

    def test_blocks_of_one_that_has_ended_are_waited_for(self):
        self.book.admit("a", 1, 24, 0)
        self.book.finish(1)
        self.book.admit("b", 2, 8, 0)
        self.assertEqual(self.fences[0].waits, 0)
        self.book.admit("c", 3, 16, 0)
        self.assertEqual(self.fences[0].waits, 1)
        with self.assertRaises(kvtier.ResourceExhaustedError):
            self.book.grow(self.book[2], 32)

    def test_ids_may_be_long(self):
        for pool_index, rid in ((0, "x" * 500), (1, "\u00e4" * 200)):
            self.book.admit(rid, pool_index, 1, 0)


if __name__ == "__main__":
    unittest.main()
