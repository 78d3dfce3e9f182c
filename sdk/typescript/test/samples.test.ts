// Every TypeScript sample of the pages is a file in samples/, word for word. This runs them.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { Client } from "@weir-dev/client";
import { allowed, denied, Fake, misuse, noDecision } from "@weir-dev/client/testing";
import { packageFile, quiet, ScriptedServer } from "./support.js";

const samples = new Map(readdirSync(packageFile("test/samples")).map((name) => [name, readFileSync(packageFile(`test/samples/${name}`), "utf8")]));

test("every sample of the pages is a file in samples, and every such file is on a page", () => {
  const shown = new Set<string>();
  const folder = packageFile("../../docs/clients");
  const pages = [packageFile("README.md"), ...readdirSync(folder).map((name) => `${folder}/${name}`)];
  for (const page of pages) {
    for (const [, sample] of readFileSync(page, "utf8").matchAll(/```ts\n(.*?)```/gs)) {
      const name = [...samples].find(([, content]) => content === sample)?.[0];
      assert(name, `${page}: no file in samples has\n${sample}`);
      shown.add(name);
    }
  }
  assert.deepEqual([...samples.keys()].filter((name) => !shown.has(name)), []);
});

/** Starts a server for the samples, which read its address from their environment when they are imported. */
async function served(t: TestContext, script: unknown[]): Promise<ScriptedServer> {
  const server = await ScriptedServer.start(script);
  t.after(() => server.discard());
  process.env["WEIR_URL"] = server.url;
  process.env["WEIR_KEY"] = "weir_test_key";
  return server;
}

/** Requests order 7 from a Node server, with every header that a sample uses as the subject. */
async function order(server: Server): Promise<Response> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const response = await fetch(`http://127.0.0.1:${port}/orders/7`, { headers: { "X-Customer": "user_42", "X-Api-Key": "secret", connection: "close" } });
  await new Promise((resolve) => server.close(resolve));
  return response;
}

/** The resource of the check. It shows that the sample sent one, even on a slow machine. */
async function resource(server: ScriptedServer): Promise<unknown> {
  const { latest } = await server.seen();
  return (JSON.parse(latest[0]?.body ?? "{}") as { resource?: string }).resource;
}

// The samples have the default timeout of 100 ms, which a busy machine may exceed: then the fallback allows. Therefore
// the server gives the same answers as the fallback.
test("first", async (t) => {
  const server = await served(t, ["allowed"]);
  const log = t.mock.method(console, "log", () => {});
  await import("./samples/first.js");
  assert.deepEqual(log.mock.calls[0]?.arguments, ["allowed:", true]);
  await server.await(1);
  assert.equal(await resource(server), "orders:create");
});

test("outcomes", async (t) => {
  const { createOrder } = await import("./samples/outcomes.js");
  const warn = t.mock.method(console, "warn", () => {});
  const fake = Fake.script(allowed(), denied(1500), noDecision("timeout"), misuse("UNKNOWN_PLAN"));
  const answers = [];
  for (let i = 0; i < 4; i++) answers.push(await createOrder(fake as unknown as Client, "user_42"));
  assert.deepEqual(answers, ["created", "denied: try again in 1500 ms", "created", "wrong:  "]);
  assert.deepEqual(warn.mock.calls[0]?.arguments, ["no decision:", "timeout"]);
});

test("options", async (t) => {
  await served(t, []);
  const { client } = await import("./samples/options.js");
  await assert.rejects(client.check({ subject: "" }), { field: "/subject" });
});

test("express", async (t) => {
  const server = await served(t, ["allowed"]);
  const { app } = await import("./samples/express.js");
  assert.deepEqual(await (await order(createServer(app))).json(), { id: "7" });
  await server.await(1);
  assert.equal(await resource(server), "GET /orders/:id");
});

test("fastify", async (t) => {
  const server = await served(t, ["allowed"]);
  const { app } = await import("./samples/fastify.js");
  await app.ready();
  assert.deepEqual(await (await order(app.server)).json(), { ok: true });
  await server.await(1);
  assert.equal(await resource(server), "GET /orders/:id");
});

const request = (path: string) => new Request(`http://localhost${path}`, { headers: { "X-Customer": "user_42" } });

test("hono", async (t) => {
  const server = await served(t, ["allowed"]);
  const { app } = await import("./samples/hono.js");
  assert.deepEqual(await (await app.request(request("/orders/7"))).json(), { id: "7" });
  await server.await(1);
  assert.equal(await resource(server), "GET /orders/:id");
});

test("next", async (t) => {
  const { NextRequest } = await import("next/server.js");
  const server = await served(t, [{ use: "allowed", repeat: 2 }]);
  const { GET } = await import("./samples/next-route.js");
  const answer = await GET(new NextRequest(request("/orders/7")), { params: Promise.resolve({ id: "7" }) });
  assert.deepEqual(await answer.json(), { id: "7" });
  await server.await(1);
  assert.equal(await resource(server), "GET /orders/[id]");
  const { proxy } = await import("./samples/next-proxy.js");
  assert.equal((await proxy(new NextRequest(request("/page")))).headers.get("x-middleware-next"), "1");
  await server.await(2);
  assert.equal(await resource(server), "pages");
});

test("fetch", async (t) => {
  const server = await served(t, ["allowed"]);
  const { default: worker } = await import("./samples/fetch.js");
  assert.equal(await (await worker.fetch(request("/hello"))).text(), "hello");
  await server.await(1);
  assert.equal(await resource(server), "GET /hello");
});

test("wait", async () => {
  const { exportAll } = await import("./samples/wait.js");
  assert.equal(await exportAll(Fake.allowAll() as unknown as Client, "user_42"), true);
});

test("withLease", async () => {
  const { importRows } = await import("./samples/with-lease.js");
  const fake = Fake.script(allowed(), allowed(), denied(3000));
  assert.equal(await importRows(fake as unknown as Client, "user_42", ["a", "b", "c", "d"]), 2);
});

test("hooks and otel", async (t) => {
  await served(t, ["allowed"]);
  const log = t.mock.method(console, "log", () => {});
  const { hooks } = await import("./samples/hooks.js");
  await new Client({ url: process.env["WEIR_URL"], key: "weir_test_key", timeoutMs: 30_000, hooks: [hooks], logger: quiet }).check({ subject: "user_42" });
  assert.deepEqual([log.mock.calls[0]?.arguments[0], log.mock.calls[0]?.arguments[2]], ["check", "ok"]);
  const { client } = await import("./samples/otel.js");
  await assert.rejects(client.check({ subject: "" }), { field: "/subject" });
});

await import("./samples/fake.js");
