"""Middleware for ASGI."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from ._aio import AsyncChecker
from ._decision import Decision
from ._errors import MisuseError
from ._guard import Problem, denied_problem, misuse_problem, with_headers
from ._routes import route_name, starlette_resource

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Mapping[str, Any], name: str) -> str | None:
    """A header of a request."""
    wanted = name.lower().encode("latin-1")
    for key, value in scope["headers"]:
        if key == wanted:
            return bytes(value).decode("latin-1")
    return None


class WeirMiddleware:
    """Passes a request to an application if Weir allows it.

    Its options are those of the middleware for WSGI. Each function takes the scope of the request, and
    may be asynchronous. The default resource is the method and the route template in Starlette and
    FastAPI, otherwise only the method, because ASGI has no routes. Other protocols than HTTP, such as
    WebSocket, are not checked.
    """

    def __init__(
        self,
        app: Application,
        client: AsyncChecker,
        *,
        subject: Callable[[Scope], str | None | Awaitable[str | None]],
        resource: Callable[[Scope], str | Awaitable[str]] | None = None,
        cost: Callable[[Scope], int | Awaitable[int]] | None = None,
        plan: Callable[[Scope], str | None | Awaitable[str | None]] | None = None,
        attributes: Callable[[Scope], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None = None,
        skip: Callable[[Scope], bool | Awaitable[bool]] | None = None,
        on_denied: Callable[[Scope, Receive, Send, Decision], Awaitable[None]] | None = None,
        on_misuse: Callable[[Scope, Receive, Send, MisuseError], Awaitable[None]] | None = None,
    ) -> None:
        self._app = app
        self._client = client
        self._subject = subject
        self._resource = resource or self._route
        self._cost = cost
        self._plan = plan
        self._attributes = attributes
        self._skip = skip
        self._on_denied = on_denied
        self._on_misuse = on_misuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (self._skip is not None and await _value(self._skip(scope))):
            await self._app(scope, receive, send)
            return
        try:
            decision = await self._check(scope)
        except MisuseError as error:
            if self._on_misuse is not None:
                await self._on_misuse(scope, receive, send, error)
            else:
                await _send(misuse_problem(error), send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in message.get("headers", ())]
                message = {**message, "headers": _encoded(with_headers(decision, headers))}
            await send(message)

        if decision.allowed:
            await self._client.hold(decision)
            await self._app(scope, receive, send_with_headers)
        elif self._on_denied is not None:
            await self._on_denied(scope, receive, send_with_headers, decision)
        else:
            await _send(denied_problem(decision), send_with_headers)

    async def _check(self, scope: Scope) -> Decision:
        return await self._client.check(
            await _value(self._subject(scope)) or "",
            await _value(self._resource(scope)),
            await _value(self._cost(scope)) if self._cost else None,
            await _value(self._plan(scope)) if self._plan else None,
            await _value(self._attributes(scope)) if self._attributes else None,
            traceparent=header(scope, "traceparent"),
        )

    def _route(self, scope: Scope) -> str:
        """The default resource. An application that is guarded twice has one route."""
        app: Any = self._app
        while isinstance(app, WeirMiddleware):
            app = app._app
        if not hasattr(app, "routes"):
            app = scope.get("app")  # this middleware was added to it
        return starlette_resource(app, scope) if hasattr(app, "routes") else route_name(scope["method"], None)


async def _value(value: Any) -> Any:
    """The result of a function that may be asynchronous."""
    return await value if inspect.isawaitable(value) else value


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _send(problem: Problem, send: Send) -> None:
    await send({"type": "http.response.start", "status": problem.status, "headers": _encoded(problem.headers)})
    await send({"type": "http.response.body", "body": problem.body})
