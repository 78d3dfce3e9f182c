"""A client of the rate limiter Weir: asks a server whether a subject may do something now.

    client = Client("https://weir.example.com", os.environ["WEIR_KEY"])
    decision = client.check("user_42", "orders:create")
    if not decision.allowed:
        ...

A call has one of three distinct outcomes:

- a decision of the server: no_decision is None;
- no decision, because the server is unavailable, slow or sends an invalid answer: the option on_failure
  supplies the answer, and no_decision has the cause;
- misuse, a mistake of the caller: a MisuseError that names the field and the fix.
"""

from ._aio import AsyncChecker, AsyncClient, AsyncLease
from ._breaker import BreakerState
from ._check import Check
from ._client import Checker, Client, Lease
from ._clock import Clock
from ._core import OnFailure
from ._decision import Decision, Denial, RuleDecision, SkippedRule, Source
from ._errors import Cause, FieldError, MisuseError, NoDecision
from ._hash import hash_subject
from ._headers import HEADERS, copy_headers
from ._hooks import Begun, Call, Hooks, Result
from ._routes import route_name
from ._version import VERSION as __version__

__all__ = [
    "HEADERS",
    "AsyncChecker",
    "AsyncClient",
    "AsyncLease",
    "Begun",
    "BreakerState",
    "Call",
    "Cause",
    "Check",
    "Checker",
    "Client",
    "Clock",
    "Decision",
    "Denial",
    "FieldError",
    "Hooks",
    "Lease",
    "MisuseError",
    "NoDecision",
    "OnFailure",
    "Result",
    "RuleDecision",
    "SkippedRule",
    "Source",
    "__version__",
    "copy_headers",
    "hash_subject",
    "route_name",
]
