"""The functions of the ASGI middleware for Starlette and FastAPI. They import neither."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._guard import route_name
from .asgi import Scope


def route(scope: Scope) -> str:
    """Returns a resource for the middleware: the method and the path of the route that will be chosen.

    For a request without a route, it is only the method: a path that the customer chooses must not
    become a resource, because every new path would start a new counter.
    """
    return route_name(scope["method"], _template(scope["app"].routes, scope))


def _template(routes: Iterable[Any], scope: Scope) -> str | None:
    for one in routes:
        match, child = one.matches(scope)
        if match.name == "FULL":
            within = getattr(one, "routes", None)  # of an application that is mounted at a path
            if not within:
                return str(one.path)
            template = _template(within, {**scope, **child})
            return None if template is None else str(one.path) + template
    return None
