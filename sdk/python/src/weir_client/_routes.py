"""Finds the route templates of Flask, Starlette and FastAPI. It imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"))


def flask_of(app: Any) -> Any:
    """The Flask application of a WSGI application that is its wsgi_app, or None."""
    owner = getattr(app, "__self__", app)
    return owner if hasattr(owner, "create_url_adapter") else None


def flask_resource(app: Any) -> Callable[[dict[str, Any]], str]:
    """Returns a function that returns the method and the rule that Flask will choose."""

    def resource(environ: dict[str, Any]) -> str:
        method = environ["REQUEST_METHOD"]
        try:
            rule, _ = app.create_url_adapter(app.request_class(environ)).match(return_rule=True)
        except Exception as error:
            if not hasattr(error, "get_response"):  # not an HTTPException of Werkzeug
                raise
            return route_name(method, None)
        return route_name(method, rule.rule)

    return resource


def starlette_resource(app: Any, scope: Mapping[str, Any]) -> str:
    """The method and the path of the route that an application with routes will choose."""
    return route_name(scope["method"], _template(app.routes, scope))


def _template(routes: Iterable[Any], scope: Mapping[str, Any]) -> str | None:
    for one in routes:
        if not hasattr(one, "matches"):  # of another framework
            return None
        match, child = one.matches(scope)
        if match.name == "FULL":
            path = str(getattr(one, "path", ""))  # a Host has none
            within = getattr(one, "routes", None)  # of an application that is mounted at a path
            if not within:
                return path
            template = _template(within, {**scope, **child})
            return None if template is None else path + template
    return None


def route_name(method: str, template: str | None) -> str:
    """The method and the route template, or the method alone if that is unknown.

    HEAD is GET, because the same handlers answer both, and a method that HTTP does not define is
    "OTHER". With the method as it was sent, a customer could choose one that no rule knows.
    """
    if method == "HEAD":
        method = "GET"
    elif method not in _METHODS:
        method = "OTHER"
    return f"{method} {template}" if template else method
