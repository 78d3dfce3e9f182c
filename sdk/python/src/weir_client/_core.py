"""What the blocking client and the asyncio client share: everything except waiting."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import SplitResult, quote, urlsplit

from ._breaker import PROBE_INTERVAL_MS, Breaker, BreakerState, Ticket
from ._check import MAX_COST, Check, Question, ask, encode
from ._clock import Clock
from ._decision import Decision, Denial, Nonsense, decode_batch, decode_decision, parse
from ._errors import Cause, FieldError, MisuseError, NoDecision, Undecided, invalid
from ._headers import HEADERS, headers_of, whole_number
from ._hooks import Hooks
from ._http import Address, Answer
from ._lease_answer import Granted, LeaseAnswer, Refused, decode_lease
from ._leases import Ask, Held, Job, Leases
from ._local import Local
from ._memory import Memory
from ._returns import Return, Returns
from ._version import VERSION

OnFailure = Literal["allow", "deny", "local"]
"""The answer if the server has not decided: allow, deny, or count a share of each limit in this
process."""

DEFAULT_TIMEOUT_MS = 100
DEFAULT_CONNECT_TIMEOUT_MS = 50
DEFAULT_ON_FAILURE: OnFailure = "allow"
DEFAULT_LOCAL_SHARE = 0.1

MAX_ANSWER = 1 << 20
MAX_BATCH_ANSWER = 8 << 20
BREAKER_OPEN = NoDecision("breaker_open")
TIMED_OUT = NoDecision("timeout", error=TimeoutError("the timeout of the client has passed"))

logger = logging.getLogger("weir_client")

_MOST_REFUSED_SECONDS = 10  # for which no units are requested after a refusal
_MISUSES = (400, 401, 403, 404, 413, 415, 422, 431)
_VISIBLE_ASCII = re.compile("[!-~]+")


class Core:
    """The settings and the state of a client."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_ms: float,
        connect_timeout_ms: float,
        on_failure: OnFailure,
        local_share: float,
        breaker: bool,
        denial_memory: bool,
        leases: bool,
        hooks: Sequence[Hooks],
        clock: Clock | None,
    ) -> None:
        self.address = Address(_valid_url(url))
        self._key = _valid_key(key)
        _validate_settings(timeout_ms, connect_timeout_ms, on_failure, local_share)
        self.timeout = timeout_ms / 1000
        self.connect_timeout = connect_timeout_ms / 1000
        self.on_failure = on_failure
        self.hooks = tuple(hooks)
        self.clock = clock or Clock()
        self.breaker = Breaker(self._changed) if breaker else None
        self.memory = Memory() if denial_memory else None
        self.returns = Returns(self.clock, self.breaker)
        self.leases = Leases(self.clock, self.memory, self.returns) if leases else None
        self.local = Local(local_share) if on_failure == "local" else None

    @property
    def breaker_state(self) -> BreakerState:
        return self.breaker.state if self.breaker else "closed"

    def _changed(self, before: BreakerState, after: BreakerState) -> None:
        if before == "closed" and after == "open":
            message = "the circuit breaker is open; calls to %s are answered by the fallback (on_failure=%s)"
            logger.warning(message, self.address.name, self.on_failure)
        for hook in self.hooks:
            hook.breaker_changed(before, after)

    # Before a call: answers without the server.

    def recall(self, question: Question) -> Decision | None:
        """Decides a question from leased units, or by a stored denial that is still valid."""
        if question.alone:
            return None
        if self.leases is not None and question.cost > 0:
            leased = self.leases.take(question)
            if leased is not None:
                return leased
        denial = None if self.memory is None else self.memory.recall(question, self.clock.now())
        if denial is not None and self.leases is not None:
            self.leases.remembered(question)
        return denial

    def blocked(self) -> bool:
        return self.breaker is not None and self.breaker.blocked(self.clock.now())

    # Around a request.

    def check_request(self, question: Question, headers: Mapping[str, str]) -> bytes:
        more = {**headers}
        if question.idempotency_key:
            more["Idempotency-Key"] = question.idempotency_key
        return self._request("/v1/check", more, encode(question.body()))

    def batch_request(self, questions: Sequence[Question], headers: Mapping[str, str]) -> bytes:
        body = encode({"checks": [question.body() for question in questions]})
        return self._request("/v1/check/batch", headers, body)

    def ask_lease(self, check: Check, units: int) -> Ask:
        """Validates a request for units of with_lease."""
        question = ask(check)
        if not isinstance(units, int) or isinstance(units, bool) or not 1 <= units <= MAX_COST:
            raise invalid("/units", f"is {units!r}", "Pass a whole number from 1 to 1000000000000000.")
        return Ask(question, units, self.clock.now(), self.clock.unix_ms())

    def hold_lease(self, asked: Ask, answer: LeaseAnswer | None) -> Held | None:
        """Holds the units that were leased, or remembers a denial."""
        if isinstance(answer, Decision) and self.memory is not None:
            self.memory.remember(asked.question, answer, asked.sent_at)
        return Held(answer, asked.sent_at, asked.sent_unix_ms) if isinstance(answer, Granted) else None

    def lease_request(self, job: Job) -> bytes:
        """A request for units, or their return."""
        if isinstance(job, Ask):
            body = job.question.body()
            body["units"] = job.units
            return self._request("/v1/leases", {}, encode(body))
        counts = {"units": job.units, "allowed": job.allowed, "denied": job.denied, "denied_units": job.denied_units}
        return self._request(f"/v1/leases/{quote(job.id, safe='')}/return", {}, encode(counts))

    def _request(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        ours = {
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "User-Agent": f"weir-python/{VERSION}",
        }
        return self.address.request(path, {**headers, **ours}, body)

    def enter(self) -> Ticket | None:
        """Asks the breaker for a ticket. With one, the caller must call one of the next three methods."""
        return self.breaker.enter(self.clock.now()) if self.breaker else Ticket(False)

    def answered(self, ticket: Ticket) -> None:
        """Records a decision or a misuse."""
        if self.breaker:
            self.breaker.leave(ticket, None, self.clock.now())

    def undecided(self, ticket: Ticket, failure: NoDecision) -> None:
        if self.breaker:
            self.breaker.leave(ticket, failure, self.clock.now())

    def cancelled(self, ticket: Ticket) -> None:
        if self.breaker:
            self.breaker.cancel(ticket, self.clock.now())

    def interrupted(self) -> None:
        """Notes that no request in flight will end, because its event loop is gone."""
        if self.breaker:
            self.breaker.interrupted()

    # After a request.

    def read_check(self, answer: Answer) -> Decision:
        _raise_undecided(answer)
        try:
            headers = {name: answer.headers.get(name.lower(), "") for name in HEADERS}
            decision = decode_decision(parse(answer.body), headers_of(headers))
        except Nonsense as error:
            raise _nonsense(answer, error) from None
        word = _decision_word(answer)
        if (word, answer.status) != ("allow", 200) if decision.allowed else word != "deny":
            wrong = f"Weir-Decision is {word!r}, status {answer.status} and allowed {decision.allowed}"
            raise _nonsense(answer, Nonsense(wrong))
        return decision

    def read_batch(self, answer: Answer, n: int) -> list[Decision]:
        _raise_undecided(answer)
        word = _decision_word(answer)
        if answer.status != 200 or word not in ("allow", "deny"):
            raise _nonsense(answer, Nonsense(f"Weir-Decision is {word!r} and status {answer.status}"))
        try:
            return decode_batch(parse(answer.body), n, self.clock.unix_ms())
        except Nonsense as error:
            raise _nonsense(answer, error) from None

    def read_lease(self, job: Job, answer: Answer) -> LeaseAnswer | None:
        """Reads the answer to a request for units. That to a return has no content."""
        if isinstance(job, Return):
            if answer.status != 204:
                _raise_undecided(answer)
            return None
        if answer.status in (409, 404, 405):  # a server without leases answers 404 or 405
            return _refused(answer)
        _raise_undecided(answer)
        try:
            headers = headers_of({name: answer.headers.get(name.lower(), "") for name in HEADERS})
            return decode_lease(parse(answer.body), answer.status, _decision_word(answer), job.units, headers)
        except Nonsense as error:
            raise _nonsense(answer, error) from None

    def learn(self, question: Question, decision: Decision, sent_at: float) -> None:
        """Stores what a decision of the server implies for later questions."""
        self.learn_limits(question, decision)
        if self.leases:
            self.leases.sent(question, decision)
        if self.memory and not question.explain:
            self.memory.remember(question, decision, sent_at)

    def learn_limits(self, question: Question, decision: Decision) -> None:
        if self.local:
            self.local.learn(question, decision)

    def fallback(self, question: Question, failure: NoDecision) -> Decision:
        """Answers a question that the server has not decided."""
        denied = self.on_failure == "deny"
        decision = Decision(
            allowed=not denied,
            source="fallback",
            subject=question.subject,
            resource=question.resource,
            cost=question.cost,
            degraded=True,
            denial=Denial("LIMITER_UNAVAILABLE", "The rate limiter is unavailable.") if denied else None,
            no_decision=failure,
        )
        return self.local.decide(question, decision, self.clock.now()) if self.local else decision

    # Of wait.

    def wait_until(self, max_wait_ms: float | None) -> float:
        return math.inf if max_wait_ms is None else self.clock.now() + max_wait_ms

    def pause_after(self, decision: Decision, until: float) -> float | None:
        """The wait before a denied check is repeated, or None if it is not repeated."""
        pause: float | None = decision.retry_after_ms
        unavailable = decision.denial is not None and decision.denial.code == "LIMITER_UNAVAILABLE"
        if pause is None and unavailable and decision.source == "fallback":
            pause = PROBE_INTERVAL_MS
        return None if pause is None or self.clock.now() + pause > until else pause

    def require_fitting_delay(self, decision: Decision, until: float) -> None:
        if self.clock.now() + (decision.delay_ms or 0) > until:
            raise TimeoutError(f"the request must be held for {decision.delay_ms} ms, beyond the deadline")


def refuse_key(idempotency_key: str | None) -> None:
    if idempotency_key:
        fix = "Leave it out: the same key would get the same denial forever."
        raise invalid("header:Idempotency-Key", "is set", fix)


def refused_for_one(error: BaseException) -> bool:
    """Whether a batch was refused because of one of its checks. Nothing was counted in this case."""
    if not isinstance(error, MisuseError):
        return False
    return error.code == "RESOURCE_NOT_ALLOWED" or error.status in (400, 413, 415, 422)


def batch_bytes(question: Question) -> int:
    """The approximate size of a question in a batch."""
    return 2 + len(encode(question.body()))


def _raise_undecided(answer: Answer) -> None:
    """Raises the misuse or the failure that the status means. 200 and 429 may be decisions."""
    status = answer.status
    if status == 200 or (status == 429 and _decision_word(answer) != "none"):
        return
    if status in _MISUSES:
        raise _misuse(answer)
    if status == 429:
        raise Undecided(_failure(answer, "quota_exceeded"))
    raise Undecided(_failure(answer, "server_error" if status >= 500 else "invalid_answer"))


def _decision_word(answer: Answer) -> str:
    return answer.headers.get("weir-decision", "").lower()


def _failure(answer: Answer, cause: Cause, error: BaseException | None = None) -> NoDecision:
    seconds = whole_number(answer.headers.get("retry-after"))
    code = "" if answer.status == 200 else _text(_problem(answer).get("code"))
    return NoDecision(cause, answer.status, code, None if seconds is None else seconds * 1000, error)


def _nonsense(answer: Answer, error: Nonsense) -> Undecided:
    """The failure of an answer with the status of a decision that is not a decision."""
    return Undecided(_failure(answer, "invalid_answer", error))


def _refused(answer: Answer) -> Refused:
    seconds = whole_number(answer.headers.get("retry-after"))
    if not seconds or _text(_problem(answer).get("code")) != "NOT_LEASABLE":
        seconds = _MOST_REFUSED_SECONDS
    return Refused(1000 * min(seconds, _MOST_REFUSED_SECONDS))


def _misuse(answer: Answer) -> MisuseError:
    problem = _problem(answer)
    entries = problem.get("errors")
    errors = [
        FieldError(_text(entry.get("pointer")), _text(entry.get("message")), _text(entry.get("fix")))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    ]
    detail, request_id = _text(problem.get("detail")), _text(problem.get("request_id"))
    return MisuseError(answer.status, _text(problem.get("code")), detail, request_id, errors)


def _problem(answer: Answer) -> dict[str, object]:
    """Reads a problem document (RFC 9457). Anything else is empty, and the status decides."""
    try:
        problem = parse(answer.body)
    except Nonsense:
        return {}
    return problem if isinstance(problem, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _valid_url(text: str) -> SplitResult:
    fix = "Pass the address of the server, such as https://weir.example.com."
    try:
        url = urlsplit(text or "")
        has_port = url.port != 0
    except ValueError:
        raise invalid("url", "cannot be read", fix) from None
    if url.scheme not in ("http", "https"):
        raise invalid("url", f'has the scheme "{url.scheme}"', fix)
    if not url.hostname or not has_port or not _VISIBLE_ASCII.fullmatch(text):
        raise invalid("url", "has no host" if not url.hostname else "cannot be read", fix)
    if url.username is not None or url.password is not None:
        raise invalid("url", "has a user in it", f"{fix} The key is an argument of its own.")
    if url.query or url.fragment:
        raise invalid("url", "has a query string or a fragment", fix)
    return url


def _valid_key(key: str) -> str:
    fix = "Pass an API key with the scope check."
    if not key:
        raise invalid("key", "is empty", fix)
    if not _VISIBLE_ASCII.fullmatch(key):
        raise invalid("key", "contains a character that is not visible ASCII", fix)
    return key


def _validate_settings(timeout_ms: float, connect_timeout_ms: float, on_failure: str, local_share: float) -> None:
    for name, value in (("timeout_ms", timeout_ms), ("connect_timeout_ms", connect_timeout_ms)):
        if not value > 0:
            raise invalid(name, f"is {value}", "Pass a positive number.")
    if on_failure not in ("allow", "deny", "local"):
        raise invalid("on_failure", f'is "{on_failure}"', 'Pass "allow", "deny" or "local".')
    if not 0 < local_share <= 1:
        raise invalid("local_share", f"is {local_share}", "Pass a number greater than 0 and up to 1.")
