"""The functions of the WSGI middleware for Flask. They do not import Flask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._guard import route_name
from .wsgi import Environ


def route(app: Any) -> Callable[[Environ], str]:
    """Returns a resource for the middleware: the method and the rule that Flask will choose.

    For a request without a rule, or one that Flask redirects, it is only the method: a path that the
    customer chooses must not become a resource, because every new path would start a new counter.
    """

    def resource(environ: Environ) -> str:
        method = str(environ["REQUEST_METHOD"])
        try:
            rule, _ = app.url_map.bind_to_environ(environ).match(return_rule=True)
        except Exception as error:
            if not hasattr(error, "get_response"):  # not an HTTPException of Werkzeug
                raise
            return method
        return route_name(method, rule.rule)

    return resource
