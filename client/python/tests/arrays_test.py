"""Arrays on the daemon's memory, and how long they live."""
import gc
import logging
import os
import unittest

import daemon
import kvtier
import numpy


class ArraysTest(unittest.TestCase):
    def setUp(self):
        self.host, self.session = daemon.start_and_open(self)
        self.cache = self.session.attach("kv", daemon.layout())

    def mapped(self):
        """Mappings of the daemon's memory in this process."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum("/memfd:kvtier" in line or "memfd:" in line for line in maps)

    def caches(self):
        return len(self.host.stats()["caches"])

    def test_shapes_and_types(self):
        group = self.cache.groups[0]
        for array, shape, dtype in (
                (group.topk, (2, 4), "int32"), (group.lru, (2, 8), "int16"),
                (group.owner, (2, 8), "int32"), (group.plan_counts, (2,), "int32"),
                (group.stats, (24,), "int64"), (self.cache.block_table, (2, 8), "int32"),
                (self.cache.num_real_rows, (1,), "int32")):
            view = array.numpy()
            self.assertEqual((array.shape, array.dtype), (shape, dtype))
            self.assertEqual((view.shape, str(view.dtype), view.ctypes.data),
                             (shape, dtype, array.address))
        self.assertEqual(group.lru.numpy()[1].tolist(), list(range(8)))

    def test_strided_rows(self):
        layer = kvtier.Layer(row_bytes=64, row_stride_bytes=80)
        cache = self.session.attach("wide", kvtier.CacheLayout(
            [kvtier.LayerGroup([layer], 4, 8)], 8, 2, block_size=16))
        host = cache.groups[0].layers[0].host
        self.assertEqual((host.shape, host.strides, host.is_contiguous), ((128, 64), (80, 1), False))
        self.assertEqual(host.numpy().strides, (80, 1))
        self.assertEqual(numpy.from_dlpack(host).strides, (80, 1))

    def test_numpy_and_dlpack_are_the_same_memory(self):
        newest = self.cache.newest_slot
        newest.numpy()[0] = 7
        self.assertEqual(numpy.from_dlpack(newest)[0], 7)
        self.assertEqual(numpy.asarray(newest)[0], 7)
        numpy.asarray(newest)[0] = 8
        self.assertEqual(newest.numpy()[0], 8)
        newest.__dlpack__()  # that nobody takes

    def test_read_only_memory(self):
        generation = self.cache.block_generation
        with self.assertRaises(ValueError):
            generation.numpy()[0] = 1
        with self.assertRaises(BufferError) as raised:
            generation.__dlpack__()
        self.assertIn("use numpy()", str(raised.exception))

    def test_the_end_of_a_cache_unmaps(self):
        self.assertGreater(self.mapped(), 0)
        group = self.cache.groups[0]  # keeps nothing
        self.cache.close()
        self.assertEqual(self.mapped(), 0)
        self.assertEqual(self.caches(), 0)
        with self.assertRaises(kvtier.FailedPreconditionError):
            group.topk.numpy()

    def test_a_cache_that_nobody_has_any_more_is_closed(self):
        self.cache = None
        gc.collect()
        self.assertEqual((self.mapped(), self.caches()), (0, 0))

    def live(self, make):
        view = make(self.cache.groups[0].layers[0].host)
        with self.assertLogs("kvtier", logging.WARNING) as logged:
            self.cache.close()
        self.assertIn("tensors on its memory are alive", logged.output[0])
        self.assertEqual(self.caches(), 1)  # not given to others
        if view.flags.writeable:  # numpy takes a DLPack tensor without
            view[5] = 9
            self.assertEqual(int(view[5].sum()), 9 * 64)
        self.assertEqual(int(view[6].sum()), 0)
        part = view[5:6]
        del view
        self.assertEqual(self.caches(), 1)
        del part
        daemon.wait_until(lambda: self.caches() == 0, "the daemon is told")
        self.assertEqual(self.mapped(), 0)

    def test_a_live_numpy_array_puts_the_end_off(self):
        self.live(lambda array: array.numpy())

    def test_a_live_dlpack_tensor_puts_the_end_off(self):
        self.live(numpy.from_dlpack)

    def test_the_session_goes_on_for_a_live_array(self):
        view = self.cache.groups[0].layers[0].host.numpy()
        with self.assertLogs("kvtier", logging.WARNING):
            self.session.close()
        with self.assertRaises(kvtier.FailedPreconditionError):
            self.session.check()
        view[5] = 9
        self.assertEqual(self.host.stats()["sessions"], 1)
        del view
        daemon.wait_until(lambda: self.host.stats()["sessions"] == 0, "the session ends")

    def test_arrays_outlive_the_daemon(self):
        view = self.cache.groups[0].layers[0].host.numpy()
        view[3] = 4
        self.host.kill()
        self.session.wait_until_ended(daemon.PATIENCE_SECONDS)
        self.session.close()
        self.assertEqual(view[3].tolist(), [4] * 64)

    def test_a_forked_child_unmaps_nothing_of_its_parents(self):
        view = self.cache.groups[0].topk.numpy()
        child = os.fork()
        if child == 0:
            self.cache = None
            del view
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0)
        view[0] = 3
        self.cache.swap_in(0, 1)
        self.assertEqual(self.caches(), 1)


if __name__ == "__main__":
    unittest.main()
