from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ._decision import Decision, Fields, Nonsense, decode_decision
from ._errors import NoDecision

_MOST_LIFE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Granted:
    """Units that the server has charged, and that this process may grant."""

    id: str
    units: int
    life_ms: int
    decision: Decision
    quota: int | None
    """Of the deciding rule."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No units can be leased for this long."""

    ms: float


LeaseAnswer = Granted | Decision | Refused | NoDecision
"""The answer to a request for units. A Decision is the denial of a check of cost 1."""


def decode_lease(body: object, status: int, word: str, most: int, headers: Mapping[str, str]) -> Granted | Decision:
    """Reads a lease of at most so many units, or the denial of a check of cost 1."""
    if status == 429 and word == "deny":
        denial = decode_decision(body, headers)
        if not denial.allowed:
            return denial
    w = Fields(body, "the answer")
    id, units, life_ms = w.text("lease"), w.number("units") or 0, w.number("expires_in_ms") or 0
    decision = decode_decision(w.any("decision"), headers)
    granted = (status, word, decision.allowed) == (200, "allow", True) and id != ""
    if not granted or not 1 <= units <= most or not 1 <= life_ms <= _MOST_LIFE_MS:
        raise Nonsense(f"a lease of {units} units for {life_ms} ms, with {most} requested")
    rule = next((rule for rule in decision.rules if rule.rule == decision.rule), None)
    quota = decision.limit if rule is None or rule.burst is None else rule.burst
    return Granted(id, units, life_ms, replace(decision, source="lease"), quota)
