"""What the WSGI middleware asks of Flask. It needs no import of Flask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._guard import route_name
from .wsgi import Environ


def route(app: Any) -> Callable[[Environ], str]:
    """Returns a resource for the middleware: the method and the rule that Flask will choose.

    A request that has none, or that Flask redirects, has the method alone: a path as the customer writes
    it must not become a resource, or every new path would start a new counter.
    """

    def resource(environ: Environ) -> str:
        method = str(environ["REQUEST_METHOD"])
        try:
            rule, _ = app.url_map.bind_to_environ(environ).match(return_rule=True)
        except Exception as error:
            if not hasattr(error, "get_response"):  # no HTTPException of Werkzeug
                raise
            return method
        return route_name(method, rule.rule)

    return resource
