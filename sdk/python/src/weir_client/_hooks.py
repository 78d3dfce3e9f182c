from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ._breaker import BreakerState
from ._check import Check
from ._decision import Decision


# Version, trace, parent and flags. Customers write this header, and must not get their check refused with it.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of check, peek, explain or check_batch. wait makes several calls."""

    name: Literal["check", "peek", "explain", "batch"]
    checks: Sequence[Check]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call: decisions, one for each check, or an error."""

    decisions: Sequence[Decision] | None
    error: BaseException | None
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Begun:
    """What a hook returns at the beginning of a call."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the request, such as traceparent. Automatic batches do not have them, because they
    belong to many callers."""
    end: Callable[[Result], None] | None = None
    """Is called with the result."""


class Hooks:
    """Observe a client. They must be quick, and must not raise."""

    def begin(self, call: Call) -> Begun | None:
        """Is called before a call."""
        return None

    def breaker_changed(self, before: BreakerState, after: BreakerState) -> None:
        """Is called when the circuit breaker changes its state."""


class Telling:
    """Calls the hooks at the beginning and the end of a call."""

    def __init__(self, hooks: Sequence[Hooks], call: Call, traceparent: str | None) -> None:
        self.headers: dict[str, str] = {}
        if traceparent and _TRACEPARENT.fullmatch(traceparent):
            self.headers["traceparent"] = traceparent
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
