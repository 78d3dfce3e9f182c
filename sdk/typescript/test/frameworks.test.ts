// Runs the middleware cases of the suite with each framework.
import assert from "node:assert/strict";
import { createServer, type IncomingMessage, request as httpRequest, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import express from "express";
import Fastify, { type FastifyReply, type FastifyRequest } from "fastify";
import { type Context, Hono } from "hono";
import { NextRequest, NextResponse } from "next/server.js";
import { Client, guardFetch, type GuardOptions, routeName } from "@weir-dev/client";
import { guard as expressGuard } from "@weir-dev/client/express";
import { guard as fastifyGuard } from "@weir-dev/client/fastify";
import { guard as honoGuard } from "@weir-dev/client/hono";
import { guardProxy, guardRoute } from "@weir-dev/client/next";
import { Fake, denied } from "@weir-dev/client/testing";
import { clientOptions, compareRequest, CountingLogger, FakeClock, quiet, readSuite, type RequestPattern, ScriptedServer, subset, type SuiteOptions } from "./support.js";

interface Case {
  name: string;
  options?: SuiteOptions;
  middleware: { subject: string; resource?: string; cost?: number; skip?: string[]; on_denied_status?: number; on_misuse_status?: number };
  server: unknown[];
  handler_headers?: Record<string, string>;
  request: { method: string; path: string; headers: Record<string, string> };
  expect: {
    status: number;
    headers?: Record<string, string | null>;
    body?: unknown;
    handler_called?: boolean;
    requests?: number;
    request?: RequestPattern;
    slept_ms?: number[];
    errors_logged?: number;
  };
}

/** The data of a case for an application. */
interface Setting {
  client: Client;
  logger: CountingLogger;
  middleware: Case["middleware"];
  handlerHeaders: Record<string, string>;
  handlerCalled(): void;
}

/** An application with the routes of the suite behind the middleware. */
interface Framework {
  name: string;
  /** Its form of the template /orders/{id}. */
  template: string;
  serve(setting: Setting): Promise<(request: Case["request"]) => Promise<Response>>;
}

/** The options that are the same in all frameworks. header and path read a request of the framework. */
function common<R>({ client, logger, middleware }: Setting, header: (request: R, name: string) => string | null | undefined, path: (request: R) => string) {
  const { resource, cost, skip } = middleware;
  const name = middleware.subject.replace(/^header:/, "");
  const options: GuardOptions<R> = { client, logger, subject: (request) => header(request, name) };
  if (resource !== undefined) options.resource = () => resource;
  if (cost !== undefined) options.cost = () => cost;
  if (skip) options.skip = (request) => skip.includes(path(request));
  return options;
}

const overNetwork = async (server: Server, request: Case["request"]): Promise<Response> => {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await fetchOnce(server, request);
  } finally {
    await new Promise((resolve) => server.close(resolve));
  }
};

/** Sends a request over a new connection. */
async function fetchOnce(server: Server, { method, path, headers }: Case["request"]): Promise<Response> {
  const { port } = server.address() as AddressInfo;
  return fetch(`http://127.0.0.1:${port}${path}`, { method, headers: { ...headers, connection: "close" } });
}

/** One Fetch API handler for each route of the suite. */
function webApplication(setting: Setting, guarded: (template: string, handler: () => Response) => (request: Request) => Promise<Response>) {
  const handler = () => {
    setting.handlerCalled();
    return new Response("ok", { headers: setting.handlerHeaders });
  };
  const routes = new Map([
    ["/healthz", guarded("/healthz", handler)],
    ["/orders/7", guarded("/orders/[id]", handler)],
  ]);
  return async ({ method, path, headers }: Case["request"]) => {
    const route = routes.get(path);
    assert(route);
    return route(new NextRequest(`http://localhost${path}`, { method, headers }));
  };
}

const webOptions = (setting: Setting) => {
  const { on_denied_status: onDenied, on_misuse_status: onMisuse } = setting.middleware;
  return {
    ...common<Request>(setting, (request, name) => request.headers.get(name), (request) => new URL(request.url).pathname),
    ...(onDenied ? { onDenied: () => new Response("custom", { status: onDenied }) } : {}),
    ...(onMisuse ? { onMisuse: () => new Response("custom misuse", { status: onMisuse }) } : {}),
  };
};

const frameworks: Framework[] = [
  {
    name: "Express",
    template: "/orders/:id",
    async serve(setting) {
      const { on_denied_status: onDenied, on_misuse_status: onMisuse } = setting.middleware;
      const guarded = expressGuard<express.Request, express.Response>({
        ...common<express.Request>(setting, (request, name) => request.get(name), (request) => request.path),
        ...(onDenied ? { onDenied: (_request, response) => response.status(onDenied).send("custom") } : {}),
        ...(onMisuse ? { onMisuse: (_request, response) => response.status(onMisuse).send("custom misuse") } : {}),
      });
      const app = express();
      app.get("/orders/:id", guarded, answer);
      app.get("/healthz", guarded, answer);
      function answer(_request: express.Request, response: express.Response): void {
        setting.handlerCalled();
        response.set(setting.handlerHeaders).send("ok");
      }
      return (request) => overNetwork(createServer(app), request);
    },
  },
  {
    name: "Fastify",
    template: "/orders/:id",
    async serve(setting) {
      const { on_denied_status: onDenied, on_misuse_status: onMisuse } = setting.middleware;
      const app = Fastify();
      app.addHook(
        "onRequest",
        fastifyGuard<FastifyRequest, FastifyReply>({
          ...common<FastifyRequest>(setting, (request, name) => request.headers[name.toLowerCase()] as string, (request) => request.url),
          ...(onDenied ? { onDenied: (_request, reply) => reply.code(onDenied).send("custom") } : {}),
          ...(onMisuse ? { onMisuse: (_request, reply) => reply.code(onMisuse).send("custom misuse") } : {}),
        }),
      );
      for (const path of ["/orders/:id", "/healthz"]) {
        app.get(path, async (_request, reply) => {
          setting.handlerCalled();
          return reply.headers(setting.handlerHeaders).send("ok");
        });
      }
      await app.ready();
      return (request) => overNetwork(app.server, request);
    },
  },
  {
    name: "Hono",
    template: "/orders/:id",
    async serve(setting) {
      const { on_denied_status: onDenied, on_misuse_status: onMisuse } = setting.middleware;
      const guarded = honoGuard<Context>({
        ...common<Context>(setting, (context, name) => context.req.header(name), (context) => context.req.path),
        ...(onDenied ? { onDenied: (context) => context.text("custom", onDenied as 403) } : {}),
        ...(onMisuse ? { onMisuse: (context) => context.text("custom misuse", onMisuse as 418) } : {}),
      });
      const app = new Hono();
      for (const path of ["/orders/:id", "/healthz"]) {
        app.get(path, guarded, (context) => {
          setting.handlerCalled();
          return context.text("ok", 200, setting.handlerHeaders);
        });
      }
      return async ({ method, path, headers }) => app.request(path, { method, headers });
    },
  },
  {
    name: "Next, a route handler",
    template: "/orders/[id]",
    serve: async (setting) => webApplication(setting, (route, handler) => guardRoute(handler, { ...webOptions(setting), route })),
  },
  {
    name: "Next, the proxy",
    template: "/orders/[id]",
    serve: async (setting) =>
      webApplication(setting, (route, handler) => {
        const options = webOptions(setting);
        return guardProxy({ ...options, resource: options.resource ?? ((request: Request) => routeName(request.method, route)), next: handler });
      }),
  },
  {
    name: "the Fetch API",
    template: "/orders/[id]",
    serve: async (setting) => webApplication(setting, (route, handler) => guardFetch(handler, { ...webOptions(setting), route })),
  },
];

for (const framework of frameworks) {
  for (const one of readSuite<{ cases: Case[] }>("middleware").cases) {
    test(`${framework.name}: ${one.name}`, async () => {
      const server = await ScriptedServer.start(one.server);
      try {
        await play(framework, one, server);
      } catch (error) {
        await server.discard();
        throw error;
      }
      await server.end();
    });
  }
}

async function play(framework: Framework, one: Case, server: ScriptedServer): Promise<void> {
  const clock = new FakeClock();
  const logger = new CountingLogger();
  const client = new Client({ ...clientOptions(server.url, one.options), clock, logger: quiet });
  let called = false;
  const setting = { client, logger, middleware: one.middleware, handlerHeaders: one.handler_headers ?? {}, handlerCalled: () => (called = true) };
  const ask = await framework.serve(setting);
  const response = await ask(one.request);
  const body = await response.text();
  const { expect } = one;
  assert.equal(response.status, expect.status, body);
  for (const [name, value] of Object.entries(expect.headers ?? {})) assert.equal(response.headers.get(name), value, name);
  if (typeof expect.body === "string") assert.equal(body, expect.body);
  else if (expect.body) subset("body", expect.body, JSON.parse(body));
  if (expect.handler_called !== undefined) assert.equal(called, expect.handler_called);
  if (expect.slept_ms) assert.deepEqual(clock.slept, expect.slept_ms);
  if (expect.errors_logged !== undefined) assert.equal(logger.errors, expect.errors_logged);
  const { requests, latest } = await server.seen();
  if (expect.requests !== undefined) assert.equal(requests, expect.requests);
  if (expect.request) compareRequest(spelled(expect.request, framework.template), latest[0]);
}

/** The pattern with the framework's form of the route template. */
function spelled(pattern: RequestPattern, template: string): RequestPattern {
  return JSON.parse(JSON.stringify(pattern).replace("/orders/{id}", template)) as RequestPattern;
}

// Tests beyond the suite, because only some frameworks have these features.

// The mount path of a router is known only as the customer wrote it, so it must not be part of a resource.
test("Express: a guard for all routes names the method alone, and one in a router the route within it", async () => {
  const fake = Fake.allowAll();
  const guarded = expressGuard({ client: fake, subject: () => "user_42" });
  const router = express.Router();
  router.get("/items/:item", guarded, (_request, response) => void response.send("ok"));
  const app = express();
  app.use("/first", guarded, (_request, response) => void response.send("ok"));
  app.use("/orders/:id", router);
  for (const path of ["/first/7", "/orders/7/items/8"]) {
    assert.equal((await overNetwork(createServer(app), { method: "GET", path, headers: {} })).status, 200);
  }
  assert.equal((await overNetwork(createServer(app), { method: "PROPFIND", path: "/first/7", headers: {} })).status, 200);
  assert.deepEqual(fake.asked.map(({ resource }) => resource), ["GET", "GET /items/:item", "OTHER"]);
});

test("Fastify: an unknown path names the method alone", async () => {
  const fake = Fake.allowAll();
  const app = Fastify();
  app.addHook("onRequest", fastifyGuard({ client: fake, subject: () => "user_42" }));
  await app.ready();
  assert.equal((await overNetwork(app.server, { method: "GET", path: "/nowhere", headers: {} })).status, 404);
  assert.deepEqual(fake.asked.map(({ resource }) => resource), ["GET"]);
});

const lax = { "X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "1000" };

test("Express: the stricter headers stand, however the handler sends its own", async () => {
  const guarded = expressGuard({ client: Fake.allowAll(), subject: () => "user_42" });
  const app = express().use(guarded, guarded);
  app.get("/head", (_request, response) => void response.writeHead(200, lax).end("ok"));
  app.get("/append", (_request, response) => {
    for (const [name, value] of Object.entries(lax)) response.append(name, value);
    response.send("ok");
  });
  app.get("/empty", (_request, response) => void response.set(lax).status(204).end());
  app.get("/strict", (_request, response) => void response.writeHead(200, { "x-ratelimit-limit": "100", "x-ratelimit-remaining": "1", "x-own": "kept" }).end());
  const sent: Record<string, unknown> = {};
  for (const path of ["/head", "/append", "/empty", "/strict"]) {
    const { headers } = await overNetwork(createServer(app), { method: "GET", path, headers: {} });
    sent[path] = [headers.get("X-RateLimit-Limit"), headers.get("X-RateLimit-Remaining"), headers.get("X-Own")];
  }
  assert.deepEqual(sent, {
    "/head": ["100", "99", null],
    "/append": ["100", "99", null],
    "/empty": ["100", "99", null],
    "/strict": ["100", "1", "kept"],
  });
});

test("Hono: a guard for all routes names the route behind it", async () => {
  const fake = Fake.allowAll();
  const ok = (context: Context) => context.text("ok");
  const app = new Hono().use(honoGuard({ client: fake, subject: () => "user_42" })).use("/orders/*", (_context, next) => next());
  app.get("/orders/new", ok).get("/orders/:id", ok).all("/any/:id", ok).get("/files/*", ok);
  app.route("/shop", new Hono().get("/items/:item", ok));
  const asked: Record<string, string> = {};
  for (const path of ["/orders/7", "/orders/new", "/shop/items/8", "/any/7", "/files/a/b", "/nowhere"]) {
    await app.request(path);
    asked[path] = fake.asked.at(-1)?.resource ?? "";
  }
  assert.deepEqual(asked, {
    "/orders/7": "GET /orders/:id",
    "/orders/new": "GET /orders/new",
    "/shop/items/8": "GET /shop/items/:item",
    "/any/7": "GET",
    "/files/a/b": "GET",
    "/nowhere": "GET",
  });
});

test("the answer of another service gets the headers, though its own are read-only", async () => {
  const server = await ScriptedServer.start(["allowed"]);
  const handler = guardFetch(async () => fetch(server.url), { client: Fake.allowAll(), subject: () => "user_42", route: "/orders" });
  const response = await handler(new Request("http://localhost/orders"));
  assert.equal(response.headers.get("X-RateLimit-Limit"), "100");
  await response.text();
  await server.end();
});

test("Next: the proxy lets requests through with the headers", async () => {
  const proxy = guardProxy<NextRequest>({ client: Fake.allowAll(), subject: () => "user_42", resource: () => "pages", next: () => NextResponse.next() });
  const response = await proxy(new NextRequest("http://localhost/page"));
  assert.equal(response.headers.get("x-middleware-next"), "1");
  assert.equal(response.headers.get("X-RateLimit-Remaining"), "99");
});

test("an error of subject reaches the framework", async () => {
  const client = Fake.allowAll();
  const subject = () => {
    throw new Error("no session");
  };
  const app = express();
  app.get("/", expressGuard({ client, subject }), (_request, response) => void response.send("ok"));
  app.use((error: Error, _request: express.Request, response: express.Response, _next: express.NextFunction) => void response.status(500).send(error.message));
  const response = await overNetwork(createServer(app), { method: "GET", path: "/", headers: {} });
  assert.deepEqual([response.status, await response.text()], [500, "no session"]);
});

for (const [name, listen] of Object.entries({
  Express: async (client: Client, called: () => void): Promise<Server> => {
    const app = express();
    app.get("/", expressGuard({ client, subject: () => "user_42" }), called);
    return createServer(app);
  },
  Fastify: async (client: Client, called: () => void): Promise<Server> => {
    const app = Fastify();
    app.addHook("onRequest", fastifyGuard({ client, subject: () => "user_42" }));
    app.get("/", async () => called());
    await app.ready();
    return app.server;
  },
})) {
  test(`${name}: a customer who disconnects ends the check`, async () => {
    const weir = await ScriptedServer.start([{ use: "allowed", hold: true }]);
    const client = new Client({ url: weir.url, key: "weir_test_key", timeoutMs: 30_000, logger: quiet, clock: new FakeClock() });
    const check = client.check.bind(client);
    let ended: Promise<unknown> | undefined;
    client.check = (...args) => (ended = check(...args));
    let called = false;
    const server = await listen(client, () => (called = true));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const customer = httpRequest({ port: (server.address() as AddressInfo).port });
    customer.on("error", () => {}); // it is destroyed
    customer.end();
    await weir.await(1);
    customer.destroy();
    await assert.rejects(ended ?? Promise.resolve(), { name: "AbortError" });
    assert.equal(called, false);
    await weir.tell("release");
    await new Promise((resolve) => server.close(resolve));
    await weir.end();
  });
}

test("an own answer to a denial keeps what it says", async () => {
  const handler = guardFetch(() => new Response("ok"), {
    client: Fake.script(denied(1500)),
    subject: () => "user_42",
    onDenied: (_request, decision) => Response.json({ wait: decision.retryAfterMs }, { status: 403 }),
  });
  const response = await handler(new Request("http://localhost/"));
  assert.deepEqual([response.status, await response.json(), response.headers.get("Retry-After")], [403, { wait: 1500 }, "2"]);
});
