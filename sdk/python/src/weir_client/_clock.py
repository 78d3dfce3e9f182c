from __future__ import annotations

import asyncio
import time

_LONGEST_SLEEP_MS = 2**31 * 1000
"""68 years. A longer sleep may raise OverflowError."""


class Clock:
    """The clock of a client, in milliseconds. Tests can replace it."""

    def now(self) -> float:
        """Monotonic time, with any origin."""
        return time.monotonic() * 1000

    def unix_ms(self) -> float:
        """The time since 1970."""
        return time.time() * 1000

    def sleep(self, ms: float) -> None:
        time.sleep(min(ms, _LONGEST_SLEEP_MS) / 1000)

    async def sleep_async(self, ms: float) -> None:
        await asyncio.sleep(min(ms, _LONGEST_SLEEP_MS) / 1000)
