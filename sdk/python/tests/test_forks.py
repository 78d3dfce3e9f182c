"""Tests of forks, and of event loops that end during a request: what one process or loop began, no other waits for."""

import asyncio
import os
import signal
import threading
import time
import unittest
import warnings
from contextlib import contextmanager
from unittest import mock

from weir_client import AsyncClient, Client
from weir_client._errors import NoDecision, Undecided

from .support import PATIENCE, FakeClock, Logged, eventually
from .test_leases import LeaseServer

REFUSED = Undecided(NoDecision("connection_refused"))


def fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of Python warn of forks of a process with threads
        return os.fork()


def in_child(run):
    """Runs a function in a child process, and returns what it returned there, as text."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        signal.alarm(int(PATIENCE))  # ends a child that waits for a lock
        try:
            answer = repr(run())
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text or "it did not end"


def plain_client(server, kind=Client, **options):
    return server.client(kind, leases=False, **{"denial_memory": False, **options})


def open_breaker(client):
    """Lets calls fail until the breaker is open, and until a probe may be sent."""
    with mock.patch.object(client._connections, "exchange", side_effect=REFUSED), Logged():
        while client.breaker_state == "closed":
            if isinstance(client, Client):
                client.check("s")
            else:
                asyncio.run(client.check("s"))
    client._core.clock.advance(200)


@contextmanager
def in_flight(client, waiting=0):
    """Starts a check in a thread, whose request gets its answer at the end, and others that wait for it."""
    exchange, began, release = client._connections.exchange, threading.Event(), threading.Event()

    def held(*request):
        began.set()
        release.wait(PATIENCE)
        return exchange(*request)

    client._connections.exchange = held
    threads = [threading.Thread(target=client.check, args=("s",), daemon=True) for _ in range(1 + waiting)]
    threads[0].start()
    began.wait(PATIENCE)
    client._connections.exchange = exchange
    for thread in threads[1:]:
        thread.start()
    eventually("the checks wait", lambda: client.waiting == waiting)
    yield
    release.set()
    for thread in threads:
        thread.join(PATIENCE)


class LeaseTest(unittest.TestCase):
    def test_a_child_process_has_no_units_of_a_block(self):
        server = LeaseServer(1_000, 60_000)
        client = plain_client(server)
        block = client.with_lease("s", units=100)
        lease = block.__enter__()

        def run():
            left, source, units = lease.left, lease.check().source, dict(server.leases)
            block.__exit__(None, None, None)
            return left, source, server.leases == units

        self.assertEqual("(0, 'server', True)", in_child(run))
        self.assertEqual((100, "lease"), (lease.left, lease.check().source))
        block.__exit__(None, None, None)
        self.assertEqual((1, {}), (server.used, server.leases))

    def test_a_child_process_sends_no_return_of_its_parent(self):
        server, clock = LeaseServer(1_000), FakeClock()
        client = plain_client(server, clock=clock)
        client._leasing.inspect_seconds = 3600
        with mock.patch.object(client._connections, "exchange", wraps=client._connections.exchange) as exchange:
            with client.with_lease("s", units=100):
                exchange.side_effect = REFUSED
        with client.with_lease("s", units=100):

            def run():
                clock.advance(1_000)
                client._leasing.round()
                client.close()
                return client._core.returns.resting(), sorted(server.leases)

            self.assertEqual("(True, ['lease_1', 'lease_2'])", in_child(run))
        self.assertEqual(["lease_1"], sorted(server.leases))
        client.close()
        self.assertEqual((0, {}), (server.used, server.leases))

    def test_a_child_process_has_no_units_of_a_block_of_asyncio(self):
        server = LeaseServer(1_000, 60_000)
        client = plain_client(server, AsyncClient)
        block = client.with_lease("s", units=100)
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        lease = loop.run_until_complete(block.__aenter__())

        def run():
            left, source, units = lease.left, asyncio.run(lease.check()).source, dict(server.leases)
            asyncio.run(block.__aexit__(None, None, None))
            return left, source, server.leases == units

        self.assertEqual("(0, 'server', True)", in_child(run))
        self.assertEqual((100, "lease"), (lease.left, loop.run_until_complete(lease.check()).source))
        loop.run_until_complete(block.__aexit__(None, None, None))
        self.assertEqual((1, {}), (server.used, server.leases))


class ForkTest(unittest.TestCase):
    def test_a_lock_of_another_thread(self):
        server = LeaseServer(0)
        client = server.client(batching=True, on_failure="local", clock=FakeClock())
        block = client.with_lease("s", units=1)
        lease = block.__enter__()
        core = client._core
        owners = [core.breaker, core.memory, core.local, core.leases, core.returns]
        owners += [client._batcher, client._connections, lease]

        def run():
            sources = client.check("s").source, client.check("s").source, lease.check().source
            with mock.patch.object(client._connections, "exchange", side_effect=REFUSED):
                return *sources, client.check("t").source

        for owner in owners:
            with self.subTest(owner=type(owner).__name__), owner._lock:
                self.assertEqual("('memory', 'memory', 'memory', 'fallback')", in_child(run))
        core.memory._entries.clear()
        for owner in owners:
            with self.subTest("nothing is remembered", owner=type(owner).__name__), owner._lock:
                self.assertEqual("('server', 'memory', 'memory', 'fallback')", in_child(run))

    def test_a_child_process_does_not_wait_for_requests_of_its_parent(self):
        client = plain_client(LeaseServer(100), batching=True)
        with in_flight(client, waiting=1):
            self.assertEqual(
                "(0, ['server', 'server'], 0)",
                in_child(lambda: (client.waiting, [client.check("s").source for _ in range(2)], client.waiting)),
            )
        self.assertEqual("server", client.check("s").source)

    def test_a_fork_within_a_request(self):
        """The child ends the request that its parent began, and batches afterwards as usual."""
        client = plain_client(LeaseServer(100), batching=True)
        exchange = client._connections.exchange
        children = []

        def forking(*request):
            children.append(fork())
            return exchange(*request)

        with mock.patch.object(client._connections, "exchange", forking):
            source = client.check("s").source
        if children == [0]:
            signal.alarm(int(PATIENCE))
            code = 1
            try:
                with in_flight(client, waiting=1):
                    pass
                code = 0 if (source, client.check("s").source) == ("server", "server") else 2
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))

    def test_a_probe_of_the_parent(self):
        clock = FakeClock()
        client = plain_client(LeaseServer(100), clock=clock)
        open_breaker(client)

        def run():
            before = client.breaker_state
            clock.advance(200)
            return before, client.check("s").source, client.breaker_state

        with in_flight(client):
            self.assertEqual("half_open", client.breaker_state)
            self.assertEqual("('open', 'server', 'closed')", in_child(run))
            self.assertEqual("half_open", client.breaker_state)
        self.assertEqual("closed", client.breaker_state)

    def test_a_child_process_that_continues_the_event_loop(self):
        client = plain_client(LeaseServer(100), AsyncClient, batching=True)
        loop, writer = asyncio.new_event_loop(), mock.Mock()
        self.addCleanup(loop.close)
        client._connections._loop = loop
        client._connections._idle.append((mock.Mock(), writer, time.monotonic()))
        with interrupted(client, loop):

            def run():
                sources = [loop.run_until_complete(client.check("s")).source for _ in range(2)]
                return sources, client._connections._take(), writer.method_calls

            self.assertEqual("(['server', 'server'], None, [])", in_child(run))

    def test_a_child_process_does_not_close_the_connections_of_its_parent(self):
        """The selector of the parent's event loop is shared, so its connection would get no answer any more."""
        closed = []

        class Writer:
            def __del__(self):  # newer versions of Python close a writer then
                closed.append(self)

        client, loop = AsyncClient("http://127.0.0.1:1", "key", timeout_ms=PATIENCE * 1000), asyncio.new_event_loop()
        self.addCleanup(loop.close)
        client._connections._loop = loop
        client._connections._idle.append((mock.Mock(), Writer(), time.monotonic()))
        answer = in_child(lambda: (asyncio.run(client.check("s")).no_decision.cause, closed))
        self.assertEqual("('connection_refused', [])", answer)
        self.assertEqual([], closed)


@contextmanager
def interrupted(client, loop):
    """Starts a check in a loop that stops before its answer, and drops it at the end."""
    answer = loop.create_future()
    with mock.patch.object(client._connections, "exchange", lambda *_: answer):
        task = loop.create_task(client.check("s"))
        loop.run_until_complete(asyncio.sleep(0))
    loop.set_exception_handler(lambda *_: None)  # a task that never ends is reported
    yield
    task.get_coro().close()


class EventLoopTest(unittest.TestCase):
    def test_a_loop_that_ends_during_a_request(self):
        client = plain_client(LeaseServer(100), AsyncClient, batching=True)
        loop = asyncio.new_event_loop()

        async def sources():
            return {(await client.check("s")).source for _ in range(2)}

        with interrupted(client, loop):
            loop.close()
            self.assertEqual({"server"}, asyncio.run(sources()))
        self.assertEqual({"server"}, asyncio.run(sources()))

    def test_a_loop_that_ends_during_a_probe(self):
        for batching in (False, True):
            with self.subTest(batching=batching):
                clock = FakeClock()
                client = plain_client(LeaseServer(100), AsyncClient, batching=batching, clock=clock)
                open_breaker(client)
                loop = asyncio.new_event_loop()
                with interrupted(client, loop):
                    self.assertEqual("half_open", client.breaker_state)
                    loop.close()
                    clock.advance(200)
                    self.assertEqual("server", asyncio.run(client.check("s")).source)
                    self.assertEqual("closed", client.breaker_state)
                self.assertEqual("closed", client.breaker_state)
