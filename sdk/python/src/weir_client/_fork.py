from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Forked(Protocol):
    def forked(self) -> None: ...


_objects: weakref.WeakSet[_Forked] = weakref.WeakSet()


def after_fork(one: _Forked) -> None:
    """Calls forked in each child process.

    A child has a copy of everything, but none of the threads: it must not use the same connections, grant
    the same units, or wait for a lock that a thread of its parent holds.
    """
    _objects.add(one)


def _forked() -> None:
    for one in list(_objects):
        one.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
