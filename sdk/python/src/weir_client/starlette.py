"""What the ASGI middleware asks of Starlette and FastAPI. It needs no import of either."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._guard import route_name
from .asgi import Scope


def route(scope: Scope) -> str:
    """Is a resource for the middleware: the method and the path of the route that will be chosen.

    A request that has none has the method alone: a path as the customer writes it must not become a
    resource, or every new path would start a new counter.
    """
    return route_name(scope["method"], _template(scope["app"].routes, scope))


def _template(routes: Iterable[Any], scope: Scope) -> str | None:
    for one in routes:
        match, child = one.matches(scope)
        if match.name == "FULL":
            within = getattr(one, "routes", None)  # of what is mounted at a path
            if not within:
                return str(one.path)
            template = _template(within, {**scope, **child})
            return None if template is None else str(one.path) + template
    return None
