from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._decision import Decision

HEADERS = (
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)
"""The names of the headers that a decision can have."""


def copy_headers(decision: Decision, to: MutableMapping[str, str]) -> None:
    """Copies the decision's rate-limit headers to an answer.

    If the answer already has headers of another limiter, the stricter set is used: the one with the
    longer Retry-After, then with the smaller share left. The names of the mapping may ignore letter
    case, as in frameworks, or not.
    """
    chosen = stricter_headers(decision.headers, headers_of(to))
    if chosen is None:
        return
    for name in HEADERS:
        if name in chosen:
            to[name] = chosen[name]
        elif name in to:
            del to[name]


def headers_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The rate-limit headers of an answer."""
    return {name: headers[name] for name in HEADERS if name in headers and headers[name]}


def stricter_headers(headers: Mapping[str, str], existing: Mapping[str, str]) -> Mapping[str, str] | None:
    """Returns headers if they are stricter than the existing ones, else None."""
    if not headers or (existing and not _stricter(headers, existing)):
        return None
    return headers


def _stricter(headers: Mapping[str, str], than: Mapping[str, str]) -> bool:
    wait = whole_number(headers.get("Retry-After")) or 0
    than_wait = whole_number(than.get("Retry-After")) or 0
    if wait != than_wait:
        return wait > than_wait
    return _share(headers) < _share(than)


def whole_number(text: str | None) -> int | None:
    """Reads a header that is a whole number."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 15 else None


def _share(headers: Mapping[str, str]) -> float:
    """The smallest remaining share of a quota. An unknown share is infinite."""
    limit = whole_number(headers.get("X-RateLimit-Limit"))
    remaining = whole_number(headers.get("X-RateLimit-Remaining"))
    if limit and remaining is not None:
        return remaining / limit
    quotas = _parameters(headers.get("RateLimit-Policy", ""), "q")
    left = _parameters(headers.get("RateLimit", ""), "r")
    return min((left[name] / quotas[name] for name in left if quotas.get(name)), default=math.inf)


def _parameters(text: str, parameter: str) -> dict[str, int]:
    """Reads one parameter of each member of a list such as '"api";r=5;t=3, "login";r=1'.

    Members are names of rules, which contain neither commas nor semicolons.
    """
    values = {}
    for member in text.split(","):
        name, *parts = (part.strip() for part in member.split(";"))
        for part in parts:
            key, _, value = part.partition("=")
            number = whole_number(value)
            if key == parameter and number is not None:
                values[name] = number
    return values


def built_headers(decision: Decision, unix_ms: float) -> dict[str, str]:
    """The headers of a decision of a batch, which has none."""
    quota = decision.limit
    for rule in decision.rules:
        if rule.rule == decision.rule and rule.burst is not None:
            quota = rule.burst
    reset = decision.reset_after_ms
    built = {
        "Retry-After": decision.denial.retry_after if decision.denial else None,
        "X-RateLimit-Limit": quota,
        "X-RateLimit-Remaining": decision.remaining,
        "X-RateLimit-Reset": None if reset is None else ceil_seconds(unix_ms + reset),
    }
    return {name: str(value) for name, value in built.items() if value is not None}


def ceil_seconds(ms: float) -> int:
    """Converts milliseconds to seconds, rounded up."""
    return math.ceil(ms / 1000)
