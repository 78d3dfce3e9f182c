"""Runs the middleware cases of the suite with plain applications, Flask, Starlette and FastAPI."""

import asyncio
import json
import logging
from io import BytesIO

import fastapi
import flask
import starlette.applications
import starlette.responses
import starlette.routing

from weir_client import AsyncClient, Client, asgi, route_name, wsgi
from weir_client.flask import route as flask_route
from weir_client.starlette import route as starlette_route
from weir_client.testing import Fake

from .support import FakeClock, Logged, ScriptedServer, SuiteTestCase, client_options, read_suite


def options_of(middleware, header, path, denied, misused):
    """The options of a case. header and path read a request; denied and misused answer it."""
    name = middleware["subject"].removeprefix("header:")
    options = {"subject": lambda request: header(request, name)}
    if "resource" in middleware:
        options["resource"] = lambda _: middleware["resource"]
    if "cost" in middleware:
        options["cost"] = lambda _: middleware["cost"]
    if "skip" in middleware:
        options["skip"] = lambda request: path(request) in middleware["skip"]
    if "on_denied_status" in middleware:
        options["on_denied"] = denied(middleware["on_denied_status"], b"custom")
    if "on_misuse_status" in middleware:
        options["on_misuse"] = denied(middleware["on_misuse_status"], b"custom misuse")
    return options


def wsgi_options(middleware):
    def answer(status, body):
        def respond(environ, start_response, reason):
            start_response(f"{status} Custom", [("Content-Type", "text/plain")])
            return [body]

        return respond

    return options_of(middleware, wsgi.header, lambda environ: environ["PATH_INFO"], answer, answer)


def asgi_options(middleware):
    def answer(status, body):
        async def respond(scope, receive, send, reason):
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": body})

        return respond

    return options_of(middleware, asgi.header, lambda scope: scope["path"], answer, answer)


def ask_wsgi(app, method, path, headers):
    """Sends a request to a WSGI application, and returns the status, the headers and the body."""
    started = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(),
        "wsgi.errors": BytesIO(),
        **{"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()},
    }
    body = b"".join(app(environ, lambda status, headers, *more: started.append((status, headers))))
    status, answered = started[0]
    return int(status.split()[0]), {name.lower(): value for name, value in answered}, body


def scope_of(method, path, headers):
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }


async def ask_asgi(app, method, path, headers):
    """Sends a request to an ASGI application, and returns the status, the headers and the body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope_of(method, path, headers), receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


class Setting:
    """The data of a case for an application."""

    def __init__(self, case):
        self.middleware = case["middleware"]
        self.handler_headers = case.get("handler_headers", {})
        self.called = False

    def handle(self):
        self.called = True
        return "ok"


def plain_wsgi(client, setting):
    def app(environ, start_response):
        start_response("200 OK", list(setting.handler_headers.items()))
        return [setting.handle().encode()]

    options = wsgi_options(setting.middleware)
    templates = {"/orders/7": "/orders/{id}"}
    options.setdefault("resource", lambda e: route_name(e["REQUEST_METHOD"], templates[e["PATH_INFO"]]))
    return wsgi.WeirMiddleware(app, client, **options)


def with_flask(client, setting):
    app = flask.Flask(__name__)

    def handler(**_):
        return setting.handle(), 200, setting.handler_headers

    app.add_url_rule("/orders/<id>", "orders", handler)
    app.add_url_rule("/healthz", "health", handler)
    app.wsgi_app = wsgi.WeirMiddleware(app.wsgi_app, client, **wsgi_options(setting.middleware))
    return app


def plain_asgi(client, setting):
    async def app(scope, receive, send):
        headers = [(name.lower().encode(), value.encode()) for name, value in setting.handler_headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": setting.handle().encode()})

    options = asgi_options(setting.middleware)
    templates = {"/orders/7": "/orders/{id}"}
    options.setdefault("resource", lambda scope: route_name(scope["method"], templates[scope["path"]]))
    return asgi.WeirMiddleware(app, client, **options)


def with_starlette(client, setting):
    async def handler(_):
        return starlette.responses.PlainTextResponse(setting.handle(), headers=setting.handler_headers)

    routes = [starlette.routing.Route("/orders/{id}", handler), starlette.routing.Route("/healthz", handler)]
    app = starlette.applications.Starlette(routes=routes)
    app.add_middleware(asgi.WeirMiddleware, client=client, **asgi_options(setting.middleware))
    return app


def with_fastapi(client, setting):
    app = fastapi.FastAPI()

    @app.api_route("/orders/{id}", methods=["GET", "HEAD"])
    @app.get("/healthz")
    async def handler():
        return starlette.responses.PlainTextResponse(setting.handle(), headers=setting.handler_headers)

    app.add_middleware(asgi.WeirMiddleware, client=client, **asgi_options(setting.middleware))
    return app


class MiddlewareSuite(SuiteTestCase):
    def play_wsgi(self, case, make, template):
        clock = FakeClock()
        setting = Setting(case)
        with ScriptedServer(case["server"]) as server, Logged() as logged:
            with Client(server.url, "weir_test_key", clock=clock, **client_options(case.get("options", {}))) as client:
                request = case["request"]
                answer = ask_wsgi(make(client, setting), request["method"], request["path"], request["headers"])
            self.compare(case["expect"], answer, setting, clock, logged, server.seen(), template)

    def play_asgi(self, case, make, template):
        async def play():
            clock = FakeClock()
            setting = Setting(case)
            with ScriptedServer(case["server"]) as server, Logged() as logged:
                options = client_options(case.get("options", {}))
                async with AsyncClient(server.url, "weir_test_key", clock=clock, **options) as client:
                    request = case["request"]
                    app = make(client, setting)
                    answer = await ask_asgi(app, request["method"], request["path"], request["headers"])
                self.compare(case["expect"], answer, setting, clock, logged, server.seen(), template)

        asyncio.run(play())

    def compare(self, expected, answer, setting, clock, logged, seen, template):
        status, headers, body = answer
        self.assertEqual(expected["status"], status, body)
        for name, value in expected.get("headers", {}).items():
            self.assertEqual(value, headers.get(name.lower()), name)
        wanted = expected.get("body")
        if isinstance(wanted, str):
            self.assertEqual(wanted, body.decode())
        elif wanted:
            self.subset("body", wanted, json.loads(body))
        if "handler_called" in expected:
            self.assertEqual(expected["handler_called"], setting.called)
        if "slept_ms" in expected:
            self.assertEqual(expected["slept_ms"], clock.slept)
        if "errors_logged" in expected:
            self.assertEqual(expected["errors_logged"], logged.count(logging.ERROR))
        if "requests" in expected:
            self.assertEqual(expected["requests"], seen["requests"])
        if "request" in expected:
            spelled = json.loads(json.dumps(expected["request"]).replace("/orders/{id}", template))
            self.compare_request(spelled, seen["latest"][0])


def add_cases():
    for case in read_suite("middleware")["cases"]:
        for name, make, template in (("WSGI", plain_wsgi, "/orders/{id}"), ("Flask", with_flask, "/orders/<id>")):
            test = lambda self, *args: self.play_wsgi(*args)  # noqa: E731
            add(f"test_{name}: {case['name']}", test, case, make, template)
        for name, make in (("ASGI", plain_asgi), ("Starlette", with_starlette), ("FastAPI", with_fastapi)):
            test = lambda self, *args: self.play_asgi(*args)  # noqa: E731
            add(f"test_{name}: {case['name']}", test, case, make, "/orders/{id}")


def add(name, test, *args):
    setattr(MiddlewareSuite, name, lambda self: test(self, *args))


add_cases()


async def plain_handler(*call):
    """Answers a request, as an endpoint of Starlette or an ASGI application."""
    response = starlette.responses.PlainTextResponse("ok")
    if len(call) == 1:
        return response
    await response(*call)


class RoutesTest(SuiteTestCase):
    """A path that the customer chooses must never become a resource."""

    def test_flask(self):
        for options in ({}, {"resource": flask_route}):
            fake = Fake.allow_all()
            app = flask.Flask(__name__)
            app.add_url_rule("/orders/<int:id>/", "orders", lambda id: "ok")
            items = flask.Blueprint("items", __name__)
            items.add_url_rule("/<item>", "item", lambda item: "ok")
            app.register_blueprint(items, url_prefix="/items")
            options = {name: make(app) for name, make in options.items()}
            app.wsgi_app = wsgi.WeirMiddleware(app.wsgi_app, fake, subject=lambda _: "a", **options)
            for method, path, status in (
                ("GET", "/orders/7/", 200),
                ("GET", "/orders/7", 308),
                ("GET", "/orders/seven/", 404),
                ("DELETE", "/orders/7/", 405),
                ("HEAD", "/orders/7/", 200),
                ("FOO1", "/orders/7/", 405),
                ("GET", "/items/8", 200),
            ):
                self.assertEqual(status, ask_wsgi(app, method, path, {})[0], path)
            self.assertEqual(
                ["GET /orders/<int:id>/", "GET", "GET", "DELETE", "GET /orders/<int:id>/", "OTHER", "GET /items/<item>"],
                [check.resource for check in fake.asked],
            )

    def test_flask_with_subdomains(self):
        fake = Fake.allow_all()
        app = flask.Flask(__name__, subdomain_matching=True, static_folder=None)
        app.config["SERVER_NAME"] = "example.com"
        app.add_url_rule("/<id>", "orders", lambda id: "ok", subdomain="api")
        app.wsgi_app = wsgi.WeirMiddleware(app.wsgi_app, fake, subject=lambda _: "a")
        self.assertEqual(200, ask_wsgi(app, "GET", "/7", {"Host": "api.example.com"})[0])
        self.assertEqual(404, ask_wsgi(app, "GET", "/7", {"Host": "www.example.com"})[0])
        self.assertEqual(["GET /<id>", "GET"], [check.resource for check in fake.asked])

    def test_two_guards_ask_for_the_same_route(self):
        fake = Fake.allow_all()
        app = flask.Flask(__name__)
        app.add_url_rule("/orders/<id>", "orders", lambda id: "ok")
        for subject in ("a", "b"):
            app.wsgi_app = wsgi.WeirMiddleware(app.wsgi_app, fake, subject=lambda _, subject=subject: subject)
        self.assertEqual(200, ask_wsgi(app, "GET", "/orders/7", {})[0])
        app = starlette.applications.Starlette(routes=[starlette.routing.Route("/orders/{id}", plain_handler)])
        for subject in ("c", "d"):
            app = asgi.WeirMiddleware(app, fake.asynchronous(), subject=lambda _, subject=subject: subject)
        self.assertEqual(200, asyncio.run(ask_asgi(app, "GET", "/orders/7", {}))[0])
        self.assertEqual(
            [("b", "GET /orders/<id>"), ("a", "GET /orders/<id>"), ("d", "GET /orders/{id}"), ("c", "GET /orders/{id}")],
            [(check.subject, check.resource) for check in fake.asked],
        )

    def test_starlette(self):
        Route, Mount, Host = starlette.routing.Route, starlette.routing.Mount, starlette.routing.Host
        for options in ({}, {"resource": starlette_route}):
            fake = Fake.allow_all()
            items = Mount("/items", routes=[Route("/{item}", plain_handler)])
            shop = Host("shop.example.com", starlette.routing.Router([Route("/{product}", plain_handler)]))
            static = Mount("/static", plain_handler)
            app = starlette.applications.Starlette(
                routes=[shop, Mount("/orders/{id}", routes=[items]), static, Route("/", plain_handler)]
            )
            app.add_middleware(asgi.WeirMiddleware, client=fake.asynchronous(), subject=lambda _: "a", **options)
            for method, path, host, status in (
                ("GET", "/orders/7/items/8", "localhost", 200),
                ("GET", "/orders/7/elsewhere", "localhost", 404),
                ("GET", "/", "localhost", 200),
                ("DELETE", "/", "localhost", 405),
                ("FOO1", "/static/a.css", "localhost", 200),
                ("GET", "/static/a.css", "localhost", 200),
                ("GET", "/tea", "shop.example.com", 200),
            ):
                self.assertEqual(status, asyncio.run(ask_asgi(app, method, path, {"Host": host}))[0], path)
            self.assertEqual(
                ["GET /orders/{id}/items/{item}", "GET", "GET /", "DELETE", "OTHER /static", "GET /static", "GET /{product}"],
                [check.resource for check in fake.asked],
            )

    def test_fastapi(self):
        fake = Fake.allow_all()
        app = fastapi.FastAPI(openapi_url=None)
        router = fastapi.APIRouter(prefix="/orders")
        router.add_api_route("/{id:int}", lambda id: "ok")
        app.include_router(router, prefix="/v1")
        app.add_middleware(asgi.WeirMiddleware, client=fake.asynchronous(), subject=lambda _: "a")
        for method, path, status in (
            ("GET", "/v1/orders/7", 200),
            ("GET", "/v1/orders/seven", 404),
            ("PUT", "/v1/orders/7", 405),
        ):
            self.assertEqual(status, asyncio.run(ask_asgi(app, method, path, {}))[0], path)
        self.assertEqual(["GET /v1/orders/{id:int}", "GET", "PUT"], [check.resource for check in fake.asked])

    def test_the_default_without_routes_is_the_method(self):
        fake = Fake.allow_all()
        setting = Setting({"middleware": {}})

        def app(environ, start_response):
            start_response("200 OK", [])
            return [setting.handle().encode()]

        async def asgi_app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"ok"})

        ask_wsgi(wsgi.WeirMiddleware(app, fake, subject=lambda _: "a"), "GET", "/orders/7", {})

        async def subject(_):
            return "b"

        guarded = asgi.WeirMiddleware(asgi_app, fake.asynchronous(), subject=subject)
        _, headers, _ = asyncio.run(ask_asgi(guarded, "PUT", "/orders/7", {}))
        self.assertEqual("99", headers["x-ratelimit-remaining"])
        asgi_app.routes = ["/orders/{id}"]  # of a framework that is not Starlette
        asyncio.run(ask_asgi(guarded, "POST", "/orders/7", {}))
        self.assertEqual(
            [("a", "GET"), ("b", "PUT"), ("b", "POST")], [(check.subject, check.resource) for check in fake.asked]
        )

    def test_what_is_not_http_passes(self):
        passed = []

        async def app(scope, receive, send):
            passed.append(scope["type"])

        guarded = asgi.WeirMiddleware(app, Fake.script().asynchronous(), subject=lambda _: "a")
        asyncio.run(guarded({"type": "lifespan"}, None, None))
        asyncio.run(guarded({"type": "websocket", "headers": []}, None, None))
        self.assertEqual(["lifespan", "websocket"], passed)
