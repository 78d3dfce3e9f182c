import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { type Call, Client, type ClientOptions, MisuseError, type Result, version } from "@weir-dev/client";
import { otelHooks } from "@weir-dev/client/otel";
import { allowed, delayed, denied, Fake, misuse, noDecision } from "@weir-dev/client/testing";
import { eventually, FakeClock, packageFile, patience, quiet, ScriptedServer } from "./support.js";

const clientOf = (url: string, options: Partial<ClientOptions> = {}) =>
  new Client({ url, key: "weir_test_key", timeoutMs: patience, logger: quiet, ...options });

test("the version is the package's", () => {
  assert.equal(version, (JSON.parse(readFileSync(packageFile("package.json"), "utf8")) as { version: string }).version);
});

/** The sockets and timers in use. Keep-alive connections count, so only those to a closed server are compared. */
function inUse(): string {
  const resources = process.getActiveResourcesInfo().filter((name) => name === "TCPSocketWrap" || name === "TCPConnectWrap" || name === "Timeout");
  return resources.sort().join(" ");
}

const callers = 1000;
const all = { repeat: callers, optional: true };
const soon = { timeoutMs: 200, breaker: false };

/** What the server does with each request, null if it does not listen, and the options of the client. */
const faults: [string, object | null, Partial<ClientOptions>][] = [
  ["hangs", { fault: "hang" }, soon],
  ["hangs, with batching", { fault: "hang" }, { ...soon, batching: true }],
  ["hangs within its answer", { use: "allowed", fault: "hang_in_body" }, soon],
  ["is slow", { use: "allowed", hold: true }, soon],
  ["is slow, with batching", { use: "allowed", hold: true }, { ...soon, batching: true }],
  ["is dead", null, { breaker: false }],
  ["is dead, with the breaker", null, {}],
  ["crashes", { fault: "reset" }, { breaker: false }],
  ["cuts its answers off", { use: "allowed", fault: "cut_body" }, { breaker: false }],
  ["says that the tenant is over its quota", { use: "quota" }, {}],
  ["fails", { use: "internal" }, { breaker: false }],
  ["answers nonsense", { fault: "garbage" }, { breaker: false }],
  ["answers another document", { status: 200, body: "<html>" }, { breaker: false }],
];

for (const [name, does, options] of faults) {
  test(`1000 callers of a server that ${name} leave nothing behind`, async () => {
    const server = await ScriptedServer.start(does ? [{ ...does, ...all }] : [], does !== null);
    await eventually("an idle process", () => !inUse().includes("TCPSocketWrap"));
    const before = inUse();
    const client = clientOf(server.url, options);
    const decisions = await Promise.all(Array.from({ length: callers }, (_, i) => client.check({ subject: `user_${i}` })));
    assert(decisions.every((decision) => decision.allowed && decision.noDecision !== null));
    assert.equal(client.waiting, 0);
    await server.tell("down"); // the connections that a server keeps alive
    await eventually(`the resources before (${before}), now ${inUse()}`, () => inUse() === before);
    await server.end();
  });
}

for (const batching of [false, true]) {
  test(`1000 callers of a server that restarts leave nothing behind${batching ? ", with batching" : ""}`, async () => {
    const server = await ScriptedServer.start([{ use: "allowed", hold: true, repeat: callers + 1, optional: true }]);
    await eventually("an idle process", () => !inUse().includes("TCPSocketWrap"));
    const before = inUse();
    const client = clientOf(server.url, { breaker: false, batching });
    const calls = Array.from({ length: callers }, (_, i) => client.check({ subject: `user_${i}` }));
    await server.await(batching ? 1 : callers / 10);
    await server.tell("down");
    const causes = new Set((await Promise.all(calls)).map(({ noDecision }) => noDecision?.cause));
    assert([...causes].every((cause) => cause === "connection_lost" || cause === "connection_refused"), [...causes].join(" "));
    assert.equal(client.waiting, 0);
    await server.tell("up");
    await server.tell("release");
    assert.equal((await client.check({ subject: "user_42" })).noDecision, null);
    await server.tell("down");
    await eventually(`the resources before (${before}), now ${inUse()}`, () => inUse() === before);
    await server.end();
  });
}

test("a caller who cancels leaves nothing behind, and learns the reason", async () => {
  const server = await ScriptedServer.start([{ fault: "hang", optional: true }]);
  const client = clientOf(server.url, { batching: true });
  const controllers = [new AbortController(), new AbortController()];
  const calls = controllers.map((controller, i) => client.check({ subject: `user_${i}` }, { signal: controller.signal }));
  const reasons = controllers.map((_, i) => new Error(`reason ${i}`));
  controllers.forEach((controller, i) => controller.abort(reasons[i]));
  for (const [i, call] of calls.entries()) await assert.rejects(call, reasons[i]);
  await assert.rejects(client.check({ subject: "user_42" }, { signal: AbortSignal.abort() }), { name: "AbortError" });
  await assert.rejects(client.checkBatch([{ subject: "user_42" }], { signal: AbortSignal.abort() }), { name: "AbortError" });
  await server.end();
});

test("a delay is held until the caller cancels", async () => {
  const server = await ScriptedServer.start([{ use: "delayed", body: { delay_ms: 1e9 } }, { use: "denied", body: { retry_after_ms: 1e9 } }]);
  const client = clientOf(server.url);
  for (const subject of ["delayed", "denied"]) {
    const controller = new AbortController();
    const ended = new Error("enough");
    const waiting = client.wait({ subject }, { signal: controller.signal });
    await eventually("the answer", async () => process.getActiveResourcesInfo().includes("Timeout"));
    setTimeout(() => controller.abort(ended), 20);
    await assert.rejects(waiting, ended);
  }
  await server.end();
});

test("hold resolves when the delay has passed", async () => {
  const clock = new FakeClock();
  const client = clientOf("http://localhost:1", { clock });
  const decision = await Fake.script(delayed(250)).check({ subject: "user_42" });
  await client.hold(decision);
  await client.hold({ ...decision, allowed: false });
  assert.deepEqual(clock.slept, [250]);
});

test("hooks are told of every call", async () => {
  const server = await ScriptedServer.start(["allowed", "denied", "unknown_key", { use: "internal", repeat: 17 }, "allowed"]);
  const told: { call: Call; result?: Result }[] = [];
  const changes: string[] = [];
  const clock = new FakeClock();
  const client = clientOf(server.url, {
    clock,
    hooks: [
      {
        begin(call) {
          const entry: (typeof told)[number] = { call };
          told.push(entry);
          return { headers: { traceparent: "of the hook" }, end: (result) => (entry.result = result) };
        },
        breakerChanged: (from, to) => changes.push(`${from} ${to}`),
      },
      {},
    ],
  });
  await client.check({ subject: "a" });
  assert.deepEqual((await server.seen()).latest[0]?.headers["traceparent"], ["of the hook"]);
  await client.check({ subject: "b" });
  await assert.rejects(client.peek({ subject: "c" }), MisuseError);
  await assert.rejects(client.checkBatch([]), MisuseError);
  for (let i = 0; i < 17; i++) await client.explain({ subject: "d" });
  clock.advance(200);
  await client.wait({ subject: "a" });
  assert.deepEqual(changes, ["closed open", "open half_open", "half_open closed"]);
  assert.deepEqual(told.slice(0, 5).map(({ call }) => call.name), ["check", "check", "peek", "batch", "explain"]);
  assert.equal(told[0]?.result?.decisions?.[0]?.allowed, true);
  assert.equal(told[1]?.result?.decisions?.[0]?.allowed, false);
  assert(told[2]?.result?.error instanceof MisuseError && told[3]?.result?.error instanceof MisuseError);
  assert(told.every(({ result }) => result && result.durationMs >= 0));
  assert.equal(told.at(-1)?.call.name, "check");
  await server.end();
});

test("OpenTelemetry sees spans and metrics, and the server the trace", async () => {
  const spans = new InMemorySpanExporter();
  const tracers = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 2_000_000_000 });
  const meters = new MeterProvider({ readers: [reader] });
  const server = await ScriptedServer.start(["allowed", { use: "internal", repeat: 20 }]);
  const hooks = [otelHooks({ tracer: tracers.getTracer("weir"), meter: meters.getMeter("weir") })];
  const client = clientOf(server.url, { hooks, clock: new FakeClock() });
  await client.check({ subject: "user_42" });
  const [span] = spans.getFinishedSpans();
  assert(span);
  const { traceId, spanId } = span.spanContext();
  assert.deepEqual((await server.seen()).latest[0]?.headers["traceparent"], [`00-${traceId}-${spanId}-01`]);
  assert.deepEqual([span.name, span.kind], ["weir check", 2]);
  assert.deepEqual(span.attributes, { "weir.checks": 1, "weir.outcome": "allowed", "weir.source": "server", "weir.rule": "api" });
  await assert.rejects(client.check({ subject: "" }));
  assert.equal(spans.getFinishedSpans()[1]?.status.message, "misuse");
  for (let i = 0; i < 20; i++) await client.check({ subject: "user_42" });
  await reader.forceFlush();
  const metrics = exporter.getMetrics()[0]?.scopeMetrics[0]?.metrics ?? [];
  const points = (name: string) => metrics.find(({ descriptor }) => descriptor.name === name)?.dataPoints.map(({ attributes, value }) => ({ ...attributes, value }));
  assert.deepEqual(points("weir.client.checks"), [
    { "weir.outcome": "allowed", "weir.source": "server", value: 1 },
    { "weir.outcome": "misuse", value: 1 },
    { "weir.outcome": "allowed", "weir.source": "fallback", "weir.cause": "server_error", value: 19 },
    { "weir.outcome": "allowed", "weir.source": "fallback", "weir.cause": "breaker_open", value: 1 },
  ]);
  assert.deepEqual(points("weir.client.breaker.openings"), [{ value: 1 }]);
  const durations = points("weir.client.duration")?.map((point) => (point as Record<string, unknown>)["weir.outcome"]);
  assert.deepEqual(durations, ["decision", "misuse", "no_decision"]);
  await meters.shutdown();
  await server.discard();
});

test("without OpenTelemetry's parts the hooks do nothing", async () => {
  const server = await ScriptedServer.start(["allowed"]);
  assert.equal((await clientOf(server.url, { hooks: [otelHooks({})] }).check({ subject: "user_42" })).allowed, true);
  assert.equal((await server.seen()).latest[0]?.headers["traceparent"], undefined);
  await server.end();
});

test("the fake answers as told and records what was asked", async () => {
  const fake = Fake.script(allowed(), denied(1500), delayed(20), noDecision("timeout"), noDecision("timeout", "deny"), misuse("UNKNOWN_PLAN"));
  assert.equal((await fake.check({ subject: "a", cost: 3 })).cost, 3);
  const [second, third] = await fake.checkBatch([{ subject: "b" }, { subject: "c", resource: "r" }]);
  assert.deepEqual([second?.allowed, second?.retryAfterMs, second?.denial?.retryAfter, second?.headers["Retry-After"]], [false, 1500, 2, "2"]);
  assert(third);
  await fake.hold(third);
  assert.deepEqual(fake.held, [20]);
  assert.equal((await fake.peek({ subject: "d" })).noDecision?.cause, "timeout");
  assert.equal((await fake.wait({ subject: "e" })).denial?.code, "LIMITER_UNAVAILABLE");
  await assert.rejects(fake.explain({ subject: "f" }), { name: "MisuseError", code: "UNKNOWN_PLAN" });
  await assert.rejects(fake.check({ subject: "g" }), /no answer left for the check of g/);
  await assert.rejects(fake.check({ subject: "h" }, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.deepEqual(fake.asked.map(({ subject, resource, cost }) => [subject, resource, cost]).slice(0, 4), [
    ["a", "default", 3], ["b", "default", 1], ["c", "r", 1], ["d", "default", 0],
  ]);
  assert.equal((await Fake.allowAll().check({ subject: "a" })).allowed, true);
  assert.equal((await Fake.denyAll().check({ subject: "a" })).allowed, false);
  assert.equal((await Fake.func((check) => (check.subject === "a" ? allowed() : denied(1))).check({ subject: "a" })).allowed, true);
});

test("an error says what is wrong and what to do", async () => {
  const client = clientOf("http://localhost:1");
  await assert.rejects(client.check({ subject: "" }), {
    name: "MisuseError",
    message: "weir: INVALID_REQUEST: subject is empty. Pass 1 to 256 bytes of UTF-8 without control characters. hashSubject shortens longer values and hides secrets.",
  });
  await assert.rejects(client.check(undefined as never), { field: "/subject" });
  await assert.rejects(client.check({ subject: "a", plan: 5 as never }), { field: "/plan" });
  await assert.rejects(client.check({ subject: "a", attributes: "ip" as never }), { field: "/attributes" });
  await assert.rejects(client.checkBatch("a" as never), { field: "/checks" });
  assert.equal(new MisuseError({ status: 404, code: "", detail: "", errors: [] }).message, "weir: status 404: the answer is not from Weir; check the URL");
});

test("answers of wrong types are no decision", async () => {
  const wrong = [{ limit: "many" }, { cost: 1.5 }, { rules: {} }, { rules: ["api"] }, { error: "denied" }, { plan: 5 }, { degraded: "no" }];
  const server = await ScriptedServer.start(wrong.map((body) => ({ use: "allowed", body })));
  const client = clientOf(server.url);
  for (const body of wrong) {
    assert.equal((await client.check({ subject: "user_42" })).noDecision?.cause, "invalid_answer", JSON.stringify(body));
  }
  await server.end();
});

// Runtimes report the same error with different messages.
for (const [name, error, cause] of [
  ["Bun refuses", Object.assign(new Error("Unable to connect"), { code: "ConnectionRefused" }), "connection_refused"],
  ["Deno refuses", new TypeError("error sending request", { cause: new Error("tcp connect error: Connection refused (os error 111)") }), "connection_refused"],
  ["Node refuses on two addresses", new TypeError("fetch failed", { cause: Object.assign(new AggregateError([Object.assign(new Error(), { code: "ECONNREFUSED" })])) }), "connection_refused"],
  ["an edge runtime says nothing", new TypeError("Network connection lost."), "connection_lost"],
  ["no error object", "failed", "connection_lost"],
  ["a connect timeout", new TypeError("fetch failed", { cause: Object.assign(new Error(), { code: "UND_ERR_CONNECT_TIMEOUT" }) }), "timeout"],
] as [string, unknown, string][]) {
  test(`the fault of a connection: ${name}`, async () => {
    const client = clientOf("http://localhost:1", { fetch: () => Promise.reject(error) });
    assert.equal((await client.check({ subject: "user_42" })).noDecision?.cause, cause);
  });
}

test("a compressed answer is limited by its own length", async () => {
  const fetch = async () =>
    new Response(new Uint8Array((1 << 20) + 1), { headers: { "content-length": "20", "content-encoding": "gzip", "weir-decision": "allow" } });
  const decision = await clientOf("http://localhost:1", { fetch }).check({ subject: "user_42" });
  assert.equal(decision.noDecision?.cause, "invalid_answer");
});
