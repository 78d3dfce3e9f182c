from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

from ._breaker import BreakerState
from ._check import MAX_BATCH, Check, Question, ask, ask_batch
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
from ._http import Connections
from ._lease_answer import LeaseAnswer
from ._lease import Block
from ._leases import Held, Job
from ._leasing import Threads
from ._returns import Return

_T = TypeVar("_T")

Attributes = Mapping[str, str]

MAX_BATCH_BYTES = 128 << 10
"""The server accepts batches of 256 KiB. Half of that is used, because sizes are estimates."""


class Checker(Protocol):
    """Answers checks. It is implemented by Client and by the fake for tests."""

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
    ) -> Decision: ...

    def hold(self, decision: Decision) -> None: ...


class Lease(Block):
    """The units of with_lease. It is thread-safe."""

    def __init__(self, client: Client, check: Check, held: Held | None) -> None:
        super().__init__(check, held, client._core.clock)
        self._client = client

    def check(self, cost: int | None = None, *, traceparent: str | None = None) -> Decision:
        """Decides a check. If the lease has too few units, or has ended, the check is sent."""
        check, question = self._costing(cost)
        decision = self._take(question)
        if decision is None:
            return self._client._single("check", check, traceparent)
        Telling(self._client._core.hooks, Call("check", (check,)), traceparent).end((decision,))
        return decision


class Client:
    """A client of one server with one key. It is thread-safe: create one, and keep it.

    The key needs the scope check. A wrong option raises a MisuseError.

    timeout_ms: the timeout of a call in total. The resolution of a host name is not included, because
        the operating system has no limit for it.
    connect_timeout_ms: the timeout for connecting.
    on_failure: the answer if the server has not decided: "allow", "deny" or "local".
    local_share: the share of each limit that this process allows with on_failure="local".
    breaker: False sends every call, even after many failures.
    denial_memory: False asks the server even while a known denial is valid.
    batching: True sends checks that start during another request together, up to 100 in one request. A
        single caller never waits for others. Batched decisions have the X-RateLimit headers and
        Retry-After, but not those of the IETF draft.
    leases: True decides frequent checks in memory, without a call. If all rules that match a check have the
        consistency "leased", the client leases units for this process in the background, which the server
        charges, and grants them. A limit is never exceeded, with any number of processes. Call close at the
        end, to return the rest.
    hooks: for metrics, traces and logs.
    clock: for tests.
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
        self._connections = Connections(self._core.address, self._core.connect_timeout)
        self._batcher = _Batcher(self) if batching else None
        self._leasing = Threads(self._core.returns, self._core.leases, self._send_lease)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Returns leased units and closes idle connections. The client stays usable, without leases."""
        self._leasing.close()
        self._connections.close()

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
        """Asks whether the subject may proceed, and counts the check if it is allowed."""
        check = Check(subject, resource, cost, plan, attributes, idempotency_key)
        return self._single("check", check, traceparent)

    def peek(
        self,
        subject: str,
        resource: str | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        traceparent: str | None = None,
    ) -> Decision:
        """Returns the current state and takes nothing.

        Its cost is 0, and it is always allowed unless the subject is blocked.
        """
        return self._single("peek", Check(subject, resource, None, plan, attributes), traceparent)

    def explain(
        self,
        subject: str,
        resource: str | None = None,
        cost: int | None = None,
        plan: str | None = None,
        attributes: Attributes | None = None,
        *,
        traceparent: str | None = None,
    ) -> Decision:
        """Returns the answer that check would return, and consumes nothing.

        It lists in skipped the rules that were not evaluated, with the reason. It always asks the
        server.
        """
        return self._single("explain", Check(subject, resource, cost, plan, attributes), traceparent)

    def check_batch(self, checks: Sequence[Check], *, traceparent: str | None = None) -> list[Decision]:
        """Sends up to 100 checks in one request.

        They are decided in order, and each has its own outcome. If one check is invalid, the whole batch
        is refused before anything is counted.
        """
        telling = Telling(self._core.hooks, Call("batch", checks), traceparent)
        try:
            questions = ask_batch(checks)
            answer = self._ask_together(questions, telling.headers, time.monotonic() + self._core.timeout)
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

    def wait(
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

        If the wait would exceed max_wait_ms, or no wait helps, it returns the denial immediately, so
        check allowed. If the delay of an allowed check would exceed it, it raises a TimeoutError: the
        units are used, but the caller must not proceed. It takes no idempotency key.
        """
        refuse_key(idempotency_key)
        core = self._core
        until = core.wait_until(max_wait_ms)
        while True:
            decision = self.check(subject, resource, cost, plan, attributes, traceparent=traceparent)
            if decision.allowed:
                core.require_fitting_delay(decision, until)
                self.hold(decision)
                return decision
            pause = core.pause_after(decision, until)
            if pause is None:
                return decision
            core.clock.sleep(pause)

    @contextmanager
    def with_lease(
        self,
        subject: str,
        resource: str | None = None,
        *,
        units: int,
        plan: str | None = None,
        attributes: Attributes | None = None,
    ) -> Iterator[Lease]:
        """Takes up to that many units at the beginning of a with block, and returns the rest.

        It returns them at the end of the block, or in the background when the time of the lease is over.

        The units are for checks with this subject, resource, plan and attributes: lease.check(cost) decides
        them in memory. It needs no option, and is for work that knows how many units it will use: an
        import, an export.

        The server gives fewer units if a quarter of what remains is less, and none if a rule is not leased
        or it does not answer. The checks that find too few units are sent.
        """
        check = Check(subject, resource, None, plan, attributes)
        asked = self._core.ask_lease(check, units)
        answer = self._send_lease(asked)
        lease = Lease(self, check, self._core.hold_lease(asked, answer))
        if lease._held is not None:
            self._leasing.hold(lease)
        try:
            yield lease
        finally:
            self._leasing.end(lease, self._return_lease)

    def _return_lease(self, back: Return) -> LeaseAnswer | None:
        """The server counts a return once, so it is sent again if its connection failed."""
        answer = self._send_lease(back)
        if isinstance(answer, NoDecision) and answer.cause in ("connection_lost", "connection_refused"):
            answer = self._send_lease(back)
        return answer

    def hold(self, decision: Decision) -> None:
        """Waits for the delay of an allowed decision, if it has one. The middleware calls it."""
        if decision.allowed and decision.delay_ms:
            self._core.clock.sleep(decision.delay_ms)

    def _single(self, name: Literal["check", "peek", "explain"], check: Check, traceparent: str | None) -> Decision:
        telling = Telling(self._core.hooks, Call(name, (check,)), traceparent)
        try:
            decision = self._answer(ask(check, name), telling.headers)
        except BaseException as error:
            telling.end(None, error)
            raise
        telling.end((decision,))
        return decision

    def _answer(self, question: Question, headers: Mapping[str, str]) -> Decision:
        """Answers one question: from memory, by the server, or by the fallback."""
        remembered = self._core.recall(question)
        if remembered is not None:
            return remembered
        until = time.monotonic() + self._core.timeout
        if self._batcher is None or question.alone:
            return self._ask(question, headers, until)
        if self._core.blocked():
            return self._core.fallback(question, BREAKER_OPEN)
        return self._batcher.ask(question, headers, until)

    def _ask(self, question: Question, headers: Mapping[str, str], until: float) -> Decision:
        """Sends one question."""
        core = self._core
        sent_at = core.clock.now()
        decision = self._counted(lambda: self._send(question, core.check_request(question, headers), until))
        if isinstance(decision, NoDecision):
            return core.fallback(question, decision)
        core.learn(question, decision, sent_at)
        return decision

    def _counted(self, send: Callable[[], _T]) -> _T | NoDecision:
        """Sends if the breaker allows it, and reports the result to it."""
        core = self._core
        ticket = core.enter()
        if ticket is None:
            return BREAKER_OPEN
        try:
            answer = send()
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

    def _send(self, question: Question, request: bytes, until: float) -> Decision:
        """Sends once more if there is an idempotency key and the connection failed before an answer began."""
        try:
            answer = self._connections.exchange(request, until, MAX_ANSWER)
        except Undecided as error:
            if not (error.resendable and question.idempotency_key):
                raise
            answer = self._connections.exchange(request, until, MAX_ANSWER)
        return self._core.read_check(answer)

    def _ask_together(
        self, questions: Sequence[Question], headers: Mapping[str, str], until: float
    ) -> list[Decision] | NoDecision:
        """Sends one batch."""
        return self._counted(lambda: self._exchange_batch(questions, headers, until))

    def _exchange_batch(
        self, questions: Sequence[Question], headers: Mapping[str, str], until: float
    ) -> list[Decision]:
        request = self._core.batch_request(questions, headers)
        answer = self._connections.exchange(request, until, MAX_BATCH_ANSWER)
        return self._core.read_batch(answer, len(questions))

    def _send_lease(self, job: Job) -> LeaseAnswer | None:
        """Requests or returns units of a lease."""
        return self._counted(lambda: self._exchange_lease(job))

    def _exchange_lease(self, job: Job) -> LeaseAnswer | None:
        until = time.monotonic() + self._core.timeout
        answer = self._connections.exchange(self._core.lease_request(job), until, MAX_ANSWER)
        return self._core.read_lease(job, answer)


class _Waiter:
    """A check that waits to be sent, and then for its answer."""

    def __init__(self, question: Question, until: float) -> None:
        self.question = question
        self.until = until
        self.size = batch_bytes(question)
        self.turn = threading.Event()
        self.batch: list[_Waiter] | None = None  # the batch that its thread must send
        self.alone = False  # its thread must send it alone
        self.decision: Decision | None = None
        self.error: BaseException | None = None


class _Batcher:
    """Sends checks that start during another request together in the next one.

    If no request is in flight, a check is sent immediately and alone. There is no separate thread: when
    a request ends, the thread of the newest check, which has the latest deadline, sends the batch.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[object] = set()  # one for each request; the threads of others are gone
        self._waiting: list[_Waiter] = []
        self._size = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, question: Question, headers: Mapping[str, str], until: float) -> Decision:
        request = object()
        with self._lock:
            first = not self._in_flight
            if first:
                self._in_flight.add(request)
            else:
                waiter = _Waiter(question, until)
                self._waiting.append(waiter)
                self._size += waiter.size
                if len(self._waiting) >= MAX_BATCH or self._size >= MAX_BATCH_BYTES:
                    self._start_batch()
        if first:
            try:
                return self._client._ask(question, headers, until)
            finally:
                self._ended(request)
        return self._await(waiter)

    def _await(self, waiter: _Waiter) -> Decision:
        try:
            waiter.turn.wait(max(0.0, waiter.until - time.monotonic()))
        except BaseException:  # such as KeyboardInterrupt
            if not self._withdraw(waiter) and waiter.batch is not None:
                self._send(waiter.batch)
            raise
        if not waiter.turn.is_set() and (self._withdraw(waiter) or waiter.batch is None):
            return self._client._core.fallback(waiter.question, TIMED_OUT)
        if waiter.batch is not None:
            self._send(waiter.batch)
        if waiter.alone:
            return self._client._ask(waiter.question, {}, waiter.until)
        if waiter.error is not None:
            raise waiter.error
        assert waiter.decision is not None
        return waiter.decision

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Removes a check whose caller no longer waits, unless it was sent."""
        with self._lock:
            if waiter not in self._waiting:
                return False
            self._waiting.remove(waiter)
            self._size -= waiter.size
            return True

    def _ended(self, request: object) -> None:
        """Lets the waiting checks be sent after a request has ended."""
        with self._lock:
            self._in_flight.discard(request)  # if it began before a fork, it is not there
            if not self._in_flight and self._waiting:
                self._start_batch()

    def _start_batch(self) -> None:
        """Lets the thread of the newest check send all waiting checks. The caller holds the lock."""
        batch, self._waiting, self._size = self._waiting, [], 0
        self._in_flight.add(batch[-1])
        batch[-1].batch = batch
        batch[-1].turn.set()

    def _send(self, batch: list[_Waiter]) -> None:
        try:
            if len(batch) == 1:
                batch[0].decision = self._client._ask(batch[0].question, {}, batch[0].until)
            else:
                self._send_together(batch)
        except BaseException as error:
            for waiter in batch:
                waiter.error = error
        finally:
            self._ended(batch[-1])
            for waiter in batch:
                waiter.turn.set()

    def _send_together(self, batch: list[_Waiter]) -> None:
        core = self._client._core
        sent_at = core.clock.now()
        questions = [waiter.question for waiter in batch]
        try:
            answer = self._client._ask_together(questions, {}, batch[-1].until)
        except MisuseError as error:
            if not refused_for_one(error):
                raise
            for waiter in batch:  # so that only the invalid one raises a misuse
                waiter.alone = True
            return
        for i, waiter in enumerate(batch):
            if isinstance(answer, NoDecision):
                waiter.decision = core.fallback(waiter.question, answer)
            else:
                core.learn(waiter.question, answer[i], sent_at)
                waiter.decision = answer[i]
