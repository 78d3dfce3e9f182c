from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ._errors import NoDecision
from ._fork import after_fork

BreakerState = Literal["closed", "open", "half_open"]
"""A state of the circuit breaker. In half_open, a probe is in flight."""

WINDOW_MS = 1000
MIN_CALLS = 20
FAILURE_RATIO = 0.5
REFUSED_IN_A_ROW = 5
PROBE_INTERVAL_MS = 200

_BUCKETS = 10
_BUCKET_MS = WINDOW_MS / _BUCKETS


@dataclass(frozen=True, slots=True)
class Ticket:
    """The permission to send one call."""

    probe: bool


@dataclass(slots=True)
class _Bucket:
    slot: int
    calls: int = 0
    failed: int = 0


class Breaker:
    """Prevents calls from waiting for a dead server.

    It counts the calls of the last second. It opens if at least 20 ended and half of them failed, or if
    5 consecutive calls were refused. Calls then fail immediately, except one every 200 ms, which is sent
    as a probe. A probe that gets an answer closes the breaker.
    """

    def __init__(self, changed: Callable[[BreakerState, BreakerState], None]) -> None:
        self._changed = changed  # called outside the lock
        self._state: BreakerState = "closed"
        self._probe: Ticket | None = None  # the probe that is in flight
        self._buckets: list[_Bucket] = []
        self._refused = 0
        self._probe_from = 0.0
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.RLock()  # as in Returns
        # The probe is the parent's. No hook is called, because it may wait for a lock.
        self._lose_probe()

    def interrupted(self) -> None:
        """Notes that no call in flight will end, because its event loop is gone."""
        with self._lock:
            lost = self._lose_probe()
        if lost:
            self._changed("half_open", "open")

    def _lose_probe(self) -> bool:
        """Lets another probe be sent. A late result of the lost one changes nothing."""
        if self._state != "half_open":
            return False
        self._probe = None
        self._state = "open"
        return True

    @property
    def state(self) -> BreakerState:
        return self._state

    def blocked(self, now: float) -> bool:
        """Whether a call would be refused now. It takes no ticket."""
        with self._lock:
            return self._blocked(now)

    def _blocked(self, now: float) -> bool:
        return self._state == "half_open" or (self._state == "open" and now < self._probe_from)

    def enter(self, now: float) -> Ticket | None:
        """Returns a ticket if a call may be sent. The caller must then call leave or cancel."""
        with self._lock:
            if self._state == "closed":
                return Ticket(False)
            if self._blocked(now):
                return None
            self._state = "half_open"
            self._probe_from = now + PROBE_INTERVAL_MS
            ticket = self._probe = Ticket(True)
        self._changed("open", "half_open")
        return ticket

    def cancel(self, ticket: Ticket, now: float) -> None:
        """Returns a ticket without a result."""
        with self._lock:
            if ticket is not self._probe:
                return
            self._lose_probe()
            self._probe_from = now
        self._changed("half_open", "open")

    def leave(self, ticket: Ticket, failure: NoDecision | None, now: float) -> None:
        """Records the result of a call: failure is None if the server answered."""
        failed = failure is not None and failure.cause != "quota_exceeded"
        with self._lock:
            before = self._state
            if not ticket.probe:
                refused = failure is not None and failure.cause == "connection_refused"
                self._count(failed, refused, now)
            elif ticket is not self._probe:
                return
            elif failed:
                self._lose_probe()
            else:
                self._probe = None
                self._state = "closed"
                self._buckets = []
                self._refused = 0
            after = self._state
        if before != after:
            self._changed(before, after)

    def _count(self, failed: bool, refused: bool, now: float) -> None:
        """Calls that were sent before the breaker opened may end later: they change nothing."""
        if self._state != "closed":
            return
        slot = int(now // _BUCKET_MS)
        self._buckets = [bucket for bucket in self._buckets if bucket.slot > slot - _BUCKETS]
        if not self._buckets or self._buckets[-1].slot != slot:
            self._buckets.append(_Bucket(slot))
        self._buckets[-1].calls += 1
        self._refused = self._refused + 1 if refused else 0
        if not failed:
            return
        self._buckets[-1].failed += 1
        if self._refused >= REFUSED_IN_A_ROW or self._half_failed():
            self._state = "open"
            self._probe_from = now + PROBE_INTERVAL_MS

    def _half_failed(self) -> bool:
        calls = sum(bucket.calls for bucket in self._buckets)
        failed = sum(bucket.failed for bucket in self._buckets)
        return calls >= MIN_CALLS and failed >= calls * FAILURE_RATIO
