"""The functions of the WSGI middleware for Flask. They do not import Flask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._routes import flask_resource
from .wsgi import Environ


def route(app: Any) -> Callable[[Environ], str]:
    """Returns a resource for the middleware: the method and the rule that Flask will choose.

    It is the default of the middleware for app.wsgi_app. Pass it if there is other middleware between
    the two. For a request without a rule, or one that Flask redirects, it is only the method: a path
    that the customer chooses must not become a resource, because every new path would start a new
    counter.
    """
    return flask_resource(app)
