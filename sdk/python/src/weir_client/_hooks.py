from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ._breaker import BreakerState
from ._check import Check
from ._decision import Decision


@dataclass(frozen=True, slots=True)
class Call:
    """A call of check, peek, explain or check_batch. wait makes several."""

    name: Literal["check", "peek", "explain", "batch"]
    checks: Sequence[Check]


@dataclass(frozen=True, slots=True)
class Result:
    """How a call ended: with decisions, one for each check, or with an error."""

    decisions: Sequence[Decision] | None
    error: BaseException | None
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Begun:
    """What a hook returns for a call that begins."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the request, such as traceparent. Automatic batches, which belong to many callers,
    do not carry them."""
    end: Callable[[Result], None] | None = None
    """Is called with the result."""


class Hooks:
    """Are told what a client does. They must be quick, and must not raise."""

    def begin(self, call: Call) -> Begun | None:
        """Is called before a call."""
        return None

    def breaker_changed(self, before: BreakerState, after: BreakerState) -> None:
        """Is called when the circuit breaker changes its state."""


class Telling:
    """Tells the hooks how one call begins and ends."""

    def __init__(self, hooks: Sequence[Hooks], call: Call, traceparent: str | None) -> None:
        self.headers: dict[str, str] = {"traceparent": traceparent} if traceparent else {}
        self._ends = []
        for hook in hooks:
            begun = hook.begin(call)
            if begun is not None:
                self.headers.update(begun.headers)
                if begun.end is not None:
                    self._ends.append(begun.end)
        self._began = time.perf_counter()

    def end(self, decisions: Sequence[Decision] | None, error: BaseException | None = None) -> None:
        if not self._ends:
            return
        result = Result(decisions, error, (time.perf_counter() - self._began) * 1000)
        for end in reversed(self._ends):
            end(result)
