"""Tensors and operators of PyTorch, on the CPU backend. Skipped where there is no PyTorch 2.4."""
import gc
import logging
import shutil
import unittest

import daemon
import kvtier
import numpy

try:
    import torch
    VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
except ImportError:
    torch, VERSION = None, ()
if VERSION >= (2, 4):
    import kvtier.torch_ops

ROWS = 32


@unittest.skipIf(VERSION < (2, 4), "PyTorch 2.4 or later is not installed")
class TorchTest(unittest.TestCase):
    def setUp(self):
        self.host, self.session = daemon.start_and_open(self)
        self.cache = self.session.attach("kv", daemon.layout(layers=2, step_rows=4))
        self.request = self.cache.admit("r")
        self.request.assign_blocks(2)
        tokens = torch.arange(ROWS, dtype=torch.int32)
        self.rows = tokens.to(torch.uint8)[:, None].repeat(1, 64)
        self.cache.backup_rows(0, [self.rows, self.rows + 100], tokens,
                               torch.from_numpy(self.request.slots_of(range(ROWS))))
        self.cache.row_to_request.torch().fill_(-1)
        self.cache.row_to_request.torch()[0] = self.request.region
        self.cache.newest_slot.torch().fill_(-1)
        self.cache.num_real_rows.torch().fill_(1)

    def test_tensors_are_the_same_memory(self):
        topk = self.cache.groups[0].topk
        tensor = topk.torch()
        self.assertEqual((tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)),
                         (topk.address, torch.int32, topk.shape))
        tensor[0] = torch.tensor([4, 5, 6, -1])
        self.cache.swap_in(0, 1)
        found = self.cache.groups[0].hot_indices.torch()[0, :3].long()
        hot = self.cache.groups[0].layers[1].hot.torch()
        self.assertEqual(hot[found, 0].tolist(), [104, 105, 106])
        self.assertEqual(tuple(self.cache.groups[0].layers[0].hot.torch(torch.bfloat16).shape),
                         (256, 32))

    def test_a_live_tensor_puts_the_end_off(self):
        tensor = self.cache.groups[0].layers[0].host.torch()
        view = tensor[self.request.slot_of(3)]
        del tensor
        with self.assertLogs("kvtier", logging.WARNING):
            self.cache.close()
        self.assertEqual(view.tolist(), [3] * 64)
        self.assertEqual(len(self.host.stats()["caches"]), 1)
        del view
        gc.collect()
        daemon.wait_until(lambda: not self.host.stats()["caches"], "the daemon is told")

    def test_tensors_that_do_not_fit(self):
        topk = torch.zeros(1, 4, dtype=torch.int32)
        for text, tensor in ((".to(torch.int32)", topk.long()),
                             (".contiguous()", torch.zeros(4, 2, dtype=torch.int32).t()),
                             ("at least 1", topk[:0])):
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                self.cache.swap_in(0, 1, inputs=kvtier.StepInputs(topk=tensor))
            self.assertIn(text, str(raised.exception))
        with self.assertRaises(kvtier.InvalidArgumentError) as raised:
            self.cache.swap_in(0, 1, inputs=kvtier.StepInputs(
                topk=torch.zeros(1, 4, dtype=torch.int32, device="meta")))
        self.assertIn("on meta; it must be on cpu", str(raised.exception))

    def decoder(self):
        """A function of one step: writes the newest row, swaps in, gathers, backs up."""
        steps = kvtier.torch_ops.Steps(self.cache)

        def decode(topk, newest, row):
            for layer in range(2):
                steps.write_newest(0, layer, row[None])
            found = steps.swap_in(0, 1, topk=topk, newest_slot=newest, layers=(0, 1))
            found = steps.replay_plan(0, 1, found)
            index = found[0].long().clamp(min=0)
            gathered = torch.stack([hot[index, 0] for hot in steps.groups[0].hot])
            steps.backup_newest(1, newest_slot=newest)
            return gathered.int() * (found[0] >= 0)
        return steps, decode

    def check(self, decode):
        """Twenty steps under eviction, each with a newest row that later steps find again."""
        expected = list(range(ROWS))
        random = numpy.random.default_rng(7)
        for step in range(20):
            position = int(random.integers(ROWS))
            value = 200 + step
            others = random.choice(ROWS, 2, replace=False).tolist()
            row = torch.full((64,), value, dtype=torch.uint8)
            topk = torch.tensor([[*others, position, -1]], dtype=torch.int32)
            newest = torch.tensor([self.request.slot_of(position)], dtype=torch.int32)
            expected[position] = value
            found = decode(topk, newest, row)
            for layer in range(2):
                wanted = [expected[p] + (100 if layer and expected[p] < 200 else 0)
                          for p in [*others, position]] + [0]
                self.assertEqual(found[layer].tolist(), wanted, "step %d" % step)
        return self.cache.counters(0)

    def test_operators_in_eager_mode(self):
        steps, decode = self.decoder()
        counters = self.check(decode)
        self.assertEqual((counters.steps, counters.backed_up_rows), (20, 20 + ROWS))
        self.assertGreater(counters.evictions, 0)
        del steps

    def test_operators_are_traced(self):
        steps, decode = self.decoder()
        graphs = []

        def backend(module, _):
            graphs.append([str(node.target) for node in module.graph.nodes])
            return module
        self.check(torch.compile(decode, fullgraph=True, backend=backend))
        calls = [name for name in graphs[0] if name.startswith("kvtier.")]
        self.assertEqual(len(graphs), 1)
        self.assertEqual(calls, ["kvtier.write_newest", "kvtier.write_newest", "kvtier.swap_in",
                                 "kvtier.replay_plan", "kvtier.backup_newest"])
        del steps

    def compiled(self, backend):
        torch._dynamo.reset()
        steps, decode = self.decoder()
        self.check(torch.compile(decode, fullgraph=True, backend=backend))
        del steps

    def test_operators_in_functional_form(self):
        self.compiled("aot_eager")

    @unittest.skipUnless(shutil.which("g++"), "inductor needs a C++ compiler")
    def test_operators_in_compiled_functions(self):
        self.compiled("inductor")

    def test_schemas_say_what_is_written(self):
        steps, _ = self.decoder()
        tensors = steps.groups[0]
        tensors.topk.fill_(-1)
        torch.library.opcheck(torch.ops.kvtier.swap_in.default, (
            steps.number, 0, 1, tensors.topk, steps.row_to_request, steps.newest_slot,
            steps.num_real_rows, False, -1, 0, tensors.hot_indices[:1].clone(), steps.order),
            test_utils=("test_schema", "test_faketensor"))

    def test_padding_rows_are_not_written(self):
        steps, _ = self.decoder()
        steps.row_to_request[:] = torch.tensor([-1, 1, 1, 0])
        steps.num_real_rows.fill_(3)
        hot = steps.groups[0].hot[0]
        hot.fill_(9)
        steps.write_newest(0, 0, torch.arange(4, dtype=torch.uint8)[:, None].repeat(1, 64))
        written = (hot != 9).any(1).nonzero().flatten().tolist()
        newest = self.cache.groups[0].newest_hot_row(1)
        self.assertEqual(written, [newest, newest + 1])
        self.assertEqual(hot[written, 0].tolist(), [1, 2])
        steps.num_real_rows.fill_(0)
        hot.fill_(9)
        steps.write_newest(0, 0, torch.zeros(4, 64, dtype=torch.uint8))
        self.assertTrue((hot == 9).all())

    def test_operators_of_a_cache_that_is_gone(self):
        steps, _ = self.decoder()
        self.request = self.cache = None
        with self.assertRaises(kvtier.FailedPreconditionError) as raised:
            steps.swap_in(0, 1)
        self.assertIn("is gone", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
