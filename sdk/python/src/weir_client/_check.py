from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ._errors import FieldError, MisuseError, invalid

MAX_BATCH = 100
_MAX_NAME_BYTES = 256
MAX_COST = 10**15
_MAX_ATTRIBUTES = 16
_NAME_RULE = "Pass 1 to 256 bytes of UTF-8 without control characters."
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VISIBLE_ASCII = re.compile("[!-~]{1,64}")
_DEFAULT_RESOURCE = "default"


@dataclass(frozen=True, slots=True)
class Check:
    """A question: may the subject do this now? Only the subject is required."""

    subject: str
    """What to limit: 1 to 256 bytes of UTF-8 without control characters."""
    resource: str | None = None
    """The resource. The default is "default"."""
    cost: int | None = None
    """Units to take: 0 to 10**15. The default is 1."""
    plan: str | None = None
    """The plan whose limits apply. The default is the subject's own."""
    attributes: Mapping[str, str] | None = None
    """At most 16 further values that rules can count by."""
    idempotency_key: str | None = None
    """Makes it safe to send the check again: within 60 s, the same key gets the first decision
    and counts once. 1 to 64 visible ASCII characters."""


@dataclass(frozen=True, slots=True)
class Question:
    """A valid check with its defaults filled in."""

    subject: str
    resource: str
    cost: int
    plan: str
    attributes: Mapping[str, str]
    idempotency_key: str
    explain: bool

    def body(self) -> dict[str, object]:
        """The question as the server reads it, without defaults."""
        body: dict[str, object] = {"subject": self.subject}
        if self.resource != _DEFAULT_RESOURCE:
            body["resource"] = self.resource
        if self.cost != 1:
            body["cost"] = self.cost
        if self.plan:
            body["plan"] = self.plan
        if self.attributes:
            body["attributes"] = dict(self.attributes)
        if self.explain:
            body["dry_run"] = body["explain"] = True
        return body

    def key(self) -> object:
        """A value that is the same for two questions if and only if they are equal."""
        return self.cost, self.kind()

    def kind(self) -> object:
        """A value that is the same for two questions if and only if they differ at most in their cost."""
        attributes = tuple(sorted(self.attributes.items())) if self.attributes else ()
        return self.subject, self.resource, self.plan, attributes

    @property
    def alone(self) -> bool:
        """Whether it bypasses the memory and batches."""
        return self.explain or self.idempotency_key != ""


def ask(check: Check, kind: str = "check") -> Question:
    """Validates a check and fills in its defaults. A peek has cost 0."""
    if problem := _name_problem(check.subject):
        fix = f"{_NAME_RULE} hash_subject shortens longer values and hides secrets."
        raise invalid("/subject", problem, fix)
    resource = check.resource or _DEFAULT_RESOURCE
    if problem := _name_problem(resource):
        raise invalid("/resource", problem, _NAME_RULE)
    if kind == "peek" and check.cost:
        raise invalid("/cost", f"is {check.cost} in a peek, which takes nothing", "Leave the cost out.")
    cost = check.cost if check.cost is not None else 1
    if not isinstance(cost, int) or isinstance(cost, bool) or not 0 <= cost <= MAX_COST:
        raise invalid("/cost", f"is {_shown(cost)}", "Pass a whole number from 0 to 1000000000000000.")
    plan = check.plan or ""
    if not isinstance(plan, str) or not _is_utf8(plan):
        raise invalid("/plan", f"is {_shown(plan)}", "Pass the slug of a plan.")
    key = check.idempotency_key or ""
    if key and not (isinstance(key, str) and _VISIBLE_ASCII.fullmatch(key)):
        raise invalid("header:Idempotency-Key", f"is {_shown(key)}", "Pass 1 to 64 visible ASCII characters.")
    attributes = check.attributes or {}
    _validate_attributes(attributes)
    return Question(
        check.subject, resource, 0 if kind == "peek" else cost, plan, attributes, key, kind == "explain"
    )


def ask_batch(checks: Sequence[Check]) -> list[Question]:
    """Validates the checks of a batch."""
    if not 1 <= len(checks) <= MAX_BATCH:
        raise invalid("/checks", f"has {len(checks)} entries", "Pass 1 to 100 checks.")
    questions = []
    for i, check in enumerate(checks):
        try:
            question = ask(check)
            if question.idempotency_key:
                fix = "Leave it out: checks of a batch carry no key."
                raise invalid("/idempotency_key", "is set", fix)
        except MisuseError as error:
            raise _moved(error, f"/checks/{i}") from None
        questions.append(question)
    return questions


def encode(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _moved(error: MisuseError, to: str) -> MisuseError:
    field = "/idempotency_key" if error.field == "header:Idempotency-Key" else error.field
    errors = [FieldError(to + field, error.errors[0].message, error.fix)]
    return MisuseError(None, error.code, f"{to[1:]}: {error.detail}", "", errors)


def _validate_attributes(attributes: Mapping[str, str]) -> None:
    if not isinstance(attributes, Mapping):
        raise invalid("/attributes", "is no mapping", "Pass a mapping of strings.")
    if len(attributes) > _MAX_ATTRIBUTES:
        raise invalid("/attributes", f"has {len(attributes)} entries", "Pass at most 16 attributes.")
    for name, value in attributes.items():
        if not isinstance(name, str) or not _ATTRIBUTE_NAME.fullmatch(name) or name in ("subject", "resource"):
            fix = "Use 1 to 64 of A-Z, a-z, 0-9, _ . - and neither subject nor resource."
            raise invalid(f"/attributes/{name}", "is not the name of an attribute", fix)
        if problem := _name_problem(value):
            raise invalid(f"/attributes/{name}", problem, _NAME_RULE)


def _name_problem(name: object) -> str:
    """Returns what is wrong with a subject, a resource or an attribute's value, or ""."""
    if name is None:
        return "is absent"
    if not isinstance(name, str):
        return f"is {_shown(name)}, which is no string"
    if not name:
        return "is empty"
    if found := _CONTROL.search(name):
        return f"contains the control character U+{ord(found[0]):04X}"
    if not _is_utf8(name):
        return "contains a lone surrogate"
    size = len(name.encode())
    return f"has {size} bytes" if size > _MAX_NAME_BYTES else ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """A value in an error, truncated to a line."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
