"""Keeps what leases return, until the server has counted it.

What is here neither sends nor waits: _leasing does, in threads or in tasks.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ._breaker import Breaker
from ._clock import Clock
from ._errors import NoDecision

MOST_IN_FLIGHT = 16
MOST_WAITING = 20_000  # as many as leases can be held

_RETRY_MS = 250
_MOST_RETRY_MS = 2000
_KEPT_MS = 9000
"""How long after the end of a lease the server certainly has its record: for 10 s, less one for the way."""


@dataclass(eq=False, slots=True)
class Return:
    """Units to return, and what was decided."""

    id: str
    units: int
    allowed: int
    ends_at: float
    """The end of the lease."""
    denied: int = 0
    denied_units: int = 0
    pause: float = 0.0
    after: float = 0.0

    @property
    def until(self) -> float:
        """When the server may have forgotten the lease."""
        return self.ends_at + _KEPT_MS


class Ending(Protocol):
    """The lease of a block."""

    def _over(self) -> bool:
        """Whether its time is over."""

    def _end(self) -> Return | None:
        """Ends it, and returns what to send; None if it had ended."""


class Returns:
    """What is to be returned, of leases in the background and of with_lease. It is thread-safe.

    The server counts a return once, so one without an answer is sent again, for as long as the server has a
    record of its lease. Otherwise what was decided from the lease would never be metered.

    The garbage collector can end a block at any allocation, also in a thread that holds the lock. So the lock
    is re-entrant, as are the others that the end of a block takes, and nothing is iterated that it changes.
    """

    def __init__(self, clock: Clock, breaker: Breaker | None) -> None:
        self._clock = clock
        self._breaker = breaker
        self.forget()

    def forget(self) -> None:
        """Drops everything. After a fork, the other process returns it, which may hold the lock."""
        self._lock = threading.RLock()
        self._blocks: set[Ending] = set()
        self._due: deque[Return] = deque()
        self._waiting: deque[Return] = deque()
        self._under_way: set[Return] = set()
        self._closing = False

    @property
    def in_flight(self) -> int:
        """The number of returns that are under way."""
        return len(self._under_way)

    def hold(self, block: Ending) -> None:
        """Ends the lease of a block when its time is over, if release does not before.

        A block can last longer than the server has the record of its lease.
        """
        with self._lock:
            self._blocks.add(block)

    def release(self, block: Ending) -> Return | None:
        """Ends the lease of a block, and returns what to send; None if it had ended.

        Afterwards, ended must be called with it.
        """
        with self._lock:
            self._blocks.discard(block)
            back = block._end()
            if back is not None:
                self._under_way.add(back)
        return back

    def add(self, back: Return) -> None:
        """Queues a return that was not sent yet."""
        with self._lock:
            self._make_place()
            self._due.append(back)

    def _make_place(self) -> None:
        """Drops the oldest return if too many wait. The caller holds the lock."""
        if len(self._waiting) + len(self._due) >= MOST_WAITING:
            (self._waiting or self._due).popleft()

    def inspect(self) -> None:
        """Ends the leases of blocks whose time is over, and finds the returns that are due."""
        now = self._clock.now()
        with self._lock:
            over = [block for block in list(self._blocks) if block._over()]
            self._blocks.difference_update(over)
            if self._blocked(now):
                due, self._due = self._due, deque()
                self._due.extend(back for back in due if now <= back.until)
                waiting, self._waiting = self._waiting, deque()
                self._waiting.extend(back for back in waiting if now <= back.until)
            else:
                waiting, self._waiting = self._waiting, deque()
                for one in waiting:
                    (self._due if one.after <= now else self._waiting).append(one)
        for block in over:
            back = block._end()
            if back is not None:
                self.add(back)

    def _blocked(self, now: float) -> bool:
        """Whether nothing is sent, because the breaker refuses calls."""
        return self._breaker is not None and not self._closing and self._breaker.blocked(now)

    def job(self) -> Return | None:
        """Returns what to send next. Afterwards, ended must be called with it."""
        now = self._clock.now()
        with self._lock:
            if not self._due or len(self._under_way) >= MOST_IN_FLIGHT or self._blocked(now):
                return None
            back = self._due.popleft()
            self._under_way.add(back)
            return back

    def ended(self, back: Return, failure: NoDecision | None) -> None:
        """Notes the answer to a return; None if it was accepted or refused.

        An attempt that the breaker has refused does not count.
        """
        now = self._clock.now()
        with self._lock:
            if back not in self._under_way:  # it was interrupted, or belongs to the parent process
                return
            self._under_way.remove(back)
            if failure is None or self._closing:
                return
            pause: float = _RETRY_MS
            if failure.cause != "breaker_open":
                pause = back.pause = min(max(2 * back.pause, _RETRY_MS), _MOST_RETRY_MS)
            back.after = now + pause
            if back.after <= back.until:
                self._make_place()
                self._waiting.append(back)

    def interrupted(self) -> None:
        """Notes that no return under way will end, because its event loop is gone."""
        with self._lock:
            lost, self._under_way = self._under_way, set()
            self._due.extend(lost)

    def resting(self) -> bool:
        """Whether there is nothing to inspect and nothing to send."""
        return not (self._blocks or self._waiting or self._due or self._under_way)

    def close(self) -> None:
        """Lets each return that waits be sent once more. Until open, none is repeated."""
        with self._lock:
            self._closing = True
            self._due.extend(self._waiting)
            self._waiting.clear()

    def closing(self) -> bool:
        """Whether there is something to send."""
        return bool(self._due or self._under_way)

    def open(self) -> None:
        """Drops what close could not send in time."""
        with self._lock:
            self._closing = False
            self._due.clear()
