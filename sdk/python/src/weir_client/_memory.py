from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from ._check import Question
from ._decision import Decision
from ._fork import after_fork
from ._headers import ceil_seconds

MEMORY_MS = 1000
MEMORY_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Remembered:
    decision: Decision
    sent_at: float  # when the request was sent, which is before the decision
    until: float

    def as_of(self, now: float) -> Decision:
        """The decision with the times of now."""
        decision = self.decision
        passed = int(now - self.sent_at)
        retry = _less(decision.retry_after_ms, passed)
        denial, headers = decision.denial, decision.headers
        if retry is not None:
            seconds = ceil_seconds(retry)
            if denial is not None:
                denial = replace(denial, retry_after=seconds)
            if "Retry-After" in headers:
                headers = {**headers, "Retry-After": str(seconds)}
        return replace(
            decision,
            source="memory",
            retry_after_ms=retry,
            reset_after_ms=_less(decision.reset_after_ms, passed),
            denial=denial,
            headers=headers,
        )


def _less(ms: int | None, passed: int) -> int | None:
    return None if ms is None else max(0, ms - passed)


class Memory:
    """Stores denials of the server until they end, so that repeated checks cost nothing."""

    def __init__(self) -> None:
        self._entries: dict[object, _Remembered] = {}
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.Lock()

    def recall(self, question: Question, now: float) -> Decision | None:
        """Returns the stored denial for a question, if it is still valid."""
        if not self._entries:
            return None
        key = question.key()
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and now >= entry.until:
                del self._entries[key]
                entry = None
        return None if entry is None else entry.as_of(now)

    def remember(self, question: Question, decision: Decision, sent_at: float) -> None:
        """Stores a denial. It ignores other decisions."""
        if decision.allowed or decision.source != "server" or decision.replayed:
            return
        lasts = MEMORY_MS if decision.retry_after_ms is None else min(MEMORY_MS, decision.retry_after_ms)
        if lasts <= 0:
            return
        key = question.key()
        with self._lock:
            self._entries.pop(key, None)
            if len(self._entries) >= MEMORY_ENTRIES:
                self._evict(sent_at)
            self._entries[key] = _Remembered(decision, sent_at, sent_at + lasts)

    def _evict(self, now: float) -> None:
        """Removes all entries that have ended, or else the oldest one."""
        self._entries = {key: entry for key, entry in self._entries.items() if now < entry.until}
        if len(self._entries) >= MEMORY_ENTRIES:
            del self._entries[next(iter(self._entries))]
