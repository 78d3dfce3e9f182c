"""Tests beyond the suite: faults under load, cancellation, hooks, the fake, and HTTP itself."""

import asyncio
import os
import pickle
import threading
import unittest
from unittest import mock

from weir_client import AsyncClient, Begun, Check, Client, Hooks, MisuseError
from weir_client._clock import Clock
from weir_client._errors import Undecided
from weir_client._http import Reading, _Malformed, failed
from weir_client.otel import OtelHooks
from weir_client.testing import Fake, allowed, delayed, denied, misuse, no_decision

from .support import PATIENCE, FakeClock, Logged, ScriptedServer, eventually

CALLERS = 1000
FAULTS = {
    "hangs": ({"fault": "hang"}, {"timeout_ms": 200, "breaker": False}),
    "hangs, with batching": ({"fault": "hang"}, {"timeout_ms": 200, "breaker": False, "batching": True}),
    "hangs within its answer": ({"use": "allowed", "fault": "hang_in_body"}, {"timeout_ms": 200, "breaker": False}),
    "is slow": ({"use": "allowed", "hold": True}, {"timeout_ms": 200, "breaker": False}),
    "is dead": (None, {"breaker": False}),
    "is dead, with the breaker": (None, {}),
    "crashes": ({"fault": "reset"}, {"breaker": False}),
    "cuts its answers off": ({"use": "allowed", "fault": "cut_body"}, {"breaker": False}),
    "says that the tenant is over its quota": ("quota", {}),
    "fails": ("internal", {"breaker": False}),
    "answers nonsense": ({"fault": "garbage"}, {"breaker": False}),
    "answers another document": ({"status": 200, "body": "<html>"}, {"breaker": False}),
}
"""What the server does with each request, None if it does not listen, and the options of the client."""


def script_of(action):
    if action is None:
        return []
    action = {"use": action} if isinstance(action, str) else action
    return [{**action, "repeat": CALLERS, "optional": True}]


def long(**options):
    return {"timeout_ms": PATIENCE * 1000, "connect_timeout_ms": PATIENCE * 1000, **options}


def open_files():
    return len(os.listdir("/proc/self/fd"))


class LongSleepTest(unittest.TestCase):
    """The longest delay that an answer can have holds the caller. It raises nothing."""

    def test_threads(self):
        with mock.patch("time.sleep") as sleep:
            Clock().sleep(2**63 - 1)
        self.fits(sleep)

    def test_tasks(self):
        with mock.patch("asyncio.sleep") as sleep:
            asyncio.run(Clock().sleep_async(2**63 - 1))
        self.fits(sleep)

    def fits(self, sleep):
        (seconds,) = sleep.call_args.args
        self.assertGreater(seconds, 10**9)
        self.assertLess(seconds * 10**9, 2**63)  # Python counts nanoseconds


class ManyCallersTest(unittest.TestCase):
    """No thread, task or connection remains after a thousand concurrent callers."""

    def test_threads(self):
        for name, (action, options) in FAULTS.items():
            with self.subTest(name), ScriptedServer(script_of(action), action is not None) as server, Logged():
                files, threads = open_files(), threading.active_count()
                client = Client(server.url, "weir_test_key", **long(**options))
                decisions = []
                callers = [
                    threading.Thread(target=lambda i=i: decisions.append(client.check(f"user_{i}")))
                    for i in range(CALLERS)
                ]
                for caller in callers:
                    caller.start()
                for caller in callers:
                    caller.join(PATIENCE)
                self.assertEqual(CALLERS, len(decisions))
                self.assertTrue(all(d.allowed and d.no_decision for d in decisions))
                self.assertEqual(0, client.waiting)
                client.close()
                self.assertEqual((files, threads), (open_files(), threading.active_count()))

    def test_tasks(self):
        for name, (action, options) in FAULTS.items():
            with self.subTest(name), ScriptedServer(script_of(action), action is not None) as server, Logged():
                files = open_files()
                asyncio.run(self.ask_all(server, options))
                self.assertEqual(files, open_files())

    async def ask_all(self, server, options):
        client = AsyncClient(server.url, "weir_test_key", **long(**options))
        decisions = await asyncio.gather(*(client.check(f"user_{i}") for i in range(CALLERS)))
        self.assertTrue(all(d.allowed and d.no_decision for d in decisions))
        self.assertEqual(0, client.waiting)
        until = asyncio.get_running_loop().time() + PATIENCE
        while len(asyncio.all_tasks()) > 1 and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0)
        self.assertEqual(1, len(asyncio.all_tasks()))
        await client.close()

    RESTART = [{"use": "allowed", "hold": True, "repeat": CALLERS + 1, "optional": True}]

    def test_threads_and_a_restart(self):
        """All callers wait for a server that stops. The client is usable when it is back."""
        for batching in (False, True):
            with self.subTest(batching=batching), ScriptedServer(self.RESTART) as server, Logged():
                files, threads = open_files(), threading.active_count()
                client = Client(server.url, "weir_test_key", **long(breaker=False, batching=batching))
                decisions = []
                callers = [
                    threading.Thread(target=lambda i=i: decisions.append(client.check(f"user_{i}")))
                    for i in range(CALLERS)
                ]
                for caller in callers:
                    caller.start()
                server.await_requests(1 if batching else CALLERS // 10)
                server.tell("down")
                for caller in callers:
                    caller.join(PATIENCE)
                causes = {decision.no_decision.cause for decision in decisions}
                self.assertLessEqual(causes, {"connection_lost", "connection_refused"})
                self.assertEqual(CALLERS, len(decisions))
                server.tell("up")
                server.tell("release")
                self.assertIsNone(client.check("user_42").no_decision)
                client.close()
                self.assertEqual((files, threads), (open_files(), threading.active_count()))

    def test_tasks_and_a_restart(self):
        asyncio.run(self.restart())

    async def restart(self):
        files = open_files()
        with ScriptedServer(self.RESTART) as server, Logged():
            async with AsyncClient(server.url, "weir_test_key", **long(breaker=False)) as client:
                callers = [asyncio.create_task(client.check(f"user_{i}")) for i in range(CALLERS)]
                await asyncio.to_thread(server.await_requests, CALLERS // 10)
                await asyncio.to_thread(server.tell, "down")
                decisions = await asyncio.gather(*callers)
                self.assertEqual({"connection_lost", "connection_refused"}, {d.no_decision.cause for d in decisions} | {"connection_refused"})
                await asyncio.to_thread(server.tell, "up")
                await asyncio.to_thread(server.tell, "release")
                self.assertIsNone((await client.check("user_42")).no_decision)
                self.assertEqual(1, len(asyncio.all_tasks()))
        self.assertLessEqual(open_files(), files + 3)  # the executor of asyncio and its event loop


class BatchingTest(unittest.TestCase):
    def test_threads_share_requests(self):
        results = [["allowed", {"subject": "b"}], ["allowed", {"subject": "c"}]]
        batch = {"status": 200, "headers": {"Weir-Decision": "allow"}, "results": results}
        with ScriptedServer([{"use": "allowed", "hold": True}, batch]) as server:
            client = Client(server.url, "weir_test_key", batching=True, **long())
            callers = []
            for i, subject in enumerate("abc"):
                callers.append(threading.Thread(target=client.check, args=(subject,)))
                callers[-1].start()
                if i == 0:
                    server.await_requests(1)
                else:
                    eventually("a waiting check", lambda i=i: client.waiting == i)
            server.tell("release")
            for caller in callers:
                caller.join(PATIENCE)
            client.close()

    def test_an_interrupted_caller_is_not_sent(self):
        class Interrupt(BaseException):
            pass

        with ScriptedServer([{"use": "allowed", "hold": True}]) as server:
            client = Client(server.url, "weir_test_key", batching=True, **long())
            first = threading.Thread(target=client.check, args=("a",))
            first.start()
            server.await_requests(1)
            batcher = client._batcher
            wait = threading.Event.wait

            def interrupted(event, timeout=None):
                if threading.current_thread() is threading.main_thread():
                    raise Interrupt
                return wait(event, timeout)

            threading.Event.wait = interrupted
            try:
                with self.assertRaises(Interrupt):
                    client.check("b")
            finally:
                threading.Event.wait = wait
            self.assertEqual(0, batcher.waiting)
            server.tell("release")
            first.join(PATIENCE)
            client.close()


class DelayTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_delay_is_held_until_the_caller_cancels(self):
        with ScriptedServer([{"use": "delayed", "body": {"delay_ms": 10**9}}]) as server:
            async with AsyncClient(server.url, "weir_test_key", **long()) as client:
                call = asyncio.create_task(client.wait("user_42"))
                await asyncio.to_thread(server.await_requests, 1)
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call

    async def test_a_real_clock(self):
        decision = delayed(1)
        await AsyncClient("http://localhost:1", "key").hold(decision)
        Client("http://localhost:1", "key").hold(decision)


class Recorder(Hooks):
    def __init__(self):
        self.calls = []
        self.results = []
        self.changes = []

    def begin(self, call):
        self.calls.append(call.name)
        return Begun({"traceparent": "of the hook"}, self.results.append)

    def breaker_changed(self, before, after):
        self.changes.append(f"{before} {after}")


class HooksTest(unittest.TestCase):
    SCRIPT = ["allowed", "denied", "unknown_key", {"use": "internal", "repeat": 17}, "allowed"]
    CHANGES = ["closed open", "open half_open", "half_open closed"]

    def compare(self, recorder, server):
        self.assertEqual(self.CHANGES, recorder.changes)
        self.assertEqual(["check", "check", "peek", "batch"] + ["explain"] * 17 + ["check"], recorder.calls)
        first, second, third, fourth, *_ = recorder.results
        self.assertTrue(first.decisions[0].allowed)
        self.assertFalse(second.decisions[0].allowed)
        self.assertIsInstance(third.error, MisuseError)
        self.assertIsInstance(fourth.error, MisuseError)
        self.assertTrue(all(result.duration_ms >= 0 for result in recorder.results))
        self.assertEqual(["of the hook"], server.seen()["latest"][0]["headers"]["traceparent"])

    def test_threads(self):
        recorder, clock = Recorder(), FakeClock()
        with ScriptedServer(self.SCRIPT) as server, Logged():
            with Client(server.url, "weir_test_key", clock=clock, hooks=[recorder, Hooks()], **long()) as client:
                client.check("a")
                client.check("b")
                self.assertRaises(MisuseError, client.peek, "c")
                self.assertRaises(MisuseError, client.check_batch, [])
                for _ in range(17):
                    client.explain("d")
                clock.advance(200)
                client.wait("a")
            self.compare(recorder, server)

    def test_tasks(self):
        asyncio.run(self.ask())

    async def ask(self):
        recorder, clock = Recorder(), FakeClock()
        with ScriptedServer(self.SCRIPT) as server, Logged():
            async with AsyncClient(server.url, "weir_test_key", clock=clock, hooks=[recorder], **long()) as client:
                await client.check("a")
                await client.check("b")
                for call in (client.peek("c"), client.check_batch([])):
                    with self.assertRaises(MisuseError):
                        await call
                for _ in range(17):
                    await client.explain("d")
                clock.advance(200)
                await client.wait("a")
            self.compare(recorder, server)


class Span:
    """Records the calls of an OpenTelemetry span. Debian has no package of the real one."""

    is_valid, trace_id, span_id, trace_flags = True, 0xABC, 0xDEF, 1

    class trace_state(dict):
        def to_header(self):
            return "vendor=1"

    trace_state = trace_state(vendor=1)

    def __init__(self, name, attributes):
        self.name, self.attributes, self.exceptions, self.ended = name, dict(attributes), [], False

    def get_span_context(self):
        return self

    def set_attributes(self, attributes):
        self.attributes.update(attributes)

    def record_exception(self, error):
        self.exceptions.append(error)

    def end(self):
        self.ended = True


class Telemetry:
    """Records the calls of a tracer and a meter."""

    def __init__(self):
        self.spans, self.points = [], []

    def start_span(self, name, attributes, kind=None):
        self.spans.append(Span(name, attributes))
        return self.spans[-1]

    def create_histogram(self, name, unit, description):
        return self._instrument(name)

    create_counter = create_histogram

    def _instrument(self, name):
        telemetry = self

        class Instrument:
            def add(self, value, attributes=None):
                telemetry.points.append((name, value, attributes))

            def record(self, value, attributes):
                telemetry.points.append((name, attributes["weir.outcome"]))

        return Instrument()


class OtelTest(unittest.TestCase):
    def test_spans_and_metrics(self):
        telemetry = Telemetry()
        hooks = OtelHooks(telemetry, telemetry, {"kind": "client"})
        with ScriptedServer(["allowed", {"use": "internal", "repeat": 19}]) as server, Logged():
            with Client(server.url, "weir_test_key", hooks=[hooks], clock=FakeClock(), **long()) as client:
                client.check("user_42")
                headers = server.seen()["latest"][0]["headers"]
                self.assertEqual([f"00-{0xabc:032x}-{0xdef:016x}-01"], headers["traceparent"])
                self.assertEqual(["vendor=1"], headers["tracestate"])
                self.assertRaises(MisuseError, client.check, "")
                for _ in range(20):
                    client.check("user_42")
                self.assertEqual(1, len(client.check_batch([Check("a"), Check("b")])[:1]))
        first, second, *_ = telemetry.spans
        self.assertEqual("weir check", first.name)
        self.assertTrue(all(span.ended for span in telemetry.spans))
        wanted = {"weir.checks": 1, "weir.outcome": "allowed", "weir.source": "server", "weir.rule": "api"}
        self.assertEqual(wanted, first.attributes)
        self.assertIsInstance(second.exceptions[0], MisuseError)
        self.assertEqual("misuse", second.attributes["weir.outcome"])
        counted = [point for point in telemetry.points if point[0] == "weir.client.checks"]
        self.assertEqual({"weir.outcome": "allowed", "weir.source": "server"}, counted[0][2])
        self.assertEqual({"weir.outcome": "misuse"}, counted[1][2])
        fallback = {"weir.outcome": "allowed", "weir.source": "fallback", "weir.cause": "breaker_open"}
        self.assertEqual(fallback, counted[-1][2])
        self.assertEqual(1, sum(point[0] == "weir.client.breaker.openings" for point in telemetry.points))
        outcomes = [point[1] for point in telemetry.points if point[0] == "weir.client.duration"]
        self.assertEqual(["decision", "misuse"] + ["no_decision"] * 21, outcomes)

    def test_without_parts(self):
        with ScriptedServer(["allowed"]) as server:
            with Client(server.url, "weir_test_key", hooks=[OtelHooks()], **long()) as client:
                self.assertTrue(client.check("user_42").allowed)


class FakeTest(unittest.TestCase):
    def test_it_answers_as_told_and_records(self):
        fake = Fake.script(
            allowed(), denied(1500), delayed(20), no_decision("timeout"), no_decision("timeout", "deny"), misuse("X")
        )
        self.assertEqual(3, fake.check("a", cost=3).cost)
        second, third = fake.check_batch([Check("b"), Check("c", "r")])
        got = second.allowed, second.retry_after_ms, second.denial.retry_after, second.headers["Retry-After"]
        self.assertEqual((False, 1500, 2, "2"), got)
        fake.hold(third)
        self.assertEqual([20], fake.held)
        self.assertEqual("timeout", fake.peek("d").no_decision.cause)
        self.assertEqual("LIMITER_UNAVAILABLE", fake.wait("e", max_wait_ms=5).denial.code)
        self.assertRaises(MisuseError, fake.explain, "f")
        self.assertRaises(AssertionError, fake.check, "g")
        asked = [(check.subject, check.resource, check.cost) for check in fake.asked[:4]]
        self.assertEqual([("a", "default", 3), ("b", "default", 1), ("c", "r", 1), ("d", "default", 0)], asked)
        self.assertTrue(Fake.allow_all().check("a").allowed)
        self.assertFalse(Fake.deny_all().check("a").allowed)

    def test_asynchronous(self):
        fake = Fake.script(allowed(), allowed(), allowed(), denied(5), delayed(7))
        asyncio.run(self.ask(fake.asynchronous()))
        self.assertEqual([7], fake.held)

    async def ask(self, fake):
        for call in (fake.check("a"), fake.peek("b"), fake.explain("c")):
            self.assertTrue((await call).allowed)
        self.assertFalse((await fake.wait("d")).allowed)
        await fake.hold((await fake.check_batch([Check("e")]))[0])


class MessagesTest(unittest.TestCase):
    def test_an_error_says_what_is_wrong_and_what_to_do(self):
        with self.assertRaises(MisuseError) as raised:
            Client("http://localhost:1", "key").check("")
        message = (
            "INVALID_REQUEST: subject is empty. Pass 1 to 256 bytes of UTF-8 without control characters. "
            "hash_subject shortens longer values and hides secrets."
        )
        self.assertEqual(message, str(raised.exception))
        self.assertEqual(message, str(pickle.loads(pickle.dumps(raised.exception))))
        self.assertEqual("status 404: the answer is not from Weir; check the URL", str(MisuseError(404, "")))

    def test_values_of_wrong_types(self):
        client = Client("http://localhost:1", "key")
        for arguments, field in (
            ({"plan": 5}, "/plan"),
            ({"plan": "a\ud800"}, "/plan"),
            ({"attributes": "ip"}, "/attributes"),
            ({"attributes": {5: "a"}}, "/attributes/5"),
            ({"cost": True}, "/cost"),
            ({"resource": 5}, "/resource"),
        ):
            with self.subTest(arguments), self.assertRaises(MisuseError) as raised:
                client.check("user_42", **arguments)
            self.assertEqual(field, raised.exception.field)

    def test_answers_of_wrong_types(self):
        wrong = [{"limit": "many"}, {"cost": 1.5}, {"rules": {}}, {"rules": ["api"]}, {"error": "no"}, {"plan": 5}]
        with ScriptedServer([{"use": "allowed", "body": body} for body in wrong]) as server:
            with Client(server.url, "weir_test_key", **long()) as client:
                for body in wrong:
                    self.assertEqual("invalid_answer", client.check("user_42").no_decision.cause, body)


def read(*pieces, most=100):
    reading = Reading(most)
    for piece in pieces:
        reading.feed(piece)
    return reading


class ReadingTest(unittest.TestCase):
    """Answers in the forms that servers and proxies send."""

    def compare(self, whole, status, body, keep_alive, ends=()):
        for pieces in ((whole,), tuple(whole[i : i + 1] for i in range(len(whole)))):
            reading = read(*pieces, *ends)
            self.assertEqual((status, body), (reading.answer.status, reading.answer.body))
            self.assertEqual(keep_alive, reading.keep_alive)

    def test_whole_answers(self):
        self.compare(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True)
        self.compare(b"HTTP/1.1 200\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", 200, b"", False)
        self.compare(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True)
        self.compare(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False)
        self.compare(b"HTTP/1.1 200 OK\r\n\r\nok", 200, b"ok", False, (b"",))
        early = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
        self.compare(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True)
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.compare(chunked + b"2\r\nok\r\n0A;x=y\r\n0123456789\r\n0\r\nTrailer: a\r\n\r\n", 200, b"ok0123456789", True)

    def test_headers(self):
        reading = read(b"HTTP/1.1 200 OK\r\nA:  b \r\na: c\r\nContent-Length: 0\r\n\r\n")
        self.assertEqual("b, c", reading.answer.headers["a"])

    def test_more_than_was_asked_for(self):
        self.assertFalse(read(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK").keep_alive)

    def test_nonsense(self):
        head = b"HTTP/1.1 200 OK\r\n"
        for whole in (
            b"SSH-2.0",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            head + b"no colon\r\n\r\n",
            head + b"Content-Length: two\r\n\r\n",
            head + b"Content-Length: -1\r\n\r\n",
            head + b"Transfer-Encoding: gzip\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc",
            b"HTTP/1.1 200 OK\r\nA: " + b"a" * (70 << 10),
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * (70 << 10),
        ):
            with self.subTest(whole[:60]), self.assertRaises(_Malformed) as raised:
                read(whole)
            self.assertEqual("invalid_answer", failed(raised.exception, None).failure.cause)

    def test_too_long(self):
        for whole in (
            b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 101,
        ):
            with self.subTest(whole[:60]), self.assertRaises(Undecided) as raised:
                read(whole)
            self.assertEqual("invalid_answer", raised.exception.failure.cause)

    def test_cut_off(self):
        for whole in (b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"):
            with self.subTest(whole), self.assertRaises(ConnectionResetError):
                read(*([whole] if whole else []), b"")
