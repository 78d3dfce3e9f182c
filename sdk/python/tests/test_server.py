"""Tests with a real server. make test-clients starts it."""

import asyncio
import json
import os
import signal
import time
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weir_client import AsyncClient, Check, Client, MisuseError

from .support import PATIENCE, Logged, environment, eventually


def real_options(**options):
    """The timeout is long, so that a busy machine fails no test of decisions."""
    ms = PATIENCE * 1000
    defaults = {"url": environment("WEIR_TEST_URL"), "key": environment("WEIR_TEST_KEY")}
    return {**defaults, "timeout_ms": ms, "connect_timeout_ms": ms, **options}


def hourly(limit):
    return {"limit": limit, "window": "1h", "algorithm": "fixed_window_first_hit"}


def server_pid():
    return int(Path(environment("WEIR_TEST_PIDFILE")).read_text())


class ServerTest(unittest.TestCase):
    def client(self, **options):
        client = Client(**real_options(**options))
        self.addCleanup(client.close)
        return client

    def rule(self, client, slug, fields):
        """Creates a rule for one resource and returns when it is in force."""
        request = urllib.request.Request(
            f"{environment('WEIR_TEST_URL')}/v1/rules/{slug}",
            json.dumps({"resource": slug, **fields}).encode(),
            {"Authorization": f"Bearer {environment('WEIR_TEST_KEY')}", "Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()
        eventually(f"rule {slug}", lambda: client.peek("peek", slug).rule == slug)

    def test_decisions(self):
        client = self.client()
        self.rule(client, "py-decides", hourly(2))
        for left in (1, 0):
            decision = client.check("user_42", "py-decides")
            got = decision.allowed, decision.source, decision.rule, decision.limit, decision.remaining
            self.assertEqual((True, "server", "py-decides", 2, left), got)
            self.assertEqual(3_600_000, decision.rules[0].window_ms)
            self.assertEqual(str(left), decision.headers["X-RateLimit-Remaining"])
            self.assertIn("RateLimit", decision.headers)
        denied = client.check("user_42", "py-decides")
        self.assertEqual((False, "server", "RATE_LIMIT_EXCEEDED"), (denied.allowed, denied.source, denied.denial.code))
        self.assertGreater(denied.retry_after_ms, 0)
        self.assertIn("Retry-After", denied.headers)
        self.assertEqual("memory", client.check("user_42", "py-decides").source)
        never = client.check("user_43", "py-decides", 3)
        self.assertEqual((False, None, "COST_EXCEEDS_LIMIT"), (never.allowed, never.retry_after_ms, never.denial.code))
        self.assertTrue(client.explain("user_44", "elsewhere").skipped)
        self.assertEqual(2, client.peek("user_44", "py-decides").remaining, "explain or peek has taken units")

    def test_batches(self):
        client = self.client()
        self.rule(client, "py-batches", hourly(2))
        checks = [Check("user_42", "py-batches")] * 3 + [Check('größe "42"', "py-batches")]
        decisions = client.check_batch(checks)
        self.assertEqual([True, True, False, True], [decision.allowed for decision in decisions])
        self.assertTrue(all(d.no_decision is None and d.headers["X-RateLimit-Limit"] == "2" for d in decisions))
        self.assertEqual('größe "42"', decisions[3].subject)
        self.assertIn("Retry-After", decisions[2].headers)

    def test_never_more_than_the_limit(self):
        for slug, batching in (("py-callers", False), ("py-callers-batching", True)):
            with self.subTest(slug), ThreadPoolExecutor(32) as pool:
                client = self.client(batching=batching)
                self.rule(client, slug, hourly(100))
                decisions = list(pool.map(lambda _: client.check("user_42", slug), range(250)))
                self.assertEqual(100, sum(decision.allowed for decision in decisions))
                self.assertTrue(all(decision.no_decision is None for decision in decisions))

    def test_never_more_than_the_limit_on_asyncio(self):
        for slug, batching in (("py-tasks", False), ("py-tasks-batching", True)):
            with self.subTest(slug):
                self.rule(self.client(), slug, hourly(100))
                decisions = asyncio.run(self.ask_all(slug, batching))
                self.assertEqual(100, sum(decision.allowed for decision in decisions))
                self.assertTrue(all(decision.no_decision is None for decision in decisions))

    async def ask_all(self, slug, batching):
        async with AsyncClient(**real_options(batching=batching)) as client:
            return await asyncio.gather(*(client.check("user_42", slug) for _ in range(250)))

    def test_leases_never_allow_more_than_the_limit(self):
        """Two clients of 16 threads each and one of asyncio share a limit, and use exactly all of it."""
        limit = 3000
        rule = {"limit": limit, "window": "30d", "algorithm": "fixed_window", "consistency": "leased"}
        owner = self.client(denial_memory=False)
        self.rule(owner, "py-leased", rule)
        subject = f"user_{time.time_ns()}"  # the server may be older than this run
        sources = []
        clients = [self.client(leases=True, denial_memory=False) for _ in range(2)]
        with ThreadPoolExecutor(33) as pool:
            ended = [pool.submit(self.use_up, clients[i % 2], subject, sources) for i in range(32)]
            ended.append(pool.submit(asyncio.run, self.use_up_in_tasks(subject, sources)))
            for one in ended:
                one.result(PATIENCE * 4)
        for client in clients:
            client.close()
        self.assertLessEqual(len(sources), limit)
        self.assertIn("lease", sources)
        # What the instance itself has leased is returned when no check uses it.
        def used_up():
            while owner.check(subject, "py-leased").allowed:
                sources.append("server")
            return len(sources) >= limit

        eventually(f"all of the limit, not {len(sources)}", used_up)
        self.assertEqual(limit, len(sources))

    def use_up(self, client, subject, sources):
        while (decision := client.check(subject, "py-leased")).allowed:
            self.assertIsNone(decision.no_decision)
            sources.append(decision.source)

    async def use_up_in_tasks(self, subject, sources):
        async with AsyncClient(**real_options(leases=True, denial_memory=False)) as client:
            await asyncio.gather(*(self.use_up_in_task(client, subject, sources) for _ in range(16)))

    async def use_up_in_task(self, client, subject, sources):
        while (decision := await client.check(subject, "py-leased")).allowed:
            self.assertIsNone(decision.no_decision)
            sources.append(decision.source)
            await asyncio.sleep(0)  # a decision from a lease does not let other tasks run

    def test_misuse(self):
        client = self.client(batching=True)
        for call, status, code, field in (
            (lambda: client.check("user_42", plan="platinum"), 422, "UNKNOWN_PLAN", "/plan"),
            (lambda: client.check_batch([Check("a"), Check("a", plan="platinum")]), 422, None, "/checks/1/plan"),
            (lambda: self.client(key="weir_nonsense").check("user_42"), 401, "MALFORMED_KEY", ""),
            (lambda: self.client(url=environment("WEIR_TEST_URL") + "/elsewhere").check("user_42"), 404, None, ""),
        ):
            with self.subTest(code), self.assertRaises(MisuseError) as raised:
                call()
            self.assertEqual((status, field), (raised.exception.status, raised.exception.field))
            self.assertIn(code, (None, raised.exception.code))

    def test_agreement_on_what_is_valid(self):
        """The server accepts everything that this client accepts."""
        client = self.client()
        long = "a" * 256
        for check in (
            Check(long, "é" * 128, 10**15),
            Check(" \u00a0\u2028\u200b\ufeff🙂 "),
            Check("user_42", attributes={"n" * 64: long, "A-z.0_9": "v"}),
            Check("user_42", idempotency_key=f"!~{time.time_ns()}"),
        ):
            decision = client.check(
                check.subject, check.resource, check.cost, None, check.attributes, idempotency_key=check.idempotency_key
            )
            self.assertIsNone(decision.no_decision, check)

    def test_the_same_key_counts_once(self):
        client = self.client()
        self.rule(client, "py-idempotent", hourly(5))
        key = f"k-{time.time_ns()}"
        for i in range(4):
            decision = client.check("user_42", "py-idempotent", idempotency_key=key)
            self.assertEqual((True, 4, i > 0), (decision.allowed, decision.remaining, decision.replayed))

    def test_wait(self):
        client = self.client()
        self.rule(client, "py-waits", {"limit": 10, "window": "1s", "burst": 1, "algorithm": "token_bucket"})
        self.rule(client, "py-queues", {"limit": 20, "window": "1s", "burst": 5, "algorithm": "leaky_bucket_queue"})
        for resource in ("py-waits", "py-queues"):
            for _ in range(3):
                decision = client.wait("user_42", resource)
                self.assertEqual((True, None), (decision.allowed, decision.no_decision))

    def test_hangs(self):
        """Callers wait for the timeout until the breaker opens, and then not, until the server answers again."""
        client = self.client(timeout_ms=100, connect_timeout_ms=100)
        pid = server_pid()
        with Logged(), ThreadPoolExecutor(20) as pool:

            def is_open():
                # Concurrently, because that many must fail within a second.
                decisions = list(pool.map(lambda _: client.check("user_42"), range(20)))
                self.assertTrue(all(decision.allowed for decision in decisions))
                return client.breaker_state == "open"

            os.kill(pid, signal.SIGSTOP)
            try:
                eventually("an open breaker", is_open)
                self.assertIsNotNone(client.check("user_42").no_decision)
            finally:
                os.kill(pid, signal.SIGCONT)
            eventually("a decision", lambda: client.check("user_42").source == "server")

    def test_restarts(self):
        """The same client reconnects to a server that was killed and restarted."""
        client = self.client(on_failure="deny")

        def decided():
            decision = client.check("user_42")
            self.assertEqual(decision.allowed, decision.no_decision is None)
            return decision.allowed

        with Logged():
            eventually("a decision", decided)
            pid = server_pid()
            os.kill(pid, signal.SIGKILL)
            eventually("no decision", lambda: not decided())
            eventually("another process", lambda: server_pid() != pid)
            eventually("a decision", decided)
