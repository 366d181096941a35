"""The control calls as coroutines."""
import asyncio
import gc
import os
import unittest

import daemon
import kvtier
import kvtier.aio
import numpy


class AioTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.host = daemon.Daemon(self)

    async def test_a_worker(self):
        async with await kvtier.aio.open_session(self.host.socket) as session:
            self.assertTrue(session.id.startswith(session.boot_id))
            async with await session.attach("kv", daemon.layout()) as cache:
                async with await cache.admit("r", reserve_blocks=2) as request:
                    blocks = await request.assign_blocks(2)
                    self.assertEqual(request.slot_of(16), blocks.block_ids[1] * 16)
                    rows = numpy.arange(32, dtype=numpy.uint8)[:, None].repeat(64, 1)
                    tokens = numpy.arange(32, dtype=numpy.int32)
                    cache.backup_rows(0, [rows], tokens, request.slots_of(tokens))
                    cache.groups[0].topk.numpy()[0] = [9, 8, 7, -1]
                    cache.row_to_request.numpy()[0] = request.region
                    cache.newest_slot.numpy()[0] = -1
                    cache.num_real_rows.numpy()[0] = 1
                    cache.swap_in(0, 1)
                    hot = cache.groups[0].layers[0].hot.numpy()
                    found = [int(hot[i, 0]) for i in cache.groups[0].hot_indices.numpy()[0, :3]]
                    self.assertEqual(found, [9, 8, 7])
                    del hot
                    ticket = await cache.swap_in_rpc(0, 1)
                    self.assertGreaterEqual(await cache.wait_ticket(ticket.number), ticket.number)
                    self.assertTrue((await cache.replay_plan_rpc(0, 1, wait=True)).completed)
                    self.assertTrue((await cache.backup_rpc(1, wait=True)).completed)
                    self.assertEqual(await cache.invalidate_blocks(blocks.block_ids), 3)
                    self.assertEqual(await request.free_blocks(blocks.block_ids[1:]), 1)
        self.assertIs(session.state, kvtier.SessionState.CLOSED)
        daemon.wait_until(lambda: self.host.stats()["sessions"] == 0, "the session has ended")

    async def test_errors_are_the_same(self):
        with self.assertRaises(kvtier.UnavailableError) as raised:
            await kvtier.aio.open_session(self.host.socket + ".none")
        self.assertIn("is kvtierd running", str(raised.exception))
        async with await kvtier.aio.open_session(self.host.socket) as session:
            cache = await session.attach("kv", daemon.layout())
            with self.assertRaises(kvtier.AlreadyExistsError):
                await session.attach("kv", daemon.layout())
            with self.assertRaises(kvtier.InvalidArgumentError) as raised:
                await session.attach("other", daemon.layout(row_bytes=65))
            self.assertEqual(raised.exception.reason, "LAYOUT_INVALID")
            request = await cache.admit("r")
            with self.assertRaises(kvtier.ResourceExhaustedError) as raised:
                await request.assign_blocks(100)
            self.assertEqual(raised.exception.reason, "BLOCKS_EXHAUSTED")
            await request.release()
            with self.assertRaises(kvtier.NotFoundError):
                await request.assign_blocks(1)

    async def test_calls_run_side_by_side(self):
        async with await kvtier.aio.open_session(self.host.socket) as session:
            cache = await session.attach("kv", daemon.layout(max_requests=8))
            requests = await asyncio.gather(*[cache.admit("r%d" % i) for i in range(8)])
            self.assertEqual(sorted(request.region for request in requests), list(range(8)))
            await asyncio.gather(*[request.assign_blocks(1) for request in requests])

    async def test_a_lost_daemon_is_reported(self):
        events = []
        async with await kvtier.aio.open_session(self.host.socket,
                                                 on_event=events.append) as session:
            self.host.kill()
            while not events:
                await asyncio.sleep(0.01)
            self.assertIs(events[0].state, kvtier.SessionState.LOST)
            with self.assertRaises(kvtier.UnavailableError):
                await session.attach("kv", daemon.layout())

    async def test_a_live_array_puts_the_end_off(self):
        session = await kvtier.aio.open_session(self.host.socket)
        cache = await session.attach("kv", daemon.layout())
        view = cache.newest_slot.numpy()
        await cache.close()
        self.assertEqual(len(self.host.stats()["caches"]), 1)
        del view
        gc.collect()
        while self.host.stats()["caches"]:
            await asyncio.sleep(0.01)
        await session.close()

    async def test_a_forked_child_is_refused(self):
        async with await kvtier.aio.open_session(self.host.socket) as session:
            child = os.fork()
            if child == 0:
                os._exit(0 if session.state is kvtier.SessionState.CLOSED else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


if __name__ == "__main__":
    unittest.main()
