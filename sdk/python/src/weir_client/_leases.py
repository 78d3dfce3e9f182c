"""Decides frequent checks from units that the server has charged in advance.

What is here neither sends nor waits: _leasing does, in threads or in tasks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ._check import MAX_COST, Question
from ._clock import Clock
from ._decision import Decision
from ._errors import NoDecision
from ._lease_answer import Granted, LeaseAnswer, Refused
from ._memory import Memory
from ._returns import Return, Returns

MOST_IN_FLIGHT = 16

_BUSY_CHECKS = 4  # within _TICK_MS make a kind of check frequent
_TICK_MS = 64
_AHEAD_MS = 250  # units are requested for this long, or for as long as the server lets this process hold them
_IDLE_MS = 100  # units that no check uses for this long are returned
_LOW = 4  # units are requested again when less than 1/_LOW is left, of units or of time
_LEAST = 2  # units of a request; with fewer in a lease, the next one waits for _NOT_NOW_MS
_MOST_SETS = 10_000
_BACKOFF_MS = 200  # after a request without an answer
_NOT_NOW_MS = 1000  # after a denial, or if little is left
_WRONG_MS = 10_000  # after a request that was wrong


class Held:
    """The units of one lease. They end by the monotonic clock, counted from before the request was sent."""

    __slots__ = ("allowed", "granted", "left", "_ends_unix_ms", "_sent_at")

    def __init__(self, granted: Granted, sent_at: float, sent_unix_ms: float) -> None:
        self.granted = granted
        self.left = granted.units
        self.allowed = 0
        self._sent_at = sent_at
        # The monotonic clock may stop while a machine sleeps.
        self._ends_unix_ms = sent_unix_ms + granted.life_ms

    def live(self, now: float, unix_ms: float) -> bool:
        return now - self._sent_at < self.granted.life_ms and unix_ms < self._ends_unix_ms

    def end(self, denied: int = 0, denied_units: int = 0) -> Return:
        """Ends the lease, and returns what to send."""
        left, self.left = self.left, 0
        ends_at = self._sent_at + self.granted.life_ms
        return Return(self.granted.id, left, self.allowed, ends_at, denied, denied_units)

    def scarce(self, now: float, left: int) -> bool:
        """Whether it is time to lease more units, with this many left."""
        few = left < max(1, self.granted.units // _LOW)
        return few or now - self._sent_at > self.granted.life_ms * (1 - 1 / _LOW)

    def decide(self, question: Question, left: int, now: float) -> Decision:
        """The decision of a check.

        What remains is what remained when the units were charged, and the units that are left.
        """
        decision, quota = self.granted.decision, self.granted.quota
        remaining, reset = decision.remaining, decision.reset_after_ms
        if remaining is not None:
            remaining = remaining + left if quota is None else min(remaining + left, quota)
        return replace(
            decision,
            subject=question.subject,
            resource=question.resource,
            cost=question.cost,
            remaining=remaining,
            reset_after_ms=None if reset is None else max(0, reset - int(now - self._sent_at)),
        )


class _Set:
    """The units of one kind of check: subject, resource, plan, attributes."""

    def __init__(self, question: Question, units: int, now: float) -> None:
        self.question = question
        self.leases: list[Held] = []  # oldest first; at most two
        self.missed = units  # of checks that the server has allowed since the last request
        self.denied = 0
        self.denied_units = 0
        self.asking = False
        self.asked_at = now - _TICK_MS
        self.not_before = 0.0  # when units may be requested again
        self.used_at = now

    def live(self, now: float, unix_ms: float) -> list[Held]:
        return [lease for lease in self.leases if lease.live(now, unix_ms)]

    def wanted(self, now: float) -> int:
        """How many units to request: those that were used since the last request, for as long as they can be held."""
        used, ahead = self.missed, _AHEAD_MS
        if self.leases:
            newest = self.leases[-1]
            used += newest.granted.units - newest.left
            ahead = max(ahead, newest.granted.life_ms)
        wanted = int(used * ahead / max(1.0, now - self.asked_at))
        self.missed = 0
        self.asked_at = now
        return min(max(wanted, _LEAST), MAX_COST)


@dataclass(eq=False, slots=True)
class Ask:
    """A request for units."""

    question: Question
    units: int
    sent_at: float
    sent_unix_ms: float
    of: _Set | None = None
    """The set that the units are for; None if a caller waits for them."""


Job = Ask | Return


@dataclass(slots=True)
class _Rate:
    checks: int = 0
    units: int = 0


class Leases:
    """Decides frequent checks from units that are held. It is thread-safe.

    Every other check is sent as usual: units are requested in the background, so that no check waits for
    them. wake is called, outside the lock, when there is something for the background to do.
    """

    def __init__(self, clock: Clock, memory: Memory | None, returns: Returns) -> None:
        self._clock = clock
        self._memory = memory
        self._returns = returns
        self.wake: Callable[[], None] = lambda: None
        self.closed = False
        self.forget()

    def forget(self) -> None:
        """Drops all units without a return.

        After a fork, they belong to the other process, which may hold the lock in one of its threads.
        """
        self._lock = threading.RLock()  # as in Returns
        self._sets: dict[object, _Set] = {}
        self._rates: dict[object, _Rate] = {}
        self._tick = 0
        self._asks: deque[_Set] = deque()
        self._under_way: set[Ask] = set()

    @property
    def size(self) -> int:
        """The number of kinds of checks that are frequent."""
        return len(self._sets)

    @property
    def in_flight(self) -> int:
        """The number of requests for units that are under way."""
        with self._lock:
            return len(self._asks) + len(self._under_way)

    # Around a check.

    def take(self, question: Question) -> Decision | None:
        """Decides a check from the units that are held, or returns None if there are too few."""
        if not self._sets:
            return None
        kind = question.kind()
        now, unix_ms = self._clock.now(), self._clock.unix_ms()
        with self._lock:
            found = self._sets.get(kind)
            if found is None:
                return None
            live = found.live(now, unix_ms)
            source = next((lease for lease in live if lease.left >= question.cost), None)
            if source is None:
                return None
            source.left -= question.cost
            source.allowed += 1
            found.used_at = now
            left = sum(lease.left for lease in live)
            newest = live[-1]
            requested = newest.scarce(now, left) and self._request(found, now)
        if requested:
            self.wake()
        return newest.decide(question, left, now)

    def sent(self, question: Question, decision: Decision) -> None:
        """Notes that the server has allowed a check. If its kind is frequent, units are leased for the next ones."""
        counts = decision.allowed and not decision.replayed and not question.explain and question.cost > 0
        if not counts or self.closed:
            return
        kind = question.kind()
        now, unix_ms = self._clock.now(), self._clock.unix_ms()
        with self._lock:
            found = self._sets.get(kind)
            if found is None:
                requested = self._count(question, kind, now)
            else:
                found.missed += question.cost
                found.used_at = now
                live = found.live(now, unix_ms)
                scarce = not live or live[-1].scarce(now, sum(lease.left for lease in live))
                requested = scarce and self._request(found, now)
        if requested:
            self.wake()

    def remembered(self, question: Question) -> None:
        """Notes that a check was denied from memory."""
        if not self._sets or question.cost == 0:
            return
        kind = question.kind()
        with self._lock:
            found = self._sets.get(kind)
            if found is not None:
                found.denied += 1
                found.denied_units += question.cost
                found.used_at = self._clock.now()

    def _count(self, question: Question, kind: object, now: float) -> bool:
        """Counts a check of a kind that is not leased, and leases the kind if it is frequent."""
        tick = int(now // _TICK_MS)
        if tick != self._tick:
            self._tick = tick
            self._rates = {}
        rate = self._rates.setdefault(kind, _Rate())
        rate.checks += 1
        rate.units += question.cost
        if rate.checks < _BUSY_CHECKS or len(self._sets) >= _MOST_SETS:
            return False
        added = self._sets[kind] = _Set(replace(question, cost=1, idempotency_key=""), rate.units, now)
        self._request(added, now)
        return True  # also without a request, because sets are inspected

    def _request(self, of: _Set, now: float) -> bool:
        """Queues a request for units. The caller holds the lock."""
        if of.asking or self.closed or now < of.not_before:
            return False
        if len(self._asks) + len(self._under_way) >= MOST_IN_FLIGHT:
            return False
        of.asking = True
        self._asks.append(of)
        return True

    # For the background.

    def job(self) -> Ask | None:
        """Returns what to send next. Afterwards, ended must be called with it."""
        now, unix_ms = self._clock.now(), self._clock.unix_ms()
        with self._lock:
            if not self._asks or len(self._under_way) >= MOST_IN_FLIGHT:
                return None
            of = self._asks.popleft()
            job = Ask(of.question, of.wanted(now), now, unix_ms, of)
            self._under_way.add(job)
            return job

    def ended(self, job: Ask, result: LeaseAnswer | None) -> None:
        """Notes the answer to a request; None if the request was wrong."""
        now, unix_ms = self._clock.now(), self._clock.unix_ms()
        with self._lock:
            self._under_way.discard(job)
            of = job.of
            assert of is not None
            of.asking = False
            if isinstance(result, Granted):
                if result.units < _LEAST:  # so little is left that leases would cost more than checks
                    of.not_before = job.sent_at + _NOT_NOW_MS
                newest = of.leases[-1] if of.leases else None
                self._retire(of, lambda lease: lease is not newest or lease.left == 0 or not lease.live(now, unix_ms))
                of.leases.append(Held(result, job.sent_at, job.sent_unix_ms))
                return
            of.not_before = job.sent_at + _pause(result)
        if isinstance(result, Decision) and self._memory is not None:
            self._memory.remember(job.question, result, job.sent_at)

    def interrupted(self) -> None:
        """Notes that no request under way will end, because its event loop is gone."""
        with self._lock:
            for job in self._under_way:
                if job.of is not None:
                    job.of.asking = False
            self._drop_asks(0)
            self._under_way.clear()

    def postpone(self) -> None:
        """Notes that nothing can be requested at present."""
        with self._lock:
            self._drop_asks(self._clock.now() + _BACKOFF_MS)

    def _drop_asks(self, not_before: float) -> None:
        """Forgets the requests that have not begun. The caller holds the lock."""
        for of in self._asks:
            of.asking = False
            of.not_before = not_before
        self._asks.clear()

    def inspect(self) -> None:
        """Ends what is over or not used, and forgets kinds of checks that are not frequent any more."""
        now, unix_ms = self._clock.now(), self._clock.unix_ms()
        with self._lock:
            for kind, of in list(self._sets.items()):
                if of.asking:
                    continue
                idle = now - of.used_at >= _IDLE_MS
                self._retire(of, lambda lease, idle=idle: idle or not lease.live(now, unix_ms))  # type: ignore[misc]
                # The set of a rule that cannot be leased stays, so that no request is sent for it.
                if idle and now >= of.not_before:
                    del self._sets[kind]

    def resting(self) -> bool:
        """Whether there is nothing to inspect and nothing to send."""
        return not (self._sets or self._asks or self._under_way)

    def close(self) -> None:
        """Requests nothing any more. What is under way must end before retire_all."""
        with self._lock:
            self.closed = True
            self._drop_asks(0)

    def retire_all(self) -> None:
        """Ends all leases."""
        with self._lock:
            for of in self._sets.values():
                self._retire(of, lambda _: True)
            self._sets.clear()

    def _retire(self, of: _Set, ends: Callable[[Held], bool]) -> None:
        """Ends leases of a set, and queues their returns. The caller holds the lock."""
        kept = []
        for lease in of.leases:
            if not ends(lease):
                kept.append(lease)
                continue
            self._returns.add(lease.end(of.denied, of.denied_units))
            of.denied = of.denied_units = 0
        of.leases = kept


def _pause(answer: Decision | Refused | NoDecision | None) -> float:
    """How long nothing is requested after an answer without units."""
    if answer is None:
        return _WRONG_MS  # a check gets the same error
    if isinstance(answer, Refused):
        return answer.ms
    if isinstance(answer, NoDecision):
        return _BACKOFF_MS
    wait = _NOT_NOW_MS if answer.retry_after_ms is None else answer.retry_after_ms
    return min(max(wait, _BACKOFF_MS / 4), _NOT_NOW_MS)
