from __future__ import annotations

import hashlib
import hmac


def hash_subject(value: str | None, secret: str | None = None) -> str:
    """Returns a subject for a secret or a long value, such as an API key of your customer.

    It is "sha256:" and the hexadecimal SHA-256. For values that can be guessed, such as addresses, pass
    your own secret: "hmac-sha256:" and the HMAC-SHA-256. An empty or missing value stays empty, so
    that a missing subject is still refused.
    """
    if not value:
        return ""
    if secret is None:
        return "sha256:" + hashlib.sha256(value.encode()).hexdigest()
    return "hmac-sha256:" + hmac.new(secret.encode(), value.encode(), hashlib.sha256).hexdigest()
