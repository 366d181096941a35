"""A GPU: tensors, streams, graphs and operators. Skipped where there is none, or no PyTorch 2.4.

On the GPU machine run_gpu_python_checks.sh starts it, with $KVTIERD and no source tree.
"""
import gc
import logging
import os
import re
import shutil
import unittest

import daemon
import kvtier

try:
    import torch
    VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
except ImportError:
    torch, VERSION = None, ()
HAS_GPU = VERSION >= (2, 4) and torch.cuda.is_available()
if HAS_GPU:
    import kvtier.torch_ops

README = os.environ.get("KVTIER_README", os.path.join(os.path.dirname(__file__), "..", "README.md"))
TOKENS, TOP_K, LAYERS, REQUESTS = 512, 64, 2, 4
LAYOUT = dict(block_count=REQUESTS * TOKENS // 64, block_size=64, max_requests=REQUESTS,
              top_k=TOP_K, hot_size=2 * TOP_K, row_bytes=656, layers=LAYERS)


def contents(first, layer):
    """uint8 [TOKENS, 656]: rows that say which they are."""
    tokens = torch.arange(TOKENS, device="cuda") + first * 1000
    rows = (tokens[:, None] * 31 + torch.arange(656, device="cuda")[None, :] * 7 + layer * 101)
    return ((rows ^ (rows >> 8)) & 255).to(torch.uint8)


@unittest.skipUnless(HAS_GPU, "no GPU, or no PyTorch 2.4 or later")
class GpuTest(unittest.TestCase):
    flags = {}

    def setUp(self):
        self.host, self.session = daemon.start_and_open(self, backend="cuda", pool_bytes=256 << 20,
                                                        **self.flags)
        self.cache = self.session.attach("kv", daemon.layout(**LAYOUT))
        self.group = self.cache.groups[0]
        self.requests, self.rows = [], []
        for number in range(REQUESTS):
            request = self.cache.admit("r%d" % number, reserve_blocks=TOKENS // 64)
            request.assign_blocks(TOKENS // 64)
            rows = [contents(number, layer) for layer in range(LAYERS)]
            self.cache.backup_rows(0, rows, torch.arange(TOKENS, dtype=torch.int32, device="cuda"),
                                   torch.from_numpy(request.slots_of(range(TOKENS))).cuda())
            self.requests.append(request)
            self.rows.append(torch.stack(rows))
        self.rows = torch.stack(self.rows)  # [requests, layers, tokens, bytes]
        self.topk = self.group.topk.torch()
        self.found = self.group.hot_indices.torch()
        self.hot = [layer.hot.torch() for layer in self.group.layers]
        self.newest = self.cache.newest_slot.torch().fill_(-1)
        self.cache.num_real_rows.torch().fill_(REQUESTS)
        self.cache.row_to_request.torch().copy_(
            torch.tensor([request.region for request in self.requests]))
        self.generator = torch.Generator("cuda").manual_seed(11)
        torch.cuda.synchronize()

    def tearDown(self):
        self.topk = self.found = self.hot = self.newest = None

    def draw(self):
        """int32 [requests, top_k]: distinct positions of each request."""
        scores = torch.rand(REQUESTS, TOKENS, device="cuda", generator=self.generator)
        # Recent ones more often, so that there are hits.
        scores += torch.arange(TOKENS, device="cuda") / TOKENS
        return scores.topk(TOP_K).indices.to(torch.int32)

    def wrong(self, positions, found=None):
        """Rows that the step found wrong; a tensor, so that nothing is waited for."""
        index = (self.found if found is None else found).long()
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for layer in range(LAYERS):
            wanted = self.rows[:, layer].gather(
                1, positions.long()[:, :, None].expand(-1, -1, 656))
            got = self.hot[layer][index.flatten()].view(REQUESTS, TOP_K, 656)
            wrong += (got != wanted).any(2).sum()
        return wrong + (index < 0).sum()

    def steps(self, count=20):
        """Steps on the current stream; the rows that were wrong."""
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(count):
            positions = self.draw()
            self.topk.copy_(positions)
            self.cache.swap_in(0, REQUESTS, layers=(0, 1))
            self.cache.replay_plan(0, REQUESTS)
            wrong += self.wrong(positions)
        return int(wrong)

    def test_steps_on_the_current_stream(self):
        self.assertEqual(self.steps(), 0)
        with torch.cuda.stream(torch.cuda.Stream()):
            self.assertEqual(self.steps(), 0)
        counters = self.cache.counters(0)
        self.assertEqual((counters.steps, counters.hits + counters.misses),
                         (40, 40 * REQUESTS * TOP_K))
        self.assertGreater(counters.hits, 0)
        self.assertGreater(counters.evictions, 0)
        self.assertEqual(counters.backed_up_rows, REQUESTS * TOKENS)

    def test_a_stream_by_its_number(self):
        stream = torch.cuda.Stream()
        positions = self.draw()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.topk.copy_(positions)
        for handle in (stream.cuda_stream, stream):
            self.cache.swap_in(0, REQUESTS, stream=handle)
        stream.synchronize()
        self.assertEqual(int(self.wrong(positions)), 0)
        self.assertEqual(self.cache.counters(0).steps, 2)

    def test_a_graph(self):
        stream = torch.cuda.Stream()
        positions = torch.zeros(REQUESTS, TOP_K, dtype=torch.int32, device="cuda")
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        newest_rows = [hot.view(REQUESTS, -1, 656)[:, 2 * TOP_K] for hot in self.hot]
        marks = torch.zeros(REQUESTS, dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        positions.copy_(self.draw())
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            self.topk.copy_(positions)
            for rows in newest_rows:
                rows.copy_(marks[:, None].expand(-1, 656))
            self.cache.swap_in(0, REQUESTS, layers=(0, 1))
            self.cache.replay_plan(0, REQUESTS)
            self.cache.backup_newest(REQUESTS)
            wrong.copy_(self.wrong(positions))
        for step in range(50):
            chosen = self.draw()
            positions.copy_(chosen)
            # The first position of each request is rewritten in this step.
            token = int(chosen[0, 0])
            for i, request in enumerate(self.requests):
                positions[i, 0] = token
                positions[i, 1:] = torch.where(chosen[i, 1:] == token, -1, chosen[i, 1:])
                self.newest[i] = request.slot_of(token)
            positions.copy_(torch.where(positions < 0, token, positions))
            marks.fill_(step + 1)
            self.rows[:, :, token] = step + 1
            self.cache.check_backup()
            graph.replay()
            self.assertEqual(int(wrong), 0, "step %d" % step)
        self.assertEqual(self.cache.counters(0).backed_up_rows, REQUESTS * (TOKENS + 50))
        del graph, newest_rows

    def test_the_graph_of_the_readme(self):
        with open(README, encoding="utf-8") as file:
            code = re.search(r"```python\n(with torch.cuda.graph.*?)```", file.read(), re.DOTALL)[1]
        attended = []

        def attend(rows, indices):
            attended.append(rows[indices.flatten().long()].view(REQUESTS, TOP_K, 656))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        exec(code, {"torch": torch, "graph": graph, "cache": self.cache, "rows": REQUESTS,
                    "attend": attend, "hot_rows": self.hot, "hot_indices": self.found})
        for _ in range(3):
            positions = self.draw()
            self.topk.copy_(positions)
            graph.replay()
            for layer in range(LAYERS):
                wanted = self.rows[:, layer].gather(
                    1, positions.long()[:, :, None].expand(-1, -1, 656))
                self.assertTrue(torch.equal(attended[layer], wanted))
        attended.clear()
        del graph

    def test_own_tensors(self):
        found = torch.full((REQUESTS, TOP_K), -7, dtype=torch.int32, device="cuda")
        inputs = kvtier.StepInputs(topk=self.draw(), hot_indices=found)
        for _ in range(5):
            inputs.topk.copy_(self.draw())
            self.cache.swap_in(0, REQUESTS, inputs=inputs)
            self.assertEqual(int(self.wrong(inputs.topk, found)), 0)

    def test_the_daemon_runs_steps_in_order_with_the_stream(self):
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(20):
            positions = self.draw()
            self.topk.copy_(positions)
            self.cache.swap_in_rpc(0, REQUESTS)
            wrong += self.wrong(positions)
        self.assertEqual(int(wrong), 0)
        ticket = self.cache.backup_rpc(REQUESTS)
        self.assertGreaterEqual(self.cache.wait_ticket(ticket.number), ticket.number)

    def test_interfaces(self):
        array = self.group.hot_indices
        for tensor in (torch.as_tensor(array, device="cuda"), torch.from_dlpack(array),
                       array.torch()):
            self.assertEqual((tensor.data_ptr(), tensor.dtype), (array.address, torch.int32))
        self.assertEqual(array.device, "cuda:%d" % torch.cuda.current_device())
        with self.assertRaises(TypeError):
            array.numpy()
        host = self.group.layers[1].host.torch()
        slot = self.requests[2].slot_of(77)
        self.cache.synchronize()
        self.assertTrue(torch.equal(host[slot], self.rows[2, 1, 77].cpu()))
        bf16 = self.group.layers[0].hot.torch(torch.bfloat16)
        self.assertEqual((bf16.shape[1], bf16.data_ptr()), (328, self.hot[0].data_ptr()))

    def refused(self, text, call):
        with self.assertRaises(kvtier.InvalidArgumentError) as raised:
            call()
        self.assertIn(text, str(raised.exception))

    def test_tensors_that_do_not_fit(self):
        topk = self.draw()
        for text, tensor in (("on cpu; it must be on cuda:0", topk.cpu()),
                             (".to(torch.int32)", topk.long()),
                             (".contiguous()", topk.t().contiguous().t()),
                             ("of shape", topk[:2])):
            self.refused(text, lambda: self.cache.swap_in(
                0, REQUESTS, inputs=kvtier.StepInputs(topk=tensor)))
        if torch.cuda.device_count() > 1:
            self.refused("on cuda:1; it must be on cuda:0", lambda: self.cache.swap_in(
                0, REQUESTS, inputs=kvtier.StepInputs(topk=topk.to("cuda:1"))))
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.refused("being captured", lambda: self.cache.swap_in_rpc(0, REQUESTS))

    def test_a_live_tensor_puts_the_end_off(self):
        torch.cuda.synchronize()
        tensor = self.hot[0]
        self.topk = self.found = self.hot = self.newest = None
        with self.assertLogs("kvtier", logging.WARNING):
            self.cache.close()
        tensor.fill_(3)
        self.assertEqual(int(tensor[5].sum()), 3 * 656)
        self.assertEqual(len(self.host.stats()["caches"]), 1)
        del tensor
        gc.collect()
        daemon.wait_until(lambda: not self.host.stats()["caches"], "the daemon is told")
        again = self.session.attach("kv", daemon.layout(**LAYOUT))
        self.assertTrue(again.created)

    def test_graphs_outlive_the_daemon(self):
        positions = torch.zeros(REQUESTS, TOP_K, dtype=torch.int32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            self.topk.copy_(positions)
            self.cache.swap_in(0, REQUESTS)
        self.host.kill()
        self.assertTrue(self.session.wait_until_ended(daemon.PATIENCE_SECONDS))
        for _ in range(50):
            positions.copy_(self.draw())
            graph.replay()
            self.assertEqual(int(self.wrong(positions)), 0)
        with self.assertRaises(kvtier.UnavailableError):
            self.cache.check_backup()
        with self.assertRaises(kvtier.UnavailableError):
            self.cache.swap_in_rpc(0, REQUESTS)
        del graph

    def operators(self):
        steps = kvtier.torch_ops.Steps(self.cache)

        def decode(positions):
            found = steps.swap_in(0, REQUESTS, topk=positions, layers=(0, 1))
            first = steps.groups[0].hot[0][found.flatten().long()]
            found = steps.replay_plan(0, REQUESTS, found)
            second = steps.groups[0].hot[1][found.flatten().long()]
            return torch.stack([first, second]).view(2, REQUESTS, TOP_K, 656)
        return steps, decode

    def check_operators(self, decode):
        for _ in range(5):
            positions = self.draw()
            got = decode(positions)
            for layer in range(LAYERS):
                wanted = self.rows[:, layer].gather(
                    1, positions.long()[:, :, None].expand(-1, -1, 656))
                self.assertTrue(torch.equal(got[layer], wanted))

    def test_operators(self):
        steps, decode = self.operators()
        self.check_operators(decode)
        torch._dynamo.reset()
        self.check_operators(torch.compile(decode, fullgraph=True, backend="aot_eager"))
        positions = torch.zeros(REQUESTS, TOP_K, dtype=torch.int32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            got = decode(positions)

        def replayed(chosen):
            positions.copy_(chosen)
            graph.replay()
            return got
        self.check_operators(replayed)
        del steps, graph, decode

    @unittest.skipUnless(shutil.which("gcc") or shutil.which("cc"), "inductor needs a C compiler")
    def test_operators_in_compiled_functions(self):
        steps, decode = self.operators()
        torch._dynamo.reset()
        self.check_operators(torch.compile(decode, fullgraph=True))
        del steps, decode


class IpcTest(GpuTest):
    """The same with memory passed by CUDA IPC handles."""
    flags = {"device_memory": "ipc"}


if __name__ == "__main__":
    unittest.main()
