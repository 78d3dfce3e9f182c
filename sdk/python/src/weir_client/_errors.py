from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "timeout",  # no complete answer within the timeout
    "connection_refused",  # the address refuses connections
    "connection_lost",  # any other failure of the connection
    "server_error",  # status 5xx
    "quota_exceeded",  # the tenant is over its own quota of checks
    "invalid_answer",  # an answer that is neither a decision nor misuse
    "breaker_open",  # the circuit breaker is open; nothing was sent
]
"""Why there is no decision."""


@dataclass(frozen=True, slots=True)
class NoDecision:
    """Why there is no decision of the server."""

    cause: Cause
    status: int | None = None
    """The HTTP status; None if there was no answer."""
    code: str = ""
    """The problem's code, such as OVERLOADED; may be empty."""
    retry_after_ms: int | None = None
    """From Retry-After."""
    error: BaseException | None = None
    """The error of the network, or what is wrong with the answer."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """Points at one wrong field."""

    pointer: str
    message: str
    fix: str


class MisuseError(Exception):
    """A mistake of the caller: a wrong key, an unknown plan, an invalid subject.

    Nothing was decided and nothing was counted. It is never turned into a fallback, because a
    mistake must not switch the limiter off.
    """

    def __init__(
        self,
        status: int | None,
        code: str,
        detail: str = "",
        request_id: str = "",
        errors: Sequence[FieldError] = (),
    ) -> None:
        self.status = status
        """The HTTP status; None if the client refused the call and sent nothing."""
        self.code = code
        """A stable name such as UNKNOWN_PLAN; empty if the answer was not a problem document."""
        self.detail = detail
        """What is wrong, for people."""
        self.request_id = request_id
        """The id of the request, as in the server's log."""
        self.errors = tuple(errors)
        self.field = self.errors[0].pointer if errors else ""
        """A JSON pointer to the first wrong field, such as /subject; may be empty."""
        self.fix = self.errors[0].fix if errors else ""
        """What to do about it; may be empty."""
        super().__init__(self._message())

    def _message(self) -> str:
        parts = []
        if self.status is not None:
            parts.append(f"status {self.status}:")
        if self.detail:
            parts.append(f"{self.code}: {self.detail}" if self.code else self.detail)
        else:
            parts.append(self.code or "the answer is not from Weir; check the URL")
        if self.fix:
            parts.append(self.fix)
        return " ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.status, self.code, self.detail, self.request_id, self.errors)


def invalid(field: str, problem: str, fix: str) -> MisuseError:
    """A misuse that the client detects before it sends anything."""
    name = field.removeprefix("header:").removeprefix("/")
    return MisuseError(None, "INVALID_REQUEST", f"{name} {problem}.", "", [FieldError(field, problem, fix)])


class Undecided(Exception):
    """Carries a failure to the code that calls the fallback."""

    def __init__(self, failure: NoDecision, resendable: bool = False) -> None:
        super().__init__(failure.cause)
        self.failure = failure
        self.resendable = resendable
        """The connection failed before an answer began."""
