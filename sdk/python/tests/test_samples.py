"""Every Python sample of the pages is a file in samples/, word for word. These tests run them."""

import asyncio
import contextlib
import io
import json
import os
import re
import runpy
import unittest

from weir_client import Client
from weir_client.testing import Fake, allowed, denied, misuse, no_decision

from .samples.fake import OrdersTest  # noqa: F401: it is run here
from .samples.hooks import PrintHooks
from .samples.outcomes import create_order
from .samples.wait import export_all
from .samples.with_lease import import_rows
from .support import PACKAGE, ScriptedServer
from .test_middleware import ask_asgi, ask_wsgi

SAMPLES = {path.stem: path.read_text("utf-8") for path in (PACKAGE / "tests" / "samples").glob("[a-z]*.py")}


def run(name, script, use=None):
    """Runs a sample with a server, and returns its output and its checks.

    The samples have the default timeout of 100 ms, which a busy machine may exceed: then the fallback
    allows. Therefore the server gives the same answers as the fallback.
    """
    with ScriptedServer(script) as server, contextlib.redirect_stdout(io.StringIO()) as printed:
        os.environ.update(WEIR_URL=server.url, WEIR_KEY="weir_test_key")
        module = runpy.run_path(str(PACKAGE / "tests" / "samples" / f"{name}.py"))
        answer = use(module) if use else None
        if script:
            server.await_requests(1)
        latest = server.seen()["latest"]
    return printed.getvalue(), answer, json.loads(latest[0]["body"]) if latest else None


class SamplesTest(unittest.TestCase):
    def test_every_sample_is_a_file_and_every_file_is_on_a_page(self):
        shown = set()
        for page in [PACKAGE / "README.md", *(PACKAGE.parent.parent / "docs" / "clients").glob("*.md")]:
            for sample in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
                names = [name for name, content in SAMPLES.items() if content == sample]
                self.assertTrue(names, f"{page}: no file in samples has\n{sample}")
                shown.update(names)
        self.assertEqual(set(SAMPLES), shown)

    def test_first(self):
        for name in ("first", "first_async"):
            printed, _, asked = run(name, ["allowed"])
            self.assertEqual("allowed: True\n", printed)
            self.assertEqual({"subject": "user_42", "resource": "orders:create"}, asked)

    def test_outcomes(self):
        fake = Fake.script(allowed(), denied(1500), no_decision("timeout"), misuse("UNKNOWN_PLAN"))
        with self.assertLogs(level="WARNING") as logs:
            answers = [create_order(fake, "user_42") for _ in range(4)]
        self.assertEqual(["created", "denied: try again in 1500 ms", "created", "wrong:  "], answers)
        self.assertIn("no decision: timeout", logs.output[0])

    def test_options(self):
        _, share, _ = run("options", [], lambda module: module["client"]._core.local._share)
        self.assertEqual(0.25, share)

    def test_leases(self):
        _, background, _ = run("leases", [], lambda module: module["client"]._core.leases)
        self.assertIsNotNone(background)

    def test_flask(self):
        use = lambda module: ask_wsgi(module["app"], "GET", "/orders/7", {"X-Customer": "user_42"})  # noqa: E731
        _, (status, _, body), asked = run("flask_app", ["allowed"], use)
        self.assertEqual((200, {"id": "7"}), (status, json.loads(body)))
        self.assertEqual({"subject": "user_42", "resource": "GET /orders/<id>"}, asked)

    def test_starlette(self):
        def use(module):
            return asyncio.run(ask_asgi(module["app"], "GET", "/orders/7", {"X-Customer": "user_42"}))

        _, (status, _, body), asked = run("starlette_app", ["allowed"], use)
        self.assertEqual((200, {"id": "7"}), (status, json.loads(body)))
        self.assertEqual({"subject": "user_42", "resource": "GET /orders/{id}"}, asked)

    def test_wsgi(self):
        use = lambda module: ask_wsgi(module["app"], "GET", "/", {"X-Api-Key": "secret"})  # noqa: E731
        _, (status, _, body), asked = run("wsgi_app", ["allowed"], use)
        self.assertEqual((200, b"hello", "hello"), (status, body, asked["resource"]))
        self.assertTrue(asked["subject"].startswith("sha256:"))

    def test_wait(self):
        self.assertTrue(export_all(Fake.allow_all(), "user_42"))

    def test_with_lease(self):
        fake = Fake.script(allowed(), allowed(), denied(3000))
        self.assertEqual(2, import_rows(fake, "user_42", ["a", "b", "c", "d"]))

    def test_hooks(self):
        with ScriptedServer(["allowed"]) as server, contextlib.redirect_stdout(io.StringIO()) as printed:
            with Client(server.url, "weir_test_key", timeout_ms=30_000, hooks=[PrintHooks()]) as client:
                client.check("user_42")
        self.assertRegex(printed.getvalue(), r"^check [0-9.]+ ok\n$")
