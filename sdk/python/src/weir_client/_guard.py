"""What the middleware for WSGI and for ASGI shares."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ._decision import Decision
from ._headers import HEADERS, stricter_headers

logger = logging.getLogger("weir_client")

_CANONICAL = {name.lower(): name for name in HEADERS}
_TITLES = {429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem document (RFC 9457) as an answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def status_line(self) -> str:
        return f"{self.status} {_TITLES[self.status]}"


def denied_problem(decision: Decision) -> Problem:
    """The answer to a denied request: status 429 and a problem document.

    If the fallback "deny" has answered, the status is 503, because the subject is not known to be over
    a limit.
    """
    denial = decision.denial
    if denial is None:
        return _problem(429)
    status = 503 if denial.code == "LIMITER_UNAVAILABLE" else 429
    more: dict[str, object] = {"code": denial.code, "detail": denial.message}
    if denial.retry_after is not None:
        more["retry_after"] = denial.retry_after
    return _problem(status, **more)


def misuse_problem(error: Exception) -> Problem:
    """Logs a misuse and returns an answer without its details."""
    logger.error("the check of a request is wrong: %s", error)
    return _problem(500)


def _problem(status: int, **more: object) -> Problem:
    document = {"type": "about:blank", "title": _TITLES[status], "status": status, **more}
    body = json.dumps(document, ensure_ascii=False).encode() + b"\n"
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    return Problem(status, headers, body)


def with_headers(decision: Decision, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Adds the decision's headers to an answer. If it has those of another limiter, the stricter ones are kept."""
    headers = list(headers)
    existing = {_CANONICAL[name.lower()]: value for name, value in headers if name.lower() in _CANONICAL}
    chosen = stricter_headers(decision.headers, existing)
    if chosen is None:
        return headers
    kept = [(name, value) for name, value in headers if name.lower() not in _CANONICAL]
    return kept + list(chosen.items())
