"""The functions of the ASGI middleware for Starlette and FastAPI. They import neither."""

from __future__ import annotations

from ._routes import starlette_resource
from .asgi import Scope


def route(scope: Scope) -> str:
    """Returns a resource for the middleware: the method and the path of the route that will be chosen.

    It is the default of middleware that is added to an application. For a request without a route, it is
    only the method: a path that the customer chooses must not become a resource, because every new path
    would start a new counter.
    """
    return starlette_resource(scope["app"], scope)
