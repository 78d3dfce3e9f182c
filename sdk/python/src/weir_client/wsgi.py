"""Middleware for WSGI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._client import Checker
from ._decision import Decision
from ._errors import MisuseError
from ._guard import Problem, denied_problem, misuse_problem, with_headers
from ._routes import flask_of, flask_resource, route_name

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


def header(environ: Mapping[str, Any], name: str) -> str | None:
    """A header of a request."""
    value = environ.get("HTTP_" + name.upper().replace("-", "_"))
    return None if value is None else str(value)


class WeirMiddleware:
    """Passes a request to an application if Weir allows it.

    subject: returns the subject. A request without a subject is a misuse, so that a missing one never
        switches the limiter off. Hash values that the customer chooses with hash_subject.
    resource: returns the resource. The default is the method and the route template if the application
        is the wsgi_app of Flask, otherwise only the method, because WSGI has no routes.
    cost, plan, attributes: of the check.
    skip: selects requests that are not checked, such as health checks.
    on_denied: answers a denied request. The rate-limit headers are added.
    on_misuse: answers a request whose check was a mistake of this application. The default logs the error
        and answers 500.
    """

    def __init__(
        self,
        app: Application,
        client: Checker,
        *,
        subject: Callable[[Environ], str | None],
        resource: Callable[[Environ], str] | None = None,
        cost: Callable[[Environ], int] | None = None,
        plan: Callable[[Environ], str | None] | None = None,
        attributes: Callable[[Environ], Mapping[str, str]] | None = None,
        skip: Callable[[Environ], bool] | None = None,
        on_denied: Callable[[Environ, StartResponse, Decision], Iterable[bytes]] | None = None,
        on_misuse: Callable[[Environ, StartResponse, MisuseError], Iterable[bytes]] | None = None,
    ) -> None:
        self._app = app
        self._client = client
        self._subject = subject
        self._resource = resource or _route(app)
        self._cost = cost
        self._plan = plan
        self._attributes = attributes
        self._skip = skip
        self._on_denied = on_denied
        self._on_misuse = on_misuse

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self._skip is not None and self._skip(environ):
            return self._app(environ, start_response)
        try:
            decision = self._check(environ)
        except MisuseError as error:
            if self._on_misuse is not None:
                return self._on_misuse(environ, start_response, error)
            return _send(misuse_problem(error), start_response)

        def start(status: str, headers: Iterable[tuple[str, str]], *more: object) -> Callable[[bytes], object]:
            return start_response(status, with_headers(decision, headers), *more)

        if not decision.allowed:
            if self._on_denied is not None:
                return self._on_denied(environ, start, decision)
            return _send(denied_problem(decision), start)
        self._client.hold(decision)
        return self._app(environ, start)

    def _check(self, environ: Environ) -> Decision:
        return self._client.check(
            self._subject(environ) or "",
            self._resource(environ),
            self._cost(environ) if self._cost else None,
            self._plan(environ) if self._plan else None,
            self._attributes(environ) if self._attributes else None,
            traceparent=header(environ, "traceparent"),
        )


def _route(app: Application) -> Callable[[Environ], str]:
    """The default resource. An application that is guarded twice has one route."""
    if isinstance(app, WeirMiddleware):
        return _route(app._app)
    flask = flask_of(app)
    return flask_resource(flask) if flask is not None else lambda environ: route_name(environ["REQUEST_METHOD"], None)


def _send(problem: Problem, start_response: StartResponse) -> list[bytes]:
    start_response(problem.status_line, problem.headers)
    return [problem.body]
