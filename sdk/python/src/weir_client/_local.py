from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import TypeVar

from ._check import Question
from ._decision import Decision, Denial
from ._fork import after_fork
from ._headers import ceil_seconds

_ENTRIES = 10_000
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class _Limit:
    rule: str
    limit: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class _Known:
    blocked: bool
    limits: tuple[_Limit, ...]


@dataclass(slots=True)
class _Counter:
    used: int
    ends: float


@dataclass(slots=True)
class _Verdict:
    """The result of one rule without the server."""

    rule: str
    window_ms: int
    share: int
    remaining: int
    wait: float  # until it would be allowed: 0 for now, infinite for never
    reset: int
    counter: _Counter | None  # None until its window begins

    def before(self, other: _Verdict, allowed: bool) -> bool:
        """Whether it decides instead of the other one.

        Among denials, the longest wait decides, otherwise the smallest share left.
        """
        if not allowed:
            return self.wait > other.wait
        return self.remaining * max(1, other.share) < other.remaining * max(1, self.share)


class Local:
    """Stores the limits of earlier decisions, and counts a share of them in process.

    It does not know other processes: the share is what this process may allow while there is no
    decision.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._of_subject: dict[tuple[str, str, str], _Known] = {}
        self._of_resource: dict[tuple[str, str], _Known] = {}
        self._counters: dict[tuple[str, str], _Counter] = {}
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._lock = threading.Lock()

    def learn(self, question: Question, decision: Decision) -> None:
        """Stores the limits of a decision of the server."""
        if question.explain:
            return
        limits = tuple(
            _Limit(rule.rule, rule.limit, rule.window_ms)
            for rule in decision.rules
            if rule.mode == "enforce" and not rule.unlimited
            if rule.limit is not None and rule.window_ms is not None
        )
        blocked = decision.denial is not None and decision.denial.code == "SUBJECT_BLOCKED"
        known = _Known(blocked, limits)
        with self._lock:
            _keep(self._of_subject, (question.subject, question.resource, question.plan), known)
            if not blocked:
                _keep(self._of_resource, (question.resource, question.plan), known)

    def decide(self, question: Question, decision: Decision, now: float) -> Decision:
        """Answers a question. It fills in the decision, which allows at first."""
        with self._lock:
            known = self._of_subject.get((question.subject, question.resource, question.plan))
            known = known or self._of_resource.get((question.resource, question.plan))
            if known is None:
                return decision
            if known.blocked:
                return replace(decision, allowed=False, denial=Denial("SUBJECT_BLOCKED", "The subject is blocked."))
            verdicts = [self._judge(question, limit, now) for limit in known.limits]
            allowed = all(verdict.wait == 0 for verdict in verdicts)
            if allowed and question.cost > 0:
                for verdict in verdicts:
                    self._take(question, verdict, now)
        deciding: _Verdict | None = None
        for verdict in verdicts:
            if deciding is None or verdict.before(deciding, allowed):
                deciding = verdict
        return decision if deciding is None else _described(decision, deciding, allowed)

    def _judge(self, question: Question, limit: _Limit, now: float) -> _Verdict:
        """Evaluates one limit and counts nothing."""
        share = max(1, math.floor(limit.limit * self._share)) if limit.limit > 0 else 0
        counter = self._counters.get((question.subject, limit.rule))
        if counter is not None and now >= counter.ends:
            counter = None
        remaining = share if counter is None else max(0, share - counter.used)
        reset = 0 if counter is None else int(counter.ends - now)
        wait: float = 0
        if question.cost > share:
            wait = math.inf
        elif question.cost > remaining:
            wait = max(1, reset)
        return _Verdict(limit.rule, limit.window_ms, share, remaining, wait, reset, counter)

    def _take(self, question: Question, verdict: _Verdict, now: float) -> None:
        if verdict.counter is None:
            verdict.counter = _Counter(0, now + verdict.window_ms)
            verdict.reset = verdict.window_ms
            _keep(self._counters, (question.subject, verdict.rule), verdict.counter)
        verdict.counter.used += question.cost
        verdict.remaining = max(0, verdict.share - verdict.counter.used)


def _keep(entries: dict[_K, _V], key: _K, value: _V) -> None:
    """Adds an entry to a bounded dictionary. If it is full, it replaces the oldest entry."""
    if key not in entries and len(entries) >= _ENTRIES:
        del entries[next(iter(entries))]
    entries[key] = value


def _described(decision: Decision, verdict: _Verdict, allowed: bool) -> Decision:
    never = verdict.wait == math.inf
    answer = replace(
        decision,
        allowed=allowed,
        rule=verdict.rule,
        limit=verdict.share,
        remaining=verdict.remaining,
        retry_after_ms=None if never else int(verdict.wait),
        reset_after_ms=verdict.reset,
    )
    if allowed:
        return answer
    if never:
        message = f"The cost is greater than {verdict.rule} allows while the rate limiter is unavailable."
        return replace(answer, denial=Denial("COST_EXCEEDS_LIMIT", message))
    seconds = ceil_seconds(verdict.wait)
    denial = Denial("RATE_LIMIT_EXCEEDED", f"Rate limit exceeded. Try again in {seconds} seconds.", seconds)
    return replace(answer, denial=denial, headers={"Retry-After": str(seconds)})
