from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ._errors import NoDecision
from ._headers import built_headers

Source = Literal["server", "memory", "lease", "fallback"]
"""Who decided: the server, a denial of the server that is still valid, units that this process has leased, or the
fallback."""


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """The result of one rule."""

    rule: str
    algorithm: str
    mode: str
    """"enforce" or "shadow"."""
    allowed: bool
    source: str
    """Where the limit comes from: rule, plan:SLUG or override."""
    unlimited: bool
    limit: int | None
    burst: int | None
    window_ms: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int | None
    delay_ms: int | None
    penalized: bool
    degraded: bool
    warning: bool
    overage: bool = False
    overage_units: int = 0
    """Units beyond the limit that count now."""
    credits_spent: int = 0
    """Prepaid units that this check spent."""
    credits_remaining: int | None = None
    """Prepaid units that are left; None if the subject never had any for the rule."""


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """A rule that was not evaluated."""

    rule: str
    reason: str
    attribute: str
    """The missing attribute; may be empty."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason of a denial, in a form that can be shown to an end user."""

    code: str
    message: str
    retry_after: int | None = None
    """In seconds, rounded up; None if no wait helps."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a check."""

    allowed: bool
    source: Source = "server"
    subject: str = ""
    resource: str = ""
    cost: int = 0
    plan: str | None = None
    """None if the tenant has none."""
    rule: str | None = None
    """The deciding rule, to which the next fields belong. If no enforcing rule with a limit matched,
    they are None."""
    limit: int | None = None
    remaining: int | None = None
    retry_after_ms: int | None = None
    """None on a denial: no wait helps."""
    reset_after_ms: int | None = None
    delay_ms: int | None = None
    """Wait this long before you proceed."""
    rules: tuple[RuleDecision, ...] = ()
    """The result of each matching rule."""
    skipped: tuple[SkippedRule, ...] = ()
    degraded: bool = False
    """A rule was answered without the shared counters."""
    warning: bool = False
    """The subject is near the limit of an enforcing rule."""
    overage: bool = False
    """The subject is beyond the limit of an enforcing rule, which allows it."""
    replayed: bool = False
    """The first decision of the same idempotency key."""
    denial: Denial | None = None
    """The reason; None if allowed."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The rate-limit headers to forward to your own client; see copy_headers."""
    no_decision: NoDecision | None = None
    """Why there is no decision of the server; None unless the source is "fallback"."""


class Nonsense(Exception):
    """An answer that does not follow the API."""


def parse(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError as error:  # of JSON and of UTF-8
        raise Nonsense(f"the answer is not JSON: {error}") from None
    except RecursionError:
        raise Nonsense("the answer is nested too deeply") from None


def decode_decision(value: object, headers: Mapping[str, str]) -> Decision:
    """Reads the decision in an answer. Fields of newer servers are ignored."""
    w = Fields(value, "the answer")
    rules = tuple(_decode_rule(rule) for rule in w.list("rules"))
    denial = w.any("error")
    return Decision(
        allowed=w.required("allowed"),
        subject=w.text("subject"),
        resource=w.text("resource"),
        cost=w.number("cost") or 0,
        plan=w.text("plan") or None,
        rule=w.text("rule") or None,
        limit=w.number("limit"),
        remaining=w.number("remaining"),
        retry_after_ms=w.number("retry_after_ms"),
        reset_after_ms=w.number("reset_after_ms"),
        delay_ms=w.number("delay_ms"),
        rules=rules,
        skipped=tuple(_decode_skip(skip) for skip in w.list("skipped")),
        degraded=w.flag("degraded"),
        warning=w.flag("warning") or any(rule.warning and rule.mode != "shadow" for rule in rules),
        overage=w.flag("overage"),
        replayed=w.flag("replayed"),
        denial=None if denial is None else _decode_denial(denial),
        headers=headers,
    )


def decode_batch(value: object, n: int, unix_ms: float) -> list[Decision]:
    """Reads the answer to a batch of n checks."""
    results = Fields(value, "the answer").list("results")
    if len(results) != n:
        raise Nonsense(f"the answer has {len(results)} results for {n} checks")
    decisions = [decode_decision(result, {}) for result in results]
    return [replace(d, headers=built_headers(d, unix_ms)) for d in decisions]


def _decode_rule(value: object) -> RuleDecision:
    w = Fields(value, "a rule")
    return RuleDecision(
        rule=w.text("rule"),
        algorithm=w.text("algorithm"),
        mode=w.text("mode"),
        allowed=w.flag("allowed"),
        source=w.text("source"),
        unlimited=w.flag("unlimited"),
        limit=w.number("limit"),
        burst=w.number("burst"),
        window_ms=w.number("window_ms"),
        remaining=w.number("remaining"),
        retry_after_ms=w.number("retry_after_ms"),
        reset_after_ms=w.number("reset_after_ms"),
        delay_ms=w.number("delay_ms"),
        penalized=w.flag("penalized"),
        degraded=w.flag("degraded"),
        warning=w.flag("warning"),
        overage=w.flag("overage"),
        overage_units=w.number("overage_units") or 0,
        credits_spent=w.number("credits_spent") or 0,
        credits_remaining=w.number("credits_remaining"),
    )


def _decode_skip(value: object) -> SkippedRule:
    w = Fields(value, "a skipped rule")
    return SkippedRule(w.text("rule"), w.text("reason"), w.text("attribute"))


def _decode_denial(value: object) -> Denial:
    w = Fields(value, "the denial")
    return Denial(w.text("code"), w.text("message"), w.number("retry_after"))


class Fields:
    """Reads a field with its type. null is the same as a missing field."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise Nonsense(f"{what} is no object")
        self._fields = value
        self._what = what

    def _wrong(self, name: str, want: str) -> Nonsense:
        return Nonsense(f"{self._what} has a field {name} that is no {want}")

    def any(self, name: str) -> object:
        return self._fields.get(name)

    def required(self, name: str) -> bool:
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "boolean")
        return value

    def flag(self, name: str) -> bool:
        return self._fields.get(name) is not None and self.required(name)

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "string")
        return value or ""

    def number(self, name: str) -> int | None:
        value = self._fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, "whole number")
        if value is not None and not -(2**63) <= value < 2**63:
            raise self._wrong(name, "number of 64 bits")
        return value

    def list(self, name: str) -> list[object]:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, "list")
        return value or []
