"""Tests of leases beyond the suite: many clients, forks, event loops, and what remains."""

import asyncio
import json
import os
import random
import threading
import unittest
import warnings
from unittest import mock

from weir_client import AsyncClient, Check, Client
from weir_client._errors import NoDecision, Undecided
from weir_client._http import Answer

from .support import PATIENCE, eventually, eventually_async


class LeaseServer:
    """Counts as the server does, in place of the connections: units of leases are charged when they are granted."""

    def __init__(self, limit, life_ms=240, refuses=False, loses=lambda: False):
        self.limit, self.life_ms, self.refuses, self.loses = limit, life_ms, refuses, loses
        self.used = self.checks = self.asked = 0
        self.reported = {"allowed": 0, "denied": 0, "denied_units": 0}
        self.leases = {}
        self._lock = threading.Lock()

    def client(self, kind=Client, **options):
        ms = PATIENCE * 1000
        client = kind("http://127.0.0.1:1", "key", **{"timeout_ms": ms, "leases": True, **options})
        client._connections.exchange = self._exchange if kind is Client else self._exchange_async
        return client

    async def _exchange_async(self, *request):
        await asyncio.sleep(0)
        return self._exchange(*request)

    def _exchange(self, request, *_):
        head, _, body = request.partition(b"\r\n\r\n")
        with self._lock:
            answer = self._answer(head.split(b" ")[1].decode(), json.loads(body))
            lost = self.loses()
        if lost:
            raise Undecided(NoDecision("connection_lost"))
        return answer

    def _answer(self, path, body):
        if path == "/v1/check":
            self.checks += 1
            cost = body.get("cost", 1)
            if self.used + cost > self.limit:
                return self._respond(429, "deny", self._decision(False, cost))
            self.used += cost
            return self._respond(200, "allow", self._decision(True, cost))
        if path == "/v1/leases":
            self.asked += 1
            units = min(body["units"], (self.limit - self.used) // 4)
            if self.refuses or units < 1 and self.used < self.limit:
                return self._respond(409, "none", {"code": "NOT_LEASABLE"}, "10" if self.refuses else "1")
            if units < 1:
                return self._respond(429, "deny", self._decision(False, 1))
            self.used += units
            lease = f"lease_{self.asked}"
            self.leases[lease] = units
            decision = self._decision(True, units)
            return self._respond(
                200, "allow", {"lease": lease, "units": units, "expires_in_ms": self.life_ms, "decision": decision}
            )
        lease = path.split("/")[3]
        if body["units"] <= self.leases.get(lease, -1):
            self.used -= body["units"]
            del self.leases[lease]
            for name in self.reported:
                self.reported[name] += body[name]
        return Answer(204, {}, b"")

    def _decision(self, allowed, cost):
        state = {
            "limit": self.limit,
            "remaining": self.limit - self.used,
            "retry_after_ms": 0 if allowed else 60_000,
            "reset_after_ms": 60_000,
        }
        rule = {"rule": "r", "mode": "enforce", "allowed": allowed, "window_ms": 60_000, **state}
        decision = {"allowed": allowed, "subject": "s", "cost": cost, "rule": "r", "rules": [rule], **state}
        return decision if allowed else {**decision, "error": {"code": "RATE_LIMIT_EXCEEDED", "message": "."}}

    def _respond(self, status, word, body, retry_after=""):
        headers = {"weir-decision": word, "retry-after": retry_after}
        return Answer(status, headers, json.dumps(body).encode())


def leased(client, subject="s", **check):
    """Sends checks until one is decided from a lease. Returns it, and the number that were allowed."""
    allowed = 0
    while True:
        decision = client.check(subject, **check)
        allowed += decision.allowed
        if decision.source == "lease":
            return decision, allowed


def lease_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weir-lease")]


class LeasesTest(unittest.TestCase):
    def test_close_returns_what_is_left(self):
        server = LeaseServer(1_000_000)
        client = server.client()
        decision, allowed = leased(client, cost=2)
        self.assertEqual((2, "r", "s"), (decision.cost, decision.rule, decision.subject))
        self.assertTrue(0 < decision.remaining < 1_000_000)
        client.close()
        self.assertEqual(2 * allowed, server.used)
        self.assertEqual(allowed, server.reported["allowed"] + server.checks)
        self.assertEqual("server", client.check("s").source)
        client.close()
        self.assertEqual([], lease_threads())

    def test_units_that_no_check_uses_are_returned(self):
        server = LeaseServer(1_000_000)
        client = server.client()
        _, allowed = leased(client)
        eventually("all units are returned", lambda: (server.used, server.leases) == (allowed, {}))
        eventually("the threads end", lambda: not lease_threads())
        self.assertEqual(0, client.leased)
        client.close()

    def test_where_a_rule_is_not_leased_the_client_asks_once(self):
        server = LeaseServer(1_000_000, refuses=True)
        client = server.client()
        for _ in range(4):
            client.check("s")
        eventually("the refusal", lambda: client._core.leases.in_flight == 0)
        self.assertTrue(all(client.check("s").source == "server" for _ in range(500)))
        self.assertEqual(1, server.asked)
        client.close()

    def test_many_clients_never_allow_more_than_the_limit(self):
        for lossy in (False, True):
            with self.subTest(lossy=lossy):
                loses = random.Random(1)
                server = LeaseServer(5_000, 20, loses=lambda: lossy and loses.random() < 0.1)
                options = {"on_failure": "deny", "breaker": False, "denial_memory": False}
                clients = [server.client(**options) for _ in range(4)]
                allowed = []
                callers = [threading.Thread(target=self.ask, args=(client, allowed)) for client in clients * 4]
                for caller in callers:
                    caller.start()
                for caller in callers:
                    caller.join(PATIENCE)
                for client in clients:
                    client.close()
                self.compare(server, len(allowed), lossy)
                self.assertEqual([], lease_threads())

    def ask(self, client, allowed):
        denials = 0
        while denials < 10:
            decision = client.check("s")
            if decision.allowed:
                allowed.append(decision.source)
            denials += not decision.allowed and decision.source == "server"

    def compare(self, server, allowed, lossy):
        self.assertGreater(server.asked, 0)
        self.assertLessEqual(allowed, server.used)
        self.assertLessEqual(server.used, 5_000)
        if not lossy:
            self.assertEqual(allowed, server.used)

    def test_many_tasks_never_allow_more_than_the_limit(self):
        for lossy in (False, True):
            with self.subTest(lossy=lossy):
                loses = random.Random(1)
                server = LeaseServer(5_000, 20, loses=lambda: lossy and loses.random() < 0.1)
                self.compare(server, asyncio.run(self.ask_in_tasks(server)), lossy)

    async def ask_in_tasks(self, server):
        options = {"on_failure": "deny", "breaker": False, "denial_memory": False}
        clients = [server.client(AsyncClient, **options) for _ in range(4)]
        counts = await asyncio.gather(*(self.ask_in_task(client) for client in clients * 4))
        for client in clients:
            await client.close()
        self.assertEqual(1, len(asyncio.all_tasks()))
        return sum(counts)

    async def ask_in_task(self, client):
        allowed = denials = 0
        while denials < 10:
            decision = await client.check("s")
            await asyncio.sleep(0)  # a decision from a lease does not let other tasks run
            allowed += decision.allowed
            denials += not decision.allowed and decision.source == "server"
        return allowed

    def test_a_child_process_grants_no_units_of_its_parent(self):
        server = LeaseServer(1_000_000, 60_000)
        client = server.client()
        client._leasing.inspect_seconds = 3600  # so that nothing is returned meanwhile
        leased(client)
        self.assertEqual("lease", client.check("s").source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions of Python warn of forks of a process with threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                client.close()
                code = 0 if client.check("s").source == "server" and server.reported["allowed"] == 0 else 2
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        self.assertEqual("lease", client.check("s").source)
        client.close()

    def test_another_event_loop(self):
        server = LeaseServer(1_000_000)
        client = server.client(AsyncClient)
        for _ in range(2):
            asyncio.run(self.lease_in_loop(client))
        asyncio.run(client.close())
        self.assertEqual({}, server.leases)

    async def lease_in_loop(self, client):
        async def is_leased():
            return (await client.check("s")).source == "lease"

        while not await is_leased():
            await asyncio.sleep(0.001)

    def test_tasks_end_when_nothing_is_asked(self):
        server = LeaseServer(1_000_000)

        async def run():
            client = server.client(AsyncClient)
            await self.lease_in_loop(client)
            await eventually_async("all units are returned", lambda: not server.leases)
            await eventually_async("nothing remains", lambda: client._leasing._timer is None)
            self.assertEqual(1, len(asyncio.all_tasks()))

        asyncio.run(run())

    def test_without_threads_every_check_is_sent(self):
        server = LeaseServer(1_000_000)
        client = server.client()
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            for _ in range(10):
                self.assertEqual("server", client.check("s").source)
        leased(client)
        client.close()

    def test_denials_from_memory_are_reported(self):
        server = LeaseServer(400)
        client = server.client()
        allowed = remembered = 0
        while remembered < 100:
            decision = client.check("s")
            allowed += decision.allowed
            remembered += decision.source == "memory"
        client.close()
        self.assertLessEqual(allowed, 400)
        self.assertEqual(allowed, server.used)

    def test_a_batch_is_sent(self):
        server = LeaseServer(1_000_000)
        client = server.client()
        leased(client)
        with mock.patch.object(client._connections, "exchange") as exchange:
            exchange.return_value = Answer(500, {}, b"")
            client.check_batch([Check("s")])
            exchange.assert_called_once()
        client.close()
