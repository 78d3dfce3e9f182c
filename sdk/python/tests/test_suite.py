"""Runs the behaviour suite with the blocking client and with the asyncio client."""

import asyncio
import threading

from weir_client import AsyncClient, Client, Decision, MisuseError, _breaker, _core, _http, _memory
from weir_client import copy_headers, hash_subject

from .support import (
    PATIENCE,
    FakeClock,
    Logged,
    ScriptedServer,
    SuiteTestCase,
    checks_of,
    client_options,
    eventually,
    eventually_async,
    expand,
    read_suite,
)

FILES = (
    "requests",
    "answers",
    "outcomes",
    "failures",
    "retries",
    "breaker",
    "memory",
    "local",
    "batch",
    "wait",
    "leases",
    "with_lease",
)


def call_of(client, name, args):
    """Makes a call. For an AsyncClient, it returns a coroutine."""
    args = {**args}
    traceparent = args.pop("traceparent", None)
    if name == "batch":
        return client.check_batch(checks_of(args["checks"]), traceparent=traceparent)
    args = expand(args)
    args.setdefault("subject", None)
    method = getattr(client, name)
    return method(**args) if traceparent is None else method(**args, traceparent=traceparent)


class Started:
    """A call of the blocking client in a separate thread."""

    def __init__(self, client, name, args):
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(client, name, args))
        self._thread.start()

    def _run(self, *call):
        try:
            self.result = call_of(*call)
        except Exception as error:
            self.result = error

    def join(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call does not end"
        return self.result


class SyncSuite(SuiteTestCase):
    """The blocking client. It cannot be cancelled, so it skips cases that cancel."""

    def play(self, case):
        clock = FakeClock()
        with ScriptedServer(case["server"], case.get("server_up", True)) as server, Logged() as logged:
            options = client_options(case.get("options", {}))
            with Client(server.url, "weir_test_key", clock=clock, **options) as client:
                inspect_by_hand(client)
                started = {}
                for i, step in enumerate(case["steps"]):
                    with self.subTest(step=i):
                        self.step(step, client, server, clock, logged, started)

    def step(self, step, client, server, clock, logged, started):
        expected = step.get("expect")
        result = None
        if "start" in step:
            started[step["start"]] = Started(client, step["call"], step["args"])
        elif step.get("call") == "with_lease":
            try:
                with client.with_lease(**step["args"]) as self.lease:
                    for inner in step["steps"]:
                        self.step(inner, client, server, clock, logged, started)
            except MisuseError as error:
                self.compare_result(expected, error)
        elif "lease" in step:
            try:
                result = self.lease.check(**step["lease"])
            except MisuseError as error:
                result = error
            self.compare_result(expected, result)
        elif "call" in step:
            for _ in range(step.get("repeat", 1)):
                slept = len(clock.slept)
                try:
                    result = call_of(client, step["call"], step["args"])
                except Exception as error:
                    result = error
                if expected:
                    if "slept_ms" in expected:
                        self.assertEqual(expected["slept_ms"], clock.slept[slept:])
                    self.compare_result(expected, result)
        elif "join" in step:
            result = started[step["join"]].join()
            self.compare_result(expected, result)
        elif "settle" in step or "inspect" in step:
            if "inspect" in step:
                client._leasing.round()
            eventually("no request of leases is under way", lambda: client._leasing.in_flight == 0)
        elif "close" in step:
            client.close()
        elif not common_step(step, client, server, clock):
            self.assertIsNotNone(expected, "an unknown step")
        if expected:
            self.compare_seen(expected, server, client, logged)


def inspect_by_hand(client):
    """The cases inspect leases on the virtual clock, and nothing else does."""
    client._leasing.inspect_seconds = 3600


def common_step(step, client, server, clock):
    if "await_requests" in step:
        server.await_requests(step["await_requests"])
    elif "await_waiting" in step:
        eventually("waiting checks", lambda: client.waiting == step["await_waiting"])
    elif "release" in step:
        server.tell("release")
    elif "advance_ms" in step:
        clock.advance(step["advance_ms"])
    elif "server" in step:
        server.tell(step["server"])
    else:
        return False
    return True


class AsyncSuite(SuiteTestCase):
    """The asyncio client."""

    def play(self, case):
        asyncio.run(self.play_async(case))

    async def play_async(self, case):
        clock = FakeClock()
        with ScriptedServer(case["server"], case.get("server_up", True)) as server, Logged() as logged:
            options = client_options(case.get("options", {}))
            async with AsyncClient(server.url, "weir_test_key", clock=clock, **options) as client:
                inspect_by_hand(client)
                started = {}
                for i, step in enumerate(case["steps"]):
                    with self.subTest(step=i):
                        await self.step(step, client, server, clock, logged, started)

    async def step(self, step, client, server, clock, logged, started):
        expected = step.get("expect")
        if "start" in step:
            call = call_of(client, step["call"], step["args"])
            started[step["start"]] = asyncio.create_task(call)
        elif step.get("call") == "with_lease":
            try:
                async with client.with_lease(**step["args"]) as self.lease:
                    for inner in step["steps"]:
                        await self.step(inner, client, server, clock, logged, started)
            except MisuseError as error:
                self.compare_result(expected, error)
        elif "lease" in step:
            self.compare_result(expected, await self.result_of(self.lease.check(**step["lease"])))
        elif "call" in step:
            for _ in range(step.get("repeat", 1)):
                slept = len(clock.slept)
                result = await self.result_of(call_of(client, step["call"], step["args"]))
                if expected:
                    if "slept_ms" in expected:
                        self.assertEqual(expected["slept_ms"], clock.slept[slept:])
                    self.compare_result(expected, result)
        elif "join" in step:
            result = await self.result_of(started[step["join"]])
            self.compare_result(expected, result)
        elif "cancel" in step:
            started[step["cancel"]].cancel()
        elif "await_waiting" in step:
            await eventually_async("waiting checks", lambda: client.waiting == step["await_waiting"])
        elif "settle" in step or "inspect" in step:
            if "inspect" in step:
                client._leasing.round()
            await eventually_async("no request of leases is under way", lambda: client._leasing.in_flight == 0)
        elif "close" in step:
            await client.close()
        # In a thread, so that the event loop continues with the calls that were started.
        elif not await asyncio.to_thread(common_step, step, client, server, clock):
            self.assertIsNotNone(expected, "an unknown step")
        if expected:
            await asyncio.to_thread(self.compare_seen, expected, server, client, logged)

    async def result_of(self, call):
        try:
            return await call
        except (Exception, asyncio.CancelledError) as error:
            return error


def add_cases():
    for file in FILES:
        cases = read_suite(file)["cases"]
        assert cases
        for case in cases:
            if "python" not in case.get("languages", ["python"]):
                continue
            name = f"test_{file}: {case['name']}"
            assert not hasattr(AsyncSuite, name), name
            setattr(AsyncSuite, name, lambda self, case=case: self.play(case))
            if not any("cancel" in step for step in case["steps"]):
                setattr(SyncSuite, name, lambda self, case=case: self.play(case))


add_cases()


class TablesTest(SuiteTestCase):
    def test_defaults(self):
        defaults = read_suite("options")["defaults"]
        for client in (Client("http://localhost:1", "key"), AsyncClient("http://localhost:1", "key")):
            core = client._core
            got = {
                "timeout_ms": core.timeout * 1000,
                "connect_timeout_ms": core.connect_timeout * 1000,
                "on_failure": core.on_failure,
                "local_share": _core.DEFAULT_LOCAL_SHARE,
                "breaker": core.breaker is not None,
                "denial_memory": core.memory is not None,
                "batching": client._batcher is not None,
                "leases": core.leases is not None,
                "max_idle_connections": _http.MAX_IDLE,
            }
            self.assertEqual(got, defaults)

    def test_limits(self):
        limits = {
            "breaker_window_ms": _breaker.WINDOW_MS,
            "breaker_min_calls": _breaker.MIN_CALLS,
            "breaker_failure_ratio": _breaker.FAILURE_RATIO,
            "breaker_refused_in_a_row": _breaker.REFUSED_IN_A_ROW,
            "breaker_probe_interval_ms": _breaker.PROBE_INTERVAL_MS,
            "memory_max_ms": _memory.MEMORY_MS,
            "memory_max_entries": _memory.MEMORY_ENTRIES,
            "batch_max_checks": 100,
            "answer_max_bytes": _core.MAX_ANSWER,
            "batch_answer_max_bytes": _core.MAX_BATCH_ANSWER,
        }
        self.assertEqual(read_suite("options")["limits"], limits)

    def test_refused_options(self):
        refused = read_suite("options")["refused"]
        self.assertTrue(refused)
        for kind in (Client, AsyncClient):
            for case in refused:
                with self.subTest(case["name"]), self.assertRaises(MisuseError) as raised:
                    kind(**{"url": "http://localhost:1", "key": "key", **case["options"]})
                self.assertEqual(case["field"], raised.exception.field)
                self.assertTrue(raised.exception.fix)
                self.assertIsNone(raised.exception.status)

    def test_headers(self):
        for case in read_suite("headers")["cases"]:
            with self.subTest(case["name"]):
                headers = {**case["existing"]}
                copy_headers(Decision(True, headers=case["decision"]), headers)
                self.assertEqual(case["expect"], headers)

    def test_hash(self):
        for case in read_suite("hash")["cases"]:
            self.assertEqual(case["expect"], hash_subject(expand(case["value"]), case.get("secret")))
        self.assertEqual("", hash_subject(None))
