"""Requests and returns the units of leases in the background: in threads, or in tasks of an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from ._errors import MisuseError, NoDecision
from ._fork import after_fork
from ._lease_answer import LeaseAnswer
from ._leases import Job, Leases
from ._returns import Ending, Return, Returns

INSPECT_MS = 25

_CLOSING_SECONDS = 1.0  # how long close begins further returns
_NO_THREAD = NoDecision("connection_lost", error=RuntimeError("no thread can be started"))
_INTERRUPTED = NoDecision("connection_lost", error=RuntimeError("the request was interrupted"))


class _Background:
    """What threads and tasks share."""

    def __init__(self, returns: Returns, leases: Leases | None) -> None:
        self._returns = returns
        self._leases = leases
        self.inspect_seconds = INSPECT_MS / 1000
        if leases is not None:
            leases.wake = self._wake
        self.forked()
        after_fork(self)

    @property
    def in_flight(self) -> int:
        """The number of requests that are under way."""
        return self._returns.in_flight + (0 if self._leases is None else self._leases.in_flight)

    def forked(self) -> None:
        self._returns.forget()
        if self._leases is not None:
            self._leases.forget()

    def hold(self, block: Ending) -> None:
        """Ends the lease of a block when its time is over, if end does not before."""
        self._returns.hold(block)
        self._wake()

    def _wake(self) -> None:
        raise NotImplementedError

    def _inspect_once(self) -> None:
        if self._leases is not None:
            self._leases.inspect()
        self._returns.inspect()

    def _resting(self) -> bool:
        return self._returns.resting() and (self._leases is None or self._leases.resting())

    def _job(self) -> Job | None:
        return (None if self._leases is None else self._leases.job()) or self._returns.job()

    def _note(self, job: Job, result: LeaseAnswer | None) -> None:
        if isinstance(job, Return):
            self._returns.ended(job, result if isinstance(result, NoDecision) else None)
        elif self._leases is not None:
            self._leases.ended(job, result)


class Threads(_Background):
    """The background of the blocking client.

    One thread inspects leases while there are any, and starts another for each request. They are daemons,
    so that they do not keep the process alive.
    """

    def __init__(self, returns: Returns, leases: Leases | None, send: Callable[[Job], LeaseAnswer | None]) -> None:
        self._send = send
        super().__init__(returns, leases)

    def forked(self) -> None:
        super().forked()
        self._changed = threading.Condition()  # guards the fields below; its lock is re-entrant
        self._woken = False
        self._thread: threading.Thread | None = None
        self._closing = False

    def round(self) -> None:
        """Inspects leases once, and sends what is due."""
        self._inspect_once()
        self._start_requests()

    def end(self, block: Ending, send: Callable[[Return], LeaseAnswer | None]) -> None:
        """Ends the lease of a block, and sends its return in this thread, unless that was done before."""
        back = self._returns.release(block)
        if back is not None:
            try:
                self._request(back, partial(send, back))
            finally:
                if not self._returns.resting():
                    self._wake()

    def close(self) -> None:
        """Ends all leases and returns their units. Blocks that have not ended return theirs later."""
        if self._leases is not None:
            self._leases.close()
        with self._changed:
            thread, self._closing = self._thread, True
            self._notify()
        if thread is not None:
            thread.join()
        self._await_requests()  # one that is under way may still be granted
        if self._leases is not None:
            self._leases.retire_all()
        self._returns.close()
        until = time.monotonic() + _CLOSING_SECONDS
        while self._returns.closing() and time.monotonic() < until:
            self._start_requests()
            self._await_requests()
        self._returns.open()
        with self._changed:
            self._thread, self._closing = None, False
        if not self._returns.resting():
            self._wake()

    def _notify(self) -> None:
        """Wakes the thread, and who awaits the end of requests. The caller holds the lock."""
        self._woken = True
        self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._notify()
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="weir-leases", daemon=True)
                if not _started(self._thread):
                    self._thread = None
                    if self._leases is not None:
                        self._leases.postpone()

    def _run(self) -> None:
        inspect_at = time.monotonic() + self.inspect_seconds
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._woken, max(0.0, inspect_at - time.monotonic()))
                self._woken = False
            if time.monotonic() >= inspect_at:
                self._inspect_once()
                inspect_at = time.monotonic() + self.inspect_seconds
            self._start_requests()
            with self._changed:
                if self._resting():
                    self._thread = None
                    return

    def _start_requests(self) -> None:
        while (job := self._job()) is not None:
            request = job, partial(self._send, job)
            if not _started(threading.Thread(target=self._request, args=request, name="weir-lease", daemon=True)):
                self._note(job, _NO_THREAD)

    def _request(self, job: Job, send: Callable[[], LeaseAnswer | None]) -> None:
        result: LeaseAnswer | None = _INTERRUPTED
        try:
            result = send()
        except MisuseError:  # a check gets the same error, and raises it
            result = None
        finally:
            with self._changed:
                self._note(job, result)
                self._notify()

    def _await_requests(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.in_flight == 0)


def _started(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the process ends, or has too many threads
        return False
    return True


class Tasks(_Background):
    """The background of the asyncio client, in the event loop of its callers."""

    def __init__(
        self, returns: Returns, leases: Leases | None, send: Callable[[Job], Awaitable[LeaseAnswer | None]]
    ) -> None:
        self._send = send
        super().__init__(returns, leases)

    def forked(self) -> None:
        super().forked()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[LeaseAnswer | None]] = set()

    def round(self) -> None:
        """Inspects leases once, and sends what is due."""
        self._inspect_once()
        self._wake()

    async def end(self, block: Ending, send: Callable[[Return], Awaitable[LeaseAnswer | None]]) -> None:
        """Ends the lease of a block, and sends its return, unless that was done before.

        The task that sends it continues if the caller is cancelled.
        """
        self._adopt_loop()  # it fails without a loop, and then the block ends when its time is over
        back = self._returns.release(block)
        if back is not None:
            await asyncio.wait([self._start(back, partial(send, back))])

    async def close(self) -> None:
        """Ends all leases and returns their units. Blocks that have not ended return theirs later."""
        self._adopt_loop()
        if self._leases is not None:
            self._leases.close()
        await self._await_requests()  # one that is under way may still be granted
        if self._leases is not None:
            self._leases.retire_all()
        self._returns.close()
        until = time.monotonic() + _CLOSING_SECONDS
        while self._returns.closing() and time.monotonic() < until:
            self._start_requests()
            await self._await_requests()
        self._returns.open()
        if self._timer is not None and self._returns.resting():
            self._timer.cancel()
            self._timer = None

    def _adopt_loop(self) -> asyncio.AbstractEventLoop:
        """Leaves an event loop that has ended, with its requests."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._returns.interrupted()
                if self._leases is not None:
                    self._leases.interrupted()  # the next check requests units again
            self._loop, self._timer, self._tasks = loop, None, set()
        return loop

    def _wake(self) -> None:
        self._adopt_loop()
        self._start_requests()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.inspect_seconds, self._inspect)

    def _inspect(self) -> None:
        self._timer = None
        self._inspect_once()
        if not self._resting():
            self._wake()

    def _start_requests(self) -> None:
        while (job := self._job()) is not None:
            self._start(job, partial(self._send, job))

    def _start(self, job: Job, send: Callable[[], Awaitable[LeaseAnswer | None]]) -> asyncio.Task[LeaseAnswer | None]:
        task = asyncio.get_running_loop().create_task(self._request(send))
        self._tasks.add(task)
        task.add_done_callback(partial(self._request_ended, job))
        return task

    async def _request(self, send: Callable[[], Awaitable[LeaseAnswer | None]]) -> LeaseAnswer | None:
        try:
            return await send()
        except MisuseError:  # a check gets the same error, and raises it
            return None

    def _request_ended(self, job: Job, task: asyncio.Task[LeaseAnswer | None]) -> None:
        """Notes the answer, also of a task that was cancelled before it began."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": "a request of leases has failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
        self._note(job, _INTERRUPTED if task.cancelled() or error is not None else task.result())
        if not self._returns.resting():
            self._set_timer()

    async def _await_requests(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
