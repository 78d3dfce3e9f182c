"""Fakes of the clients, for tests of code that uses Weir. They need no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from ._check import Check
from ._client import Attributes
from ._decision import Decision, Denial
from ._errors import Cause, MisuseError, NoDecision
from ._headers import ceil_seconds

Answer = Decision | Exception
"""What a fake returns for one check: a decision, with the subject, resource and cost of the check, or an
error to raise."""


def allowed() -> Decision:
    """An allowed check of a rule "test" with 99 of 100 units left."""
    return Decision(
        allowed=True,
        rule="test",
        limit=100,
        remaining=99,
        retry_after_ms=0,
        reset_after_ms=60_000,
        headers={"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99"},
    )


def delayed(delay_ms: int) -> Decision:
    """An allowed check for which the caller must wait."""
    return replace(allowed(), delay_ms=delay_ms)


def denied(retry_after_ms: int) -> Decision:
    """A denied check that may be allowed after a time."""
    seconds = ceil_seconds(retry_after_ms)
    return replace(
        allowed(),
        allowed=False,
        remaining=0,
        retry_after_ms=retry_after_ms,
        reset_after_ms=retry_after_ms,
        denial=Denial("RATE_LIMIT_EXCEEDED", "Rate limit exceeded.", seconds),
        headers={"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "Retry-After": str(seconds)},
    )


def no_decision(cause: Cause, on_failure: str = "allow") -> Decision:
    """What a client with on_failure "allow" or "deny" returns if the server has not decided."""
    deny = on_failure == "deny"
    return Decision(
        allowed=not deny,
        source="fallback",
        degraded=True,
        denial=Denial("LIMITER_UNAVAILABLE", "The rate limiter is unavailable.") if deny else None,
        no_decision=NoDecision(cause),
    )


def misuse(code: str) -> MisuseError:
    """A misuse."""
    return MisuseError(422, code)


class Fake:
    """Gives the configured answers and records the checks."""

    def __init__(self, answer: Callable[[Check], Answer]) -> None:
        self.asked: list[Check] = []
        """The checks so far, in order. A peek has cost 0."""
        self.held: list[int] = []
        """The delays of wait, in milliseconds. The fake does not wait."""
        self._answer = answer

    @classmethod
    def allow_all(cls) -> Fake:
        """A fake that allows every check."""
        return cls(lambda _: allowed())

    @classmethod
    def deny_all(cls) -> Fake:
        """A fake that denies every check, with a retry after one minute."""
        return cls(lambda _: denied(60_000))

    @classmethod
    def script(cls, *answers: Answer) -> Fake:
        """A fake that gives these answers in order. It raises an AssertionError for further checks."""
        left = list(answers)

        def answer(check: Check) -> Answer:
            assert left, f"the script has no answer left for the check of {check.subject}"
            return left.pop(0)

        return cls(answer)

    def check(
        self,
        subject: str,
        resource: str | None = None,
        cost: int | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> Decision:
        cost = 1 if cost is None else cost
        check = Check(subject, resource or "default", cost, plan, attributes, idempotency_key)
        self.asked.append(check)
        answer = self._answer(check)
        if isinstance(answer, Exception):
            raise answer
        return replace(answer, subject=subject, resource=resource or "default", cost=cost)

    def peek(self, subject: str, resource: str | None = None, *args: Any, **more: Any) -> Decision:
        return self.check(subject, resource, 0, *args, **more)

    def explain(self, *args: Any, **more: Any) -> Decision:
        return self.check(*args, **more)

    def wait(self, *args: Any, max_wait_ms: float | None = None, **more: Any) -> Decision:
        """Answers like check, without waiting."""
        return self.check(*args, **more)

    def check_batch(self, checks: Sequence[Check], *, traceparent: str | None = None) -> list[Decision]:
        return [self.check(c.subject, c.resource, c.cost, c.plan, c.attributes) for c in checks]

    @contextmanager
    def with_lease(
        self,
        subject: str,
        resource: str | None = None,
        *,
        units: int,
        plan: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[FakeLease]:
        """Gives a lease whose checks are answered like check."""
        yield FakeLease(lambda cost: self.check(subject, resource, cost, plan, attributes))

    def hold(self, decision: Decision) -> None:
        if decision.allowed and decision.delay_ms:
            self.held.append(decision.delay_ms)

    def asynchronous(self) -> AsyncFake:
        """The same fake for code that uses AsyncClient."""
        return AsyncFake(self)


class FakeLease:
    """The lease of a fake. It holds no units: its checks are answered like check."""

    left = 0

    def __init__(self, ask: Callable[[int | None], Decision]) -> None:
        self._ask = ask

    def check(self, cost: int | None = None, *, traceparent: str | None = None) -> Decision:
        return self._ask(cost)


class AsyncFakeLease:
    """The lease of an AsyncFake."""

    left = 0

    def __init__(self, lease: FakeLease) -> None:
        self._lease = lease

    async def check(self, cost: int | None = None, *, traceparent: str | None = None) -> Decision:
        return self._lease.check(cost)


class AsyncFake:
    """A fake with the calls of AsyncClient. Fake.asynchronous makes one."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    async def check(self, *args: Any, **more: Any) -> Decision:
        return self._fake.check(*args, **more)

    async def peek(self, *args: Any, **more: Any) -> Decision:
        return self._fake.peek(*args, **more)

    async def explain(self, *args: Any, **more: Any) -> Decision:
        return self._fake.explain(*args, **more)

    async def wait(self, *args: Any, **more: Any) -> Decision:
        return self._fake.wait(*args, **more)

    async def check_batch(self, checks: Sequence[Check], *, traceparent: str | None = None) -> list[Decision]:
        return self._fake.check_batch(checks)

    @asynccontextmanager
    async def with_lease(self, *args: Any, **more: Any) -> AsyncIterator[AsyncFakeLease]:
        with self._fake.with_lease(*args, **more) as lease:
            yield AsyncFakeLease(lease)

    async def hold(self, decision: Decision) -> None:
        self._fake.hold(decision)
