"""Requests and returns the units of leases in the background: in threads, or in tasks of an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from ._errors import MisuseError, NoDecision
from ._fork import after_fork
from ._lease_answer import LeaseAnswer
from ._leases import INSPECT_MS, Job, Leases

_CLOSING_SECONDS = 1.0  # how long close begins further returns
_NO_THREAD = NoDecision("connection_lost", error=RuntimeError("no thread can be started"))


class Threads:
    """The background of the blocking client.

    One thread inspects leases while there are any, and starts another for each request. They are daemons,
    so that they do not keep the process alive.
    """

    def __init__(self, leases: Leases, send: Callable[[Job], LeaseAnswer | None]) -> None:
        self._leases = leases
        self._send = send
        self.inspect_seconds = INSPECT_MS / 1000
        leases.wake = self._wake
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._leases.forget()
        self._ended = threading.Condition()  # a request has ended; guards _thread
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    def round(self) -> None:
        """Inspects leases once, and sends what is due."""
        self._leases.inspect()
        self._start_requests()

    def close(self) -> None:
        """Ends all leases and returns their units."""
        self._leases.close()
        self._woken.set()
        with self._ended:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._await_requests()  # one that is under way may still be granted
        self._leases.retire_all()
        until = time.monotonic() + _CLOSING_SECONDS
        while not self._leases.resting() and time.monotonic() < until:
            self._start_requests()
            self._await_requests()

    def _wake(self) -> None:
        self._woken.set()
        with self._ended:
            if self._thread is None and not self._leases.closed:
                self._thread = threading.Thread(target=self._run, name="weir-leases", daemon=True)
                if not _started(self._thread):
                    self._thread = None
                    self._leases.postpone()

    def _run(self) -> None:
        inspect_at = time.monotonic() + self.inspect_seconds
        while not self._leases.closed:
            self._woken.wait(max(0.0, inspect_at - time.monotonic()))
            self._woken.clear()
            if time.monotonic() >= inspect_at:
                self._leases.inspect()
                inspect_at = time.monotonic() + self.inspect_seconds
            self._start_requests()
            with self._ended:
                if self._leases.resting():
                    self._thread = None
                    return

    def _start_requests(self) -> None:
        while (job := self._leases.job()) is not None:
            if not _started(threading.Thread(target=self._request, args=(job,), name="weir-lease", daemon=True)):
                self._leases.ended(job, _NO_THREAD)

    def _request(self, job: Job) -> None:
        result: LeaseAnswer | None = None
        try:
            result = self._send(job)
        except MisuseError:
            pass  # a check gets the same error, and raises it
        finally:
            with self._ended:
                self._leases.ended(job, result)
                self._ended.notify_all()
            self._woken.set()

    def _await_requests(self) -> None:
        with self._ended:
            self._ended.wait_for(lambda: self._leases.in_flight == 0)


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the process ends, or has too many threads
        return False
    return True


class Tasks:
    """The background of the asyncio client, in the event loop of its callers."""

    def __init__(self, leases: Leases, send: Callable[[Job], Awaitable[LeaseAnswer | None]]) -> None:
        self._leases = leases
        self._send = send
        self.inspect_seconds = INSPECT_MS / 1000
        leases.wake = self._wake
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        self._leases.forget()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def round(self) -> None:
        """Inspects leases once, and sends what is due."""
        self._leases.inspect()
        self._wake()

    async def close(self) -> None:
        """Ends all leases and returns their units."""
        self._adopt_loop()
        self._leases.close()
        await self._await_requests()  # one that is under way may still be granted
        self._leases.retire_all()
        until = time.monotonic() + _CLOSING_SECONDS
        while not self._leases.resting() and time.monotonic() < until:
            self._start_requests()
            await self._await_requests()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _adopt_loop(self) -> asyncio.AbstractEventLoop:
        """Leaves an event loop that has ended, with its requests."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._leases.interrupted()  # the next check requests units again
            self._loop, self._timer, self._tasks = loop, None, set()
        return loop

    def _wake(self) -> None:
        loop = self._adopt_loop()
        self._start_requests()
        if self._timer is None:
            self._timer = loop.call_later(self.inspect_seconds, self._inspect)

    def _inspect(self) -> None:
        self._timer = None
        self._leases.inspect()
        if not self._leases.resting():
            self._wake()

    def _start_requests(self) -> None:
        assert self._loop is not None
        while (job := self._leases.job()) is not None:
            task = self._loop.create_task(self._request(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, job: Job) -> None:
        result: LeaseAnswer | None = None
        try:
            result = await self._send(job)
        except MisuseError:
            pass  # a check gets the same error, and raises it
        finally:
            self._leases.ended(job, result)

    async def _await_requests(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
