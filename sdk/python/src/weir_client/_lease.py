from __future__ import annotations

import threading
from dataclasses import replace

from ._check import Check, Question, ask
from ._clock import Clock
from ._decision import Decision
from ._fork import after_fork
from ._leases import Held
from ._returns import Return


class Block:
    """The units of with_lease. None if the server has leased nothing."""

    def __init__(self, check: Check, held: Held | None, clock: Clock) -> None:
        self._check = check
        self._held = held
        self._clock = clock
        self._lock = threading.RLock()  # as in Returns
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.RLock()
        self._held = None  # the parent grants the units, and returns the rest

    @property
    def left(self) -> int:
        """The number of units that the lease can still grant."""
        held = self._held
        return held.left if held is not None and held.live(self._clock.now(), self._clock.unix_ms()) else 0

    def _costing(self, cost: int | None) -> tuple[Check, Question]:
        check = replace(self._check, cost=cost)
        return check, ask(check)

    def _take(self, question: Question) -> Decision | None:
        """Decides a check, or returns None if there are too few units."""
        with self._lock:
            held, now = self._held, self._clock.now()
            if held is None or not held.live(now, self._clock.unix_ms()):
                return None
            # Nothing is allocated between the test and the subtraction, so the block cannot end.
            if not 0 < question.cost <= held.left:
                return None
            held.left -= question.cost
            held.allowed += 1
            return held.decide(question, held.left, now)

    def _over(self) -> bool:
        """Whether the time of the lease is over."""
        held = self._held
        return held is not None and not held.live(self._clock.now(), self._clock.unix_ms())

    def _end(self) -> Return | None:
        """Ends the lease, and returns what to send; None if it had ended."""
        with self._lock:
            held, self._held = self._held, None
        return None if held is None else held.end()
