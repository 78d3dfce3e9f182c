from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Protocol, TypeVar

from ._breaker import BreakerState
from ._check import MAX_BATCH, Check, Question, ask, ask_batch
from ._client import MAX_BATCH_BYTES, Attributes
from ._clock import Clock
from ._core import (
    BREAKER_OPEN,
    DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_LOCAL_SHARE,
    DEFAULT_ON_FAILURE,
    DEFAULT_TIMEOUT_MS,
    MAX_ANSWER,
    MAX_BATCH_ANSWER,
    TIMED_OUT,
    Core,
    OnFailure,
    batch_bytes,
    refuse_key,
    refused_for_one,
)
from ._decision import Decision
from ._errors import MisuseError, NoDecision, Undecided
from ._fork import after_fork
from ._hooks import Call, Hooks, Telling
from ._http import AsyncConnections
from ._lease_answer import LeaseAnswer
from ._lease import Block
from ._leases import Held, Job
from ._leasing import Tasks
from ._returns import Return


_T = TypeVar("_T")


class AsyncChecker(Protocol):
    """Answers checks. It is implemented by AsyncClient and by the fake for tests."""

    async def check(
        self,
        subject: str,
        resource: str | None = None,
        cost: int | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> Decision: ...

    async def hold(self, decision: Decision) -> None: ...


class AsyncLease(Block):
    """The units of with_lease."""

    def __init__(self, client: AsyncClient, check: Check, held: Held | None) -> None:
        super().__init__(check, held, client._core.clock)
        self._client = client

    async def check(self, cost: int | None = None, *, traceparent: str | None = None) -> Decision:
        """Decides a check. If the lease has too few units, or has ended, the check is sent."""
        check, question = self._costing(cost)
        decision = self._take(question)
        if decision is None:
            return await self._client._single("check", check, traceparent)
        Telling(self._client._core.hooks, Call("check", (check,)), traceparent).end((decision,))
        return decision


class AsyncClient:
    """A client of one server with one key, for asyncio. Its options are those of Client.

    Use it in one event loop. A cancelled call raises CancelledError, as usual in asyncio.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        connect_timeout_ms: float = DEFAULT_CONNECT_TIMEOUT_MS,
        on_failure: OnFailure = DEFAULT_ON_FAILURE,
        local_share: float = DEFAULT_LOCAL_SHARE,
        breaker: bool = True,
        denial_memory: bool = True,
        batching: bool = False,
        leases: bool = False,
        hooks: Sequence[Hooks] = (),
        clock: Clock | None = None,
    ) -> None:
        self._core = Core(
            url,
            key,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            on_failure=on_failure,
            local_share=local_share,
            breaker=breaker,
            denial_memory=denial_memory,
            leases=leases,
            hooks=hooks,
            clock=clock,
        )
        self._connections = AsyncConnections(self._core.address, self._core.connect_timeout)
        self._batcher = _Batcher(self) if batching else None
        self._leasing = Tasks(self._core.returns, self._core.leases, self._send_lease)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Returns leased units and closes idle connections. The client stays usable, without leases."""
        await self._leasing.close()
        await self._connections.close()

    @property
    def breaker_state(self) -> BreakerState:
        """The state of the circuit breaker."""
        return self._core.breaker_state

    @property
    def waiting(self) -> int:
        """The number of checks that wait for a batch."""
        return self._batcher.waiting if self._batcher else 0

    @property
    def leased(self) -> int:
        """The number of kinds of checks for which units are leased."""
        return self._core.leases.size if self._core.leases else 0

    async def check(
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
        """Asks whether the subject may proceed, and counts the check if it is allowed."""
        check = Check(subject, resource, cost, plan, attributes, idempotency_key)
        return await self._single("check", check, traceparent)

    async def peek(
        self,
        subject: str,
        resource: str | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        traceparent: str | None = None,
    ) -> Decision:
        """Returns the current state and takes nothing."""
        return await self._single("peek", Check(subject, resource, None, plan, attributes), traceparent)

    async def explain(
        self,
        subject: str,
        resource: str | None = None,
        cost: int | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        traceparent: str | None = None,
    ) -> Decision:
        """Returns the answer that check would return, consumes nothing, and lists the skipped rules."""
        check = Check(subject, resource, cost, plan, attributes)
        return await self._single("explain", check, traceparent)

    async def check_batch(self, checks: Sequence[Check], *, traceparent: str | None = None) -> list[Decision]:
        """Sends up to 100 checks in one request, like Client.check_batch."""
        telling = Telling(self._core.hooks, Call("batch", checks), traceparent)
        try:
            questions = ask_batch(checks)
            until = time.monotonic() + self._core.timeout
            answer = await self._ask_together(questions, telling.headers, until)
        except BaseException as error:
            telling.end(None, error)
            raise
        if isinstance(answer, NoDecision):
            answer = [self._core.fallback(question, answer) for question in questions]
        else:
            for question, decision in zip(questions, answer, strict=True):
                self._core.learn_limits(question, decision)
        telling.end(answer)
        return answer

    async def wait(
        self,
        subject: str,
        resource: str | None = None,
        cost: int | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        max_wait_ms: float | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> Decision:
        """Repeats a check until it is allowed, waits for the delay of a queue, and returns.

        max_wait_ms and the errors are those of Client.wait.
        """
        refuse_key(idempotency_key)
        core = self._core
        until = core.wait_until(max_wait_ms)
        while True:
            decision = await self.check(subject, resource, cost, plan, attributes, traceparent=traceparent)
            if decision.allowed:
                core.require_fitting_delay(decision, until)
                await self.hold(decision)
                return decision
            pause = core.pause_after(decision, until)
            if pause is None:
                return decision
            await core.clock.sleep_async(pause)

    @asynccontextmanager
    async def with_lease(
        self,
        subject: str,
        resource: str | None = None,
        *,
        units: int,
        plan: str | None = None,
        attributes: Attributes | None = None,
    ) -> AsyncIterator[AsyncLease]:
        """Takes units for an async with block, like Client.with_lease."""
        check = Check(subject, resource, None, plan, attributes)
        asked = self._core.ask_lease(check, units)
        answer = await self._send_lease(asked)
        lease = AsyncLease(self, check, self._core.hold_lease(asked, answer))
        if lease._held is not None:
            self._leasing.hold(lease)
        try:
            yield lease
        finally:
            await self._leasing.end(lease, self._return_lease)

    async def _return_lease(self, back: Return) -> LeaseAnswer | None:
        """The server counts a return once, so it is sent again if its connection failed."""
        answer = await self._send_lease(back)
        if isinstance(answer, NoDecision) and answer.cause in ("connection_lost", "connection_refused"):
            answer = await self._send_lease(back)
        return answer

    async def hold(self, decision: Decision) -> None:
        """Waits for the delay of an allowed decision, if it has one. The middleware calls it."""
        if decision.allowed and decision.delay_ms:
            await self._core.clock.sleep_async(decision.delay_ms)

    async def _single(
        self, name: Literal["check", "peek", "explain"], check: Check, traceparent: str | None
    ) -> Decision:
        telling = Telling(self._core.hooks, Call(name, (check,)), traceparent)
        try:
            decision = await self._answer(ask(check, name), telling.headers)
        except BaseException as error:
            telling.end(None, error)
            raise
        telling.end((decision,))
        return decision

    async def _answer(self, question: Question, headers: Mapping[str, str]) -> Decision:
        """Answers one question: from memory, by the server, or by the fallback."""
        remembered = self._core.recall(question)
        if remembered is not None:
            return remembered
        until = time.monotonic() + self._core.timeout
        self._adopt_loop()
        if self._batcher is None or question.alone:
            return await self._ask(question, headers, until)
        if self._core.blocked():
            return self._core.fallback(question, BREAKER_OPEN)
        return await self._batcher.ask(question, headers, until)

    def _adopt_loop(self) -> None:
        """Leaves an event loop that has ended: its requests may never end."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        before, self._loop = self._loop, loop
        if before is None or before.is_running():
            return
        if self._batcher is not None:
            self._batcher.forget()
        self._core.interrupted()

    async def _ask(self, question: Question, headers: Mapping[str, str], until: float) -> Decision:
        """Sends one question."""
        core = self._core
        sent_at = core.clock.now()
        decision = await self._counted(lambda: self._send(question, core.check_request(question, headers), until))
        if isinstance(decision, NoDecision):
            return core.fallback(question, decision)
        core.learn(question, decision, sent_at)
        return decision

    async def _counted(self, send: Callable[[], Awaitable[_T]]) -> _T | NoDecision:
        """Sends if the breaker allows it, and reports the result to it."""
        core = self._core
        self._adopt_loop()
        ticket = core.enter()
        if ticket is None:
            return BREAKER_OPEN
        try:
            answer = await send()
        except Undecided as error:
            core.undecided(ticket, error.failure)
            return error.failure
        except MisuseError:
            core.answered(ticket)
            raise
        except BaseException:
            core.cancelled(ticket)
            raise
        core.answered(ticket)
        return answer

    async def _send(self, question: Question, request: bytes, until: float) -> Decision:
        """Sends once more if there is an idempotency key and the connection failed before an answer began."""
        try:
            answer = await self._connections.exchange(request, until, MAX_ANSWER)
        except Undecided as error:
            if not (error.resendable and question.idempotency_key):
                raise
            answer = await self._connections.exchange(request, until, MAX_ANSWER)
        return self._core.read_check(answer)

    async def _ask_together(
        self, questions: Sequence[Question], headers: Mapping[str, str], until: float
    ) -> list[Decision] | NoDecision:
        """Sends one batch."""
        return await self._counted(lambda: self._exchange_batch(questions, headers, until))

    async def _exchange_batch(
        self, questions: Sequence[Question], headers: Mapping[str, str], until: float
    ) -> list[Decision]:
        request = self._core.batch_request(questions, headers)
        answer = await self._connections.exchange(request, until, MAX_BATCH_ANSWER)
        return self._core.read_batch(answer, len(questions))

    async def _send_lease(self, job: Job) -> LeaseAnswer | None:
        """Requests or returns units of a lease."""
        return await self._counted(lambda: self._exchange_lease(job))

    async def _exchange_lease(self, job: Job) -> LeaseAnswer | None:
        until = time.monotonic() + self._core.timeout
        answer = await self._connections.exchange(self._core.lease_request(job), until, MAX_ANSWER)
        return self._core.read_lease(job, answer)


class _Waiter:
    """A check that waits to be sent, and then for its answer."""

    def __init__(self, question: Question, until: float) -> None:
        self.question = question
        self.until = until
        self.size = batch_bytes(question)
        self.answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

    def decide(self, decision: Decision) -> None:
        if not self.answer.done():
            self.answer.set_result(decision)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Batcher:
    """Sends checks that start during another request together in the next one.

    If no request is in flight, a check is sent immediately and alone. Batches have their own tasks, so
    that a caller who cancels does not end the checks of others.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.forget()
        after_fork(self)

    def forked(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drops the requests in flight and the waiting checks of another event loop or process."""
        self._in_flight: set[object] = set()  # one for each request
        self._waiting: list[_Waiter] = []
        self._size = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, question: Question, headers: Mapping[str, str], until: float) -> Decision:
        if not self._in_flight:
            request = object()
            self._in_flight.add(request)
            try:
                return await self._client._ask(question, headers, until)
            finally:
                self._ended(request)
        waiter = _Waiter(question, until)
        self._waiting.append(waiter)
        self._size += waiter.size
        if len(self._waiting) >= MAX_BATCH or self._size >= MAX_BATCH_BYTES:
            self._send()
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                return await waiter.answer
        except TimeoutError:
            return self._client._core.fallback(question, TIMED_OUT)
        finally:
            self._withdraw(waiter)

    def _withdraw(self, waiter: _Waiter) -> None:
        """Removes a check whose caller no longer waits, unless it was sent."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._size -= waiter.size

    def _ended(self, request: object) -> None:
        """Sends the waiting checks after a request has ended."""
        self._in_flight.discard(request)  # if it was forgotten, it is not there
        if not self._in_flight and self._waiting:
            self._send()

    def _send(self) -> None:
        """Sends all waiting checks."""
        batch, self._waiting, self._size = self._waiting, [], 0
        self._in_flight.add(batch[-1])
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._tasks.add(task)  # keeps the task alive
        task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: list[_Waiter]) -> None:
        try:
            if len(batch) == 1:
                await self._alone(batch[0])
            else:
                await self._together(batch)
        except BaseException as error:
            for waiter in batch:
                waiter.fail(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
        finally:
            self._ended(batch[-1])

    async def _alone(self, waiter: _Waiter) -> None:
        try:
            waiter.decide(await self._client._ask(waiter.question, {}, waiter.until))
        except Exception as error:  # raised in the caller
            waiter.fail(error)

    async def _together(self, batch: list[_Waiter]) -> None:
        """Sends a batch with the deadline of its newest check, and distributes the answers."""
        core = self._client._core
        sent_at = core.clock.now()
        questions = [waiter.question for waiter in batch]
        try:
            answer = await self._client._ask_together(questions, {}, batch[-1].until)
        except MisuseError as error:
            if not refused_for_one(error):
                raise
            # Each check alone, so that only the invalid one raises a misuse.
            await asyncio.gather(*(self._alone(waiter) for waiter in batch))
            return
        for i, waiter in enumerate(batch):
            if isinstance(answer, NoDecision):
                waiter.decide(core.fallback(waiter.question, answer))
            else:
                core.learn(waiter.question, answer[i], sent_at)
                waiter.decide(answer[i])
