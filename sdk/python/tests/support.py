"""Helpers of the tests: the scripted server, a controlled clock, and comparisons."""

import asyncio
import json
import logging
import os
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from unittest import TestCase

from weir_client import Check, Clock, MisuseError

PATIENCE = 30.0
"""The timeout of all waits in tests. Passing tests wait less."""

PACKAGE = Path(__file__).parent.parent


def read_suite(name):
    """A table of the behaviour suite, whose README describes the fields."""
    return json.loads((PACKAGE.parent / "suite" / f"{name}.json").read_text("utf-8"))


def environment(name):
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set: run make test-clients")
    return value


def eventually(what, holds):
    """Polls until a condition is true."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.002)


async def eventually_async(what, holds):
    """Like eventually, while the event loop continues."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not in time: {what}")
        await asyncio.sleep(0.001)


class ScriptedServer:
    """A scripted server. The command withscripted serves it, for all languages."""

    def __init__(self, script, up=True):
        servers = environment("WEIR_TEST_SCRIPTED") + "/servers"
        created = tell("POST", servers, {"server": script, "server_up": up})
        self.url = f"http://{created['address']}"
        self._control = f"{servers}/{created['id']}"

    def tell(self, what):
        tell("POST", f"{self._control}/{what}")

    def await_requests(self, n):
        tell("POST", f"{self._control}/await", {"requests": n})

    def seen(self):
        return tell("GET", self._control)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        seen = self.seen()
        tell("DELETE", self._control)
        if kind is None:
            assert not seen["problems"], seen["problems"]
            assert seen["unmet"] == 0, f"{seen['unmet']} actions of the script met no request"


def tell(method, url, body=None):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), method=method)
    with urllib.request.urlopen(request, timeout=2 * PATIENCE) as response:
        return json.load(response)


class FakeClock(Clock):
    """A clock that advances only explicitly and by sleeping."""

    def __init__(self):
        self._now = 1_800_000_000_000
        self.slept = []

    def now(self):
        return self._now

    def unix_ms(self):
        return self._now

    def advance(self, ms):
        self._now += ms

    def sleep(self, ms):
        self._now += ms
        self.slept.append(ms)

    async def sleep_async(self, ms):
        self.sleep(ms)


class Logged(logging.Handler):
    """Counts the log records of the client by level."""

    def __init__(self):
        super().__init__()
        self.levels = []

    def emit(self, record):
        self.levels.append(record.levelno)

    def count(self, level):
        return self.levels.count(level)

    def __enter__(self):
        logger = logging.getLogger("weir_client")
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *_):
        logging.getLogger("weir_client").removeHandler(self)


def client_options(options):
    return {"timeout_ms": 5000, "connect_timeout_ms": 5000, **options}


def expand(value):
    """Replaces the macros in a value."""
    if not isinstance(value, dict):
        return value
    if "$repeat" in value:
        text, n = value["$repeat"]
        return text * n
    if "$attributes" in value:
        return {f"a{i + 1}": "v" for i in range(value["$attributes"])}
    if "$checks" in value:
        return [{"subject": "user_42"}] * value["$checks"]
    return {name: expand(entry) for name, entry in value.items()}


def checks_of(value):
    """The checks of a batch."""
    return [Check(**expand(entry)) for entry in expand(value)]


def outcome_of(result):
    if isinstance(result, MisuseError):
        return "misuse"
    if isinstance(result, asyncio.CancelledError):
        return "cancelled"
    if isinstance(result, TimeoutError):
        return "deadline"
    if isinstance(result, BaseException):
        return f"the error {result!r}"
    fallback = result.source == "fallback"
    if fallback != (result.no_decision is not None):
        return "contradiction"
    return "no_decision" if fallback else "decision"


class SuiteTestCase(TestCase):
    """Compares the expectations of the suite with the results."""

    maxDiff = None

    def subset(self, path, want, got):
        """Compares the expected fields. null means null or missing."""
        if isinstance(want, dict):
            self.assertIsInstance(got, dict, path)
            for name, value in want.items():
                self.subset(f"{path}.{name}", value, got.get(name))
        elif isinstance(want, list):
            self.assertEqual(len(want), len(got), path)
            for i, (one, other) in enumerate(zip(want, got, strict=True)):
                self.subset(f"{path}[{i}]", one, other)
        else:
            self.assertEqual(want, got, path)

    def compare_result(self, expected, result):
        """Compares the result or the error of a call."""
        if "decisions" in expected:
            self.assertIsInstance(result, list)
            self.assertEqual(len(expected["decisions"]), len(result))
            for entry, decision in zip(expected["decisions"], result, strict=True):
                self._compare_entry(entry, decision)
            return
        self._compare_entry(expected, result)
        if "misuse" in expected:
            names = ("status", "code", "field", "fix", "detail", "request_id")
            self.assertIsInstance(result, MisuseError)
            self.subset("misuse", expected["misuse"], {name: getattr(result, name) for name in names})

    def _compare_entry(self, entry, result):
        if "outcome" in entry:
            self.assertEqual(entry["outcome"], outcome_of(result))
        if "decision" in entry:
            self.assertNotIsInstance(result, BaseException)
            fields = asdict(result)
            fields["error"] = fields.pop("denial")
            fields.pop("no_decision")
            self.subset("decision", entry["decision"], fields)
        causes = [name for name in entry if name.startswith("cause")]
        if causes:
            failure = result.no_decision
            self.assertIsNotNone(failure)
            got = {
                "cause": failure.cause,
                "cause_status": failure.status,
                "cause_code": failure.code,
                "cause_retry_after_ms": failure.retry_after_ms,
            }
            self.assertEqual({name: entry[name] for name in causes}, {name: got[name] for name in causes})

    def compare_request(self, want, got):
        if "method" in want:
            self.assertEqual(want["method"], got["method"])
        if "path" in want:
            self.assertEqual(want["path"], got["path"])
        for name, value in want.get("headers", {}).items():
            self.assertEqual([] if value is None else [value], got["headers"].get(name.lower(), []), name)
        if "body" in want:
            self.assertEqual(filled(want["body"]), filled(json.loads(got["body"])))

    def compare_seen(self, expected, server, client, logged):
        """Compares the observable state."""
        if "breaker" in expected:
            self.assertEqual(expected["breaker"], client.breaker_state)
        if "leased" in expected:
            self.assertEqual(expected["leased"], client.leased)
        if "warnings" in expected:
            self.assertEqual(expected["warnings"], logged.count(logging.WARNING))
        seen = server.seen()
        if "requests" in expected:
            self.assertEqual(expected["requests"], seen["requests"])
        for i, name in enumerate(("request", "request_before")):
            if name in expected:
                self.compare_request(expected[name], seen["latest"][i])


def filled(body):
    """Fills in the defaults of a check, or of the checks of a batch."""
    body = expand(body)
    if isinstance(body.get("checks"), list):
        return {**body, "checks": [filled(check) for check in body["checks"]]}
    return {"resource": "default", "cost": 1, "attributes": {}, "dry_run": False, "explain": False, **body}
