"""Tests of what leases return, beyond the suite: blocks that last long, cancelled callers, and event loops that end."""

import asyncio
import threading
import unittest
from operator import attrgetter
from unittest import mock

from weir_client import AsyncClient, Client
from weir_client._errors import NoDecision, Undecided
from weir_client._returns import MOST_WAITING, Return, Returns

from .support import PATIENCE, FakeClock, eventually, eventually_async
from .test_leases import LeaseServer, lease_threads

LOST = Undecided(NoDecision("connection_lost"))


def by_hand(server, kind=Client):
    """A client without leases in the background, whose clock and returns are moved by hand."""
    client = server.client(kind, leases=False, clock=FakeClock())
    client._leasing.inspect_seconds = 3600
    return client


class ReturnsTest(unittest.TestCase):
    def test_the_lease_of_a_long_block(self):
        server = LeaseServer(1_000, life_ms=20)
        client = server.client(leases=False)
        with client.with_lease("s", units=100) as lease:
            lease.check(2)  # from the lease, unless this machine is slow
            eventually("the return", lambda: not server.leases)
            self.assertEqual((2, 1), (server.used, server.reported["allowed"] + server.checks))
            self.assertEqual((0, "server"), (lease.left, lease.check().source))
        self.assertEqual(3, server.used)
        eventually("the threads end", lambda: not lease_threads())

    def test_a_lease_that_ends_while_it_is_used(self):
        for _ in range(20):
            server = LeaseServer(1 << 40)
            client = by_hand(server)
            allowed = []
            begun = threading.Semaphore(0)

            def use(lease, cost):
                while lease.check(cost).source == "lease":
                    allowed.append(cost)
                    begun.release()

            with client.with_lease("s", units=1 << 30) as lease:
                callers = [threading.Thread(target=use, args=(lease, cost)) for cost in (1, 2, 3)]
                for caller in callers:
                    caller.start()
                for _ in range(100):
                    begun.acquire(timeout=PATIENCE)
                client._core.clock.advance(server.life_ms)
                client._leasing.round()
                for caller in callers:
                    caller.join(PATIENCE)
            client.close()
            sent = 1 + 2 + 3
            self.assertEqual((sum(allowed) + sent, len(allowed)), (server.used, server.reported["allowed"]))

    def test_without_threads_the_end_of_the_block_returns_the_units(self):
        server = LeaseServer(1_000)
        client = server.client(leases=False)
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            with client.with_lease("s", units=100) as lease:
                lease.check()
        self.assertEqual((1, {}), (server.used, server.leases))

    def test_a_return_that_the_caller_interrupts(self):
        server = LeaseServer(1_000)
        client = by_hand(server)
        exchange = client._connections.exchange
        with self.assertRaises(KeyboardInterrupt), client.with_lease("s", units=100):
            client._connections.exchange = mock.Mock(side_effect=KeyboardInterrupt)
        client._connections.exchange = exchange
        self.assertEqual(1, len(server.leases))
        client.close()
        self.assertEqual((0, {}), (server.used, server.leases))

    def test_a_block_that_the_garbage_collector_ends_in_a_thread_with_the_lock(self):
        """It ends the generator of a block at an allocation of any thread."""

        def rows(client, lost):
            with client.with_lease("s", units=100) as lease:
                if lost:
                    client._connections.exchange = mock.Mock(side_effect=LOST)
                yield lease

        for lost in (False, True):
            for name in ("_leasing._returns", "_leasing._changed", "_core.breaker", "block"):
                with self.subTest(lock=name, lost=lost):
                    server = LeaseServer(1_000)
                    client = by_hand(server)
                    exchange, block = client._connections.exchange, rows(client, lost)
                    lease = next(block)
                    holder = lease if name == "block" else attrgetter(name)(client)

                    def collect(lock=getattr(holder, "_lock"), end=block.close):
                        with lock:
                            end()

                    thread = threading.Thread(target=collect, daemon=True)
                    thread.start()
                    thread.join(PATIENCE)
                    self.assertFalse(thread.is_alive(), "the block waits for a lock of its own thread")
                    client._connections.exchange = exchange
                    client.close()
                    self.assertEqual((0, {}), (server.used, server.leases))

    def test_a_block_that_ends_during_an_inspection(self):
        clock = FakeClock()
        returns = Returns(clock, None)
        ended = []

        class Ends:
            """Its inspection ends another block, as the garbage collector may."""

            def _over(self):
                if not ended:
                    ended.append(None)
                    other = next(one for one in blocks if one is not self)
                    returns.ended(returns.release(other), NoDecision("connection_lost"))
                return False

            def _end(self):
                return Return("one", 1, 0, clock.now())

        blocks = [Ends(), Ends(), Ends()]
        for block in blocks:
            returns.hold(block)
        returns.inspect()
        clock.advance(250)
        returns.inspect()
        self.assertEqual((2, "one"), (len(returns._blocks), returns.job().id))

    def test_too_many_returns(self):
        returns = Returns(FakeClock(), None)
        for i in range(MOST_WAITING + 2):
            returns.add(Return(str(i), 1, 0, 0.0))
        returns.close()
        self.assertEqual("2", returns.job().id)
        self.assertEqual(MOST_WAITING - 1, len(returns._due))


class AsyncReturnsTest(unittest.TestCase):
    def test_the_lease_of_a_long_block(self):
        server = LeaseServer(1_000, life_ms=20)

        async def run():
            client = server.client(AsyncClient, leases=False)
            async with client.with_lease("s", units=100) as lease:
                await lease.check(2)
                await eventually_async("the return", lambda: not server.leases)
                self.assertEqual((2, 1), (server.used, server.reported["allowed"] + server.checks))
                self.assertEqual("server", (await lease.check()).source)
            await eventually_async("nothing remains", lambda: client._leasing._timer is None)
            self.assertEqual(1, len(asyncio.all_tasks()))

        asyncio.run(run())

    def test_a_caller_who_is_cancelled_again_and_again(self):
        """As in a cancelled scope of anyio, where every await of the block raises."""
        server = LeaseServer(1_000)

        async def run():
            client = by_hand(server, AsyncClient)
            exchange, began, release = client._connections.exchange, asyncio.Event(), asyncio.Event()

            async def held(*request):
                began.set()
                await release.wait()
                return await exchange(*request)

            async def block():
                async with client.with_lease("s", units=100):
                    client._connections.exchange = held
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await eventually_async("the block", lambda: client._connections.exchange is held)
            task.cancel()
            await began.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(1, len(server.leases))
            release.set()
            await eventually_async("the return", lambda: not server.leases)

        asyncio.run(run())
        self.assertEqual(0, server.used)

    def test_a_return_that_fails_before_its_loop_ends(self):
        server = LeaseServer(1_000)
        client = by_hand(server, AsyncClient)
        exchange = client._connections.exchange

        async def block(fails):
            async with client.with_lease("s", units=100):
                client._connections.exchange = fails

        async def hang(*_):
            await asyncio.Event().wait()

        async def interrupted():
            task = asyncio.create_task(block(hang))
            await eventually_async("the return", lambda: client._leasing._tasks)
            task.cancel()

        for end in (block(mock.AsyncMock(side_effect=LOST)), interrupted()):
            asyncio.run(end)
            client._connections.exchange = exchange
            self.assertEqual(1, len(server.leases))
            client._core.clock.advance(250)
            asyncio.run(self.round(client, server))
        asyncio.run(client.close())
        self.assertEqual(0, server.used)

    def test_a_loop_that_stops_during_a_return(self):
        server = LeaseServer(1_000)
        client = by_hand(server, AsyncClient)
        exchange, loop = client._connections.exchange, asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # tasks that never end are reported

        async def block():
            async with client.with_lease("s", units=100):
                client._connections.exchange = lambda *_: loop.create_future()

        task = loop.create_task(block())
        loop.run_until_complete(eventually_async("the return", lambda: client._leasing._tasks))
        loop.close()
        client._connections.exchange = exchange
        self.assertEqual((1, False), (len(server.leases), task.done()))
        asyncio.run(client.close())
        self.assertEqual((0, {}), (server.used, server.leases))

    def test_a_request_that_is_cancelled_before_it_begins(self):
        server = LeaseServer(1_000)

        async def run():
            client = by_hand(server, AsyncClient)
            exchange = client._connections.exchange
            async with client.with_lease("s", units=100):
                client._connections.exchange = mock.AsyncMock(side_effect=LOST)
            client._connections.exchange = exchange
            client._core.clock.advance(250)
            client._leasing.round()
            tasks = set(client._leasing._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.assertEqual((1, 0, 1), (len(tasks), client._leasing.in_flight, len(server.leases)))
            await client.close()

        asyncio.run(run())
        self.assertEqual((0, {}), (server.used, server.leases))

    def test_a_block_that_ends_without_a_loop(self):
        server = LeaseServer(1_000)
        client = by_hand(server, AsyncClient)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # tasks that never end are reported
        begun = loop.create_future()

        async def block():
            async with client.with_lease("s", units=100):
                begun.set_result(None)
                await loop.create_future()

        coroutine = block()
        task = loop.create_task(coroutine)
        loop.run_until_complete(begun)
        loop.close()
        with self.assertRaisesRegex(RuntimeError, "no running event loop"):
            coroutine.close()
        self.assertEqual((0, False), (client._leasing.in_flight, task.done()))
        client._core.clock.advance(server.life_ms)
        asyncio.run(self.round(client, server))
        self.assertEqual(0, server.used)

    async def round(self, client, server):
        client._leasing.round()
        await eventually_async("the return", lambda: not server.leases)
