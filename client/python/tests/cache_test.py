"""Caches and requests on a real daemon: both planes, and every way to use them wrongly."""
import json
import os
import unittest

import daemon
import kvtier
import numpy

EXAMPLE = os.environ.get("KVTIER_WORKED_EXAMPLE", "tests/golden/worked_example.json")


def write_rows(cache, request, count, first=0):
    """Backs up `count` rows of every layer of group 0, each of its position's byte plus layer."""
    positions = numpy.arange(first, first + count, dtype=numpy.int32)
    group = cache.groups[0]
    sources = [numpy.repeat((positions + layer).astype(numpy.uint8)[:, None],
                            group.layers[layer].row_bytes, axis=1)
               for layer in range(len(group.layers))]
    cache.backup_rows(0, sources, positions - first, request.slots_of(positions))


def set_step(cache, request, positions, newest=-1):
    """Puts one row into the step buffers."""
    topk = cache.groups[0].topk.numpy()
    topk[0] = -1
    topk[0, :len(positions)] = positions
    cache.set_rows([request.region], [newest])


def hot_bytes(cache, layer=0):
    """The first byte of each row that the step found."""
    group = cache.groups[0]
    indices = group.hot_indices.numpy()[0]
    return [int(group.layers[layer].hot.numpy()[row, 0]) if row >= 0 else -1 for row in indices]


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.host, self.session = daemon.start_and_open(self)

    def test_a_layout_comes_back_with_its_defaults(self):
        cache = self.session.attach("kv", kvtier.CacheLayout(
            [kvtier.LayerGroup([kvtier.Layer(row_bytes=656)], top_k=4)], 8, 2))
        self.assertTrue(cache.created)
        self.assertEqual((cache.layout.block_size, cache.layout.step_rows,
                          cache.layout.groups[0].hot_size), (64, 2, 8))
        self.assertEqual(cache.groups[0].layers[0].hot.shape, (2 * 128, 656))
        self.assertEqual(cache.groups[0].layers[0].host.shape, (8 * 64, 656))
        self.assertEqual(cache.tensor_device, "cpu")

    def test_rows_go_out_and_come_back(self):
        with self.session.attach("kv", daemon.layout(layers=2)) as cache:
            with cache.admit("r", reserve_blocks=2) as request:
                blocks = request.assign_blocks(2)
                self.assertEqual(list(request.block_table()[:2]), list(blocks.block_ids))
                self.assertEqual(request.slot_of(17), blocks.block_ids[1] * 16 + 1)
                self.assertEqual(list(request.slots_of([-1, 32, 10**6])), [-1, -1, -1])
                write_rows(cache, request, 32)
                set_step(cache, request, [3, 31, 3])
                cache.swap_in(0, 1, layers=(0, 1))
                self.assertEqual(hot_bytes(cache), [3, 31, 3, -1])
                cache.replay_plan(0, 1)
                self.assertEqual(hot_bytes(cache, layer=1), [4, 32, 4, -1])
                counters = cache.counters(0)
                self.assertEqual((counters.steps, counters.hits, counters.misses,
                                  counters.duplicates, counters.rows_copied), (1, 0, 2, 1, 2))
                self.assertEqual(counters.hit_rate, 0)
                cache.swap_in(0, 1)
                self.assertEqual(cache.counters(0).hit_rate, 0.5)
                request.set_sequence_length(20)
                cache.swap_in(0, 1)
                self.assertEqual(hot_bytes(cache), [3, -1, 3, -1])
        self.assertEqual(self.host.stats()["pool"]["used_bytes"], 0)

    def test_the_newest_row_is_backed_up(self):
        with self.session.attach("kv", daemon.layout()) as cache:
            request = cache.admit("r")
            request.assign_blocks(1)
            group = cache.groups[0]
            group.layers[0].hot.numpy()[group.newest_hot_row(request.region)] = 77
            set_step(cache, request, [5], newest=request.slot_of(5))
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache)[0], 77)
            cache.backup_newest(1)
            self.assertEqual(group.layers[0].host.numpy()[request.slot_of(5), 0], 77)
            set_step(cache, request, [5])
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache)[0], 77)
            self.assertEqual(cache.counters(0).backed_up_rows, 1)

    def test_the_daemon_runs_the_same_verbs(self):
        with self.session.attach("kv", daemon.layout(layers=2)) as cache:
            request = cache.admit("r")
            request.assign_blocks(1)
            write_rows(cache, request, 16)
            set_step(cache, request, [1, 2], newest=request.slot_of(0))
            ticket = cache.swap_in_rpc(0, 1, layers=(0, 1))
            self.assertGreaterEqual(cache.wait_ticket(ticket.number), ticket.number)
            self.assertEqual(hot_bytes(cache), [1, 2, -1, -1])
            self.assertTrue(cache.replay_plan_rpc(0, 1, wait=True).completed)
            self.assertEqual(hot_bytes(cache, layer=1), [2, 3, -1, -1])
            self.assertTrue(cache.backup_rpc(1, wait=True).completed)
            self.assertEqual(cache.groups[0].layers[0].host.numpy()[request.slot_of(0), 0], 0)

    def test_own_tensors_in_place_of_the_step_buffers(self):
        with self.session.attach("kv", daemon.layout(step_rows=4)) as cache:
            request = cache.admit("r")
            request.assign_blocks(1)
            write_rows(cache, request, 16)
            out = numpy.full((2, 4), 9, numpy.int32)
            inputs = kvtier.StepInputs(
                topk=numpy.array([[7, 8, -1, -1], [1, 1, 1, 1]], numpy.int32),
                row_to_request=numpy.array([request.region, -1], numpy.int32),
                newest_slot=numpy.array([-1, -1], numpy.int32),
                num_real_rows=numpy.array([2], numpy.int32), hot_indices=out)
            cache.swap_in(0, 2, inputs=inputs)
            hot = cache.groups[0].layers[0].hot.numpy()
            self.assertEqual([hot[i, 0] for i in out[0, :2]], [7, 8])
            self.assertEqual(out[0, 2:].tolist() + out[1].tolist(), [-1] * 6)
            inputs.topk[0] = [8, 9, 7, -1]  # the same arrays again
            cache.swap_in(0, 2, inputs=inputs)
            self.assertEqual([hot[i, 0] for i in out[0, :3]], [8, 9, 7])

    def test_rows_written_by_the_worker_itself(self):
        with self.session.attach("kv", daemon.layout()) as cache:
            request = cache.admit("r")
            blocks = request.assign_blocks(1)
            cache.groups[0].layers[0].host.numpy()[request.slots_of(range(16))] = 5
            set_step(cache, request, [4])
            cache.swap_in(0, 1)
            self.assertEqual(cache.counters(0).unbacked_reads, 1)
            cache.mark_backed(0, request.slots_of(range(16)))
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache)[0], 5)
            cache.groups[0].layers[0].host.numpy()[request.slot_of(4)] = 6
            self.assertEqual(cache.invalidate_blocks(blocks.block_ids), 1)
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache)[0], 6)

    def test_newest_rows_stay_on_the_device_with_aged_scores(self):
        aged = daemon.layout(eviction_policy=kvtier.EvictionPolicy.AGED)
        with self.session.attach("kv", aged) as cache, cache.admit("r") as request:
            request.assign_blocks(1)
            group = cache.groups[0]
            group.layers[0].hot.numpy()[group.newest_hot_row(request.region)] = 7
            set_step(cache, request, [4], newest=request.slot_of(4))
            cache.swap_in(0, 1)
            cache.backup_newest(1)
            set_step(cache, request, [4, 5], newest=request.slot_of(5))
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache)[0], 7)
            counters = cache.counters(0)
            self.assertEqual((counters.rows_copied, counters.rows_kept, counters.bytes_copied),
                             (1, 1, 0))

    def test_two_sessions_share_the_rows_of_a_cache(self):
        other = self.host.session(self)
        with self.session.attach("kv", daemon.layout()) as cache:
            with other.attach("kv", daemon.layout()) as joined:
                self.assertEqual((cache.created, joined.created), (True, False))
                request = cache.admit("r")
                blocks = request.assign_blocks(1)
                write_rows(cache, request, 16)
                reader = joined.admit("r")
                reader.assign_blocks(0, shared_blocks=blocks.block_ids,
                                     shared_generations=blocks.generations)
                set_step(joined, reader, [9, 2])
                joined.swap_in(0, 1)
                self.assertEqual(hot_bytes(joined), [9, 2, -1, -1])

    def test_split_pages(self):
        layer = kvtier.Layer(row_bytes=64, row_format=kvtier.RowFormat.SPLIT_PAGE, scale_bytes=8)
        layout = kvtier.CacheLayout([kvtier.LayerGroup([layer], 4, 8)], 8, 2, block_size=16)
        with self.session.attach("kv", layout) as cache:
            rows = cache.groups[0].layers[0]
            self.assertEqual((rows.host.shape, rows.host_values.shape, rows.host_scales.shape),
                             ((8, 16 * 72), (8, 16, 64), (8, 16, 8)))
            request = cache.admit("r")
            block = request.assign_blocks(1).block_ids[0]
            page = numpy.zeros((1, 16 * 72), numpy.uint8)
            page[0, :16 * 64].reshape(16, 64)[:] = numpy.arange(16)[:, None]
            page[0, 16 * 64:].reshape(16, 8)[:] = 100 + numpy.arange(16)[:, None]
            cache.backup_rows(0, [page], numpy.arange(16, dtype=numpy.int32),
                              request.slots_of(range(16)))
            self.assertEqual(rows.host_scales.numpy()[block, 15, 7], 115)
            set_step(cache, request, [11])
            cache.swap_in(0, 1)
            hot = int(cache.groups[0].hot_indices.numpy()[0, 0])
            self.assertEqual(rows.hot_values.numpy()[hot // 16, hot % 16].tolist(), [11] * 64)
            self.assertEqual(rows.hot_scales.numpy()[hot // 16, hot % 16].tolist(), [111] * 8)

    def test_the_worked_example(self):
        with open(EXAMPLE, encoding="utf-8") as file:
            example = json.load(file)
        layout = daemon.layout(example["slot_count"] // 64, 64, 1, example["top_k"],
                               example["hot_size"], example["row_bytes"])
        with self.session.attach("kv", layout) as cache, cache.admit("r") as request:
            request.assign_blocks(example["slot_count"] // 64)
            cache.mark_backed(0, range(example["slot_count"]))
            group = cache.groups[0]
            group.owner.numpy()[0] = example["owner_before"]
            group.lru.numpy()[0] = example["lru_before"]
            set_step(cache, request, example["slots"], newest=example["newest_slot"])
            cache.swap_in(0, 1, use_slots=True)
            counters = cache.counters(0)
            found = {"hot_indices": group.hot_indices, "miss_mask": group.miss_mask,
                     "owner_after": group.owner, "lru_after": group.lru}
            for name, array in found.items():
                self.assertEqual(array.numpy()[0].tolist(), example[name], name)
            self.assertEqual(group.plan_slots.numpy()[0, :2].tolist(), example["plan_slots"])
            self.assertEqual(group.plan_counts.numpy()[0], 2)
            for name in ("hits", "misses", "newest", "invalid", "evictions"):
                self.assertEqual(getattr(counters, name), example[name], name)


class RetentionTest(unittest.TestCase):
    def keep(self, session, **options):
        """Leaves two blocks with rows behind."""
        with session.attach("kv", daemon.layout(), retain=kvtier.Retention(60.0),
                            **options) as cache:
            request = cache.admit("r")
            request.assign_blocks(2, tags=[71, 1 << 62])
            write_rows(cache, request, 20)

    def check(self, session):
        """Takes them up again."""
        with session.attach("kv", daemon.layout()) as cache:
            self.assertEqual((cache.created, cache.blocks_kept), (False, 2))
            kept = sorted(cache.list_kept_blocks(), key=lambda block: block.tag)
            self.assertEqual([(block.tag, block.rows_backed) for block in kept],
                             [(71, 16), (1 << 62, 4)])
            request = cache.admit("s")
            request.assign_blocks(0, shared_blocks=[block.block_id for block in kept],
                                  shared_generations=[block.generation for block in kept])
            set_step(cache, request, [19, 3])
            cache.swap_in(0, 1)
            self.assertEqual(hot_bytes(cache), [19, 3, -1, -1])
            self.assertEqual(cache.list_kept_blocks(), ())

    def test_blocks_outlive_their_sessions(self):
        host = daemon.Daemon(self)
        with host.session(self) as session:
            self.keep(session)
        self.check(host.session(self))

    def test_rows_outlive_the_daemon(self):
        pool = daemon.new_folder(self, "/dev/shm")  # in memory
        host = daemon.Daemon(self, pool_path=pool)
        with host.session(self) as session:
            self.keep(session)
        self.assertEqual(host.stop(), 0)
        self.check(daemon.Daemon(self, pool_path=pool).session(self))

    def test_another_layout_is_refused_or_replaces(self):
        session = daemon.session(self)
        self.keep(session)
        with self.assertRaises(kvtier.FailedPreconditionError) as raised:
            session.attach("kv", daemon.layout(block_size=32))
        self.assertEqual(raised.exception.reason, "LAYOUT_MISMATCH")
        cache = session.attach("kv", daemon.layout(block_size=32), replace_kept=True)
        self.assertTrue(cache.created)

    def test_whom_a_cache_is_shared_with(self):
        shared = kvtier.Sharing(uids=[4711], gids=[4242])
        host = daemon.Daemon(self)
        session, other, third = (host.session(self) for _ in range(3))
        with session.attach("kv", daemon.layout(), share=shared), \
                other.attach("kv", daemon.layout()):  # the same user, who need not say it again
            with self.assertRaises(kvtier.FailedPreconditionError) as raised:
                third.attach("kv", daemon.layout(), share=kvtier.Sharing(everybody=True))
            self.assertEqual(raised.exception.metadata["expected"],
                             "users 4711 and groups 4242")
        for share in (kvtier.Sharing(uids=[-1]), kvtier.Sharing(gids="all"), 4711):
            with self.assertRaises(kvtier.InvalidArgumentError):
                session.attach("kv", daemon.layout(), share=share)

    def test_what_is_no_retention(self):
        session = daemon.session(self)
        for retain in (kvtier.Retention(-1), kvtier.Retention("long"), kvtier.Retention(1, -1)):
            with self.assertRaises(kvtier.InvalidArgumentError):
                session.attach("kv", daemon.layout(), retain=retain)


class WrongUseTest(unittest.TestCase):
    """One error each, and what its text says to do."""

    def setUp(self):
        self.host, self.session = daemon.start_and_open(self)
        self.cache = self.session.attach("kv", daemon.layout())

    def refused(self, kind, reason, text, call, *arguments, **options):
        with self.assertRaises(kind) as raised:
            call(*arguments, **options)
        self.assertEqual(raised.exception.reason, reason)
        self.assertIn(text, str(raised.exception))
        return raised.exception

    def test_layout_mismatch(self):
        other = self.host.session(self)
        error = self.refused(kvtier.FailedPreconditionError, "LAYOUT_MISMATCH", "block_size",
                             other.attach, "kv", daemon.layout(block_size=32))
        self.assertEqual(error.metadata["cache"], "kv")
        self.assertEqual({error.metadata["value"], error.metadata["expected"]}, {"16", "32"})
        other.attach("other", daemon.layout())  # the session goes on

    def test_impossible_layout(self):
        self.refused(kvtier.InvalidArgumentError, "LAYOUT_INVALID", "row_bytes",
                     self.session.attach, "other", daemon.layout(row_bytes=65))
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "layout",
                     self.session.attach, "other", daemon.layout(row_bytes="wide"))

    def test_attached_twice(self):
        self.refused(kvtier.AlreadyExistsError, "ID_CONFLICT", "use that Cache",
                     self.session.attach, "kv", daemon.layout())
        self.cache.close()
        self.session.attach("kv", daemon.layout())

    def test_unknown_device(self):
        self.refused(kvtier.FailedPreconditionError, "DEVICE_UNKNOWN", "GPU-0",
                     self.session.attach, "other", daemon.layout(), device_uuid="GPU-0")

    def test_too_many_threads(self):
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "1..64",
                     self.session.attach, "other", daemon.layout(), kernel_threads=65)
        self.session.attach("other", daemon.layout(), kernel_threads=2)

    def test_blocks_and_regions_run_out(self):
        request = self.cache.admit("r")
        error = self.refused(kvtier.ResourceExhaustedError, "BLOCKS_EXHAUSTED", "8",
                             request.assign_blocks, 9)
        self.assertEqual(error.metadata["requested"], "9")
        self.cache.admit("s")
        self.refused(kvtier.ResourceExhaustedError, "REGIONS_EXHAUSTED", "2", self.cache.admit, "t")

    def test_blocks_of_others(self):
        request, other = self.cache.admit("r"), self.cache.admit("s")
        blocks = other.assign_blocks(1).block_ids
        self.refused(kvtier.PermissionDeniedError, "BLOCK_FOREIGN", "", request.free_blocks, blocks)
        self.assertEqual(other.free_blocks(blocks), 1)

    def test_a_released_request(self):
        request = self.cache.admit("r")
        request.assign_blocks(2)
        self.assertEqual(request.release(), 2)
        self.refused(kvtier.NotFoundError, "REQUEST_UNKNOWN", "was released",
                     request.assign_blocks, 1)

    def test_a_closed_cache(self):
        group, request = self.cache.groups[0], self.cache.admit("r")
        self.cache.close()
        self.cache.close()
        text = "closed: attach it again"
        for call in (lambda: self.cache.swap_in(0, 1), lambda: self.cache.backup_newest(1),
                     lambda: self.cache.admit("s"), lambda: request.assign_blocks(1),
                     lambda: self.cache.groups, group.topk.numpy,
                     lambda: self.cache.counters(0)):
            self.refused(kvtier.FailedPreconditionError, "", text, call)

    def test_a_closed_session(self):
        self.session.close()
        for call in (lambda: self.cache.swap_in(0, 1), lambda: self.cache.admit("s")):
            self.refused(kvtier.FailedPreconditionError, "", "closed", call)

    def test_a_lost_daemon(self):
        request = self.cache.admit("r")
        request.assign_blocks(1)
        write_rows(self.cache, request, 16)
        self.host.kill()
        self.assertTrue(self.session.wait_until_ended(daemon.PATIENCE_SECONDS))
        set_step(self.cache, request, [6])
        self.cache.swap_in(0, 1)  # what runs may finish
        self.assertEqual(hot_bytes(self.cache)[0], 6)
        for call in (lambda: self.cache.backup_newest(1), self.cache.check_backup,
                     lambda: self.cache.swap_in_rpc(0, 1), lambda: request.assign_blocks(1)):
            self.refused(kvtier.UnavailableError, "", "is lost", call)

    def test_out_of_range(self):
        for call in (lambda: self.cache.swap_in(1, 1), lambda: self.cache.swap_in(0, 3),
                     lambda: self.cache.swap_in(0, -1), lambda: self.cache.backup_newest(3),
                     lambda: self.cache.swap_in(0, 1, layers=(0, 2)),
                     lambda: self.cache.replay_plan(0, 1, layers=(2, 0)),
                     lambda: self.cache.counters(-1), lambda: self.cache.swap_in(0, 1, stream=1)):
            self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "it must be", call)
        self.refused(kvtier.OutOfRangeError, "SLOT_OUT_OF_RANGE", "slot 128",
                     self.cache.mark_backed, 0, [128])
        self.refused(kvtier.NotFoundError, "TICKET_UNKNOWN", "5", self.cache.wait_ticket, 5)

    def test_tensors_that_do_not_fit(self):
        rows, ints = numpy.zeros((4, 64), numpy.uint8), numpy.zeros(4, numpy.int32)
        wide = numpy.zeros((4, 128), numpy.uint8)
        for text, arguments in (
                ("(.to(torch.int32))", ([rows], ints.astype(numpy.int64), ints)),
                ("call .contiguous()", ([rows], numpy.zeros(8, numpy.int32)[::2], ints)),
                ("as many as source_rows", ([rows], ints, ints[:3])),
                ("one for each layer", ([rows, rows], ints, ints)),
                ("64 contiguous bytes", ([wide], ints, ints)),
                ("64 contiguous bytes", ([wide[:, ::2]], ints, ints)),
                ("a tensor", ([7], ints, ints)),
                ("of shape [any]", ([rows], rows.astype(numpy.int32), ints))):
            with self.subTest(text):
                self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", text,
                             self.cache.backup_rows, 0, *arguments)
        self.refused(kvtier.OutOfRangeError, "SLOT_OUT_OF_RANGE", "slot 500",
                     self.cache.backup_rows, 0, [rows], ints, ints + 500)
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "at least 2", self.cache.swap_in,
                     0, 2, inputs=kvtier.StepInputs(topk=numpy.zeros((1, 4), numpy.int32)))

    def test_a_tensor_on_another_gpu(self):
        class OnGpu:
            """As a tensor of torch's says where it is."""
            class device:
                type, index = "cuda", 1

                def __str__(self):
                    return "cuda:1"
            shape, dtype = (4,), "torch.int32"
            device = device()

            def data_ptr(self):
                return 4096

            def element_size(self):
                return 4

            def stride(self):
                return (1,)
        ints = numpy.zeros(4, numpy.int32)
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID",
                     "source_rows is on cuda:1; it must be on cpu, the cache's device: move it",
                     self.cache.backup_rows, 0, [numpy.zeros((4, 64), numpy.uint8)], OnGpu(), ints)
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "it must be on cuda:0",
                     kvtier.tensors.check_index, "topk", OnGpu(), (None,), "cuda:0")
        kvtier.tensors.check_index("topk", OnGpu(), (4,), "cuda:1")

    def test_rows_that_do_not_fit(self):
        for arguments in (([0, 1, 2],), ([0], [1, 2])):
            self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "at most 2",
                         self.cache.set_rows, *arguments)
        self.cache.set_rows([1])
        self.assertEqual((self.cache.row_to_request.numpy()[0], self.cache.newest_slot.numpy()[0],
                          self.cache.num_real_rows.numpy()[0]), (1, -1, 1))

    def test_a_field_of_another_type(self):
        self.refused(kvtier.InvalidArgumentError, "FIELD_INVALID", "AdmitRequest",
                     self.cache.admit, 7)


if __name__ == "__main__":
    unittest.main()
