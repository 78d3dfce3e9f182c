"""Tests of forks."""

import asyncio
import os
import signal
import unittest
import warnings

from weir_client import AsyncClient, Client

from .support import PATIENCE
from .test_leases import LeaseServer


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
