// Tests with a real server. make test-clients starts it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { type Check, Client, type ClientOptions, guardFetch, MisuseError } from "@weir-dev/client";
import { environment, eventually, patience, quiet } from "./support.js";

const url = environment("WEIR_TEST_URL");
const key = environment("WEIR_TEST_KEY");

/** A client of the real server. Its timeout is long, so that a busy machine fails no test of decisions. */
const realClient = (options: Partial<ClientOptions> = {}) => new Client({ url, key, timeoutMs: patience, logger: quiet, ...options });

/** Creates a rule for one resource and returns when it is in force. */
async function rule(client: Client, slug: string, fields: Record<string, unknown>): Promise<void> {
  const response = await fetch(`${url}/v1/rules/${slug}`, {
    method: "PUT",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ resource: slug, ...fields }),
  });
  assert(response.ok, await response.text());
  await eventually(`rule ${slug}`, async () => (await client.peek({ subject: "peek", resource: slug })).rule === slug);
}

const hourly = (limit: number) => ({ limit, window: "1h", algorithm: "fixed_window_first_hit" });

test("decisions", async () => {
  const client = realClient();
  await rule(client, "ts-decides", hourly(2));
  const check = { subject: "user_42", resource: "ts-decides" };
  for (const left of [1, 0]) {
    const decision = await client.check(check);
    assert.deepEqual([decision.allowed, decision.source, decision.rule, decision.limit, decision.remaining], [true, "server", "ts-decides", 2, left]);
    assert.deepEqual([decision.rules[0]?.windowMs, decision.headers["X-RateLimit-Remaining"]], [3_600_000, String(left)]);
    assert(decision.headers["RateLimit"]);
  }
  const denied = await client.check(check);
  assert.deepEqual([denied.allowed, denied.source, denied.denial?.code], [false, "server", "RATE_LIMIT_EXCEEDED"]);
  assert(denied.retryAfterMs && denied.headers["Retry-After"]);
  assert.equal((await client.check(check)).source, "memory");
  const never = await client.check({ ...check, subject: "user_43", cost: 3 });
  assert.deepEqual([never.allowed, never.retryAfterMs, never.denial?.code], [false, null, "COST_EXCEEDS_LIMIT"]);
  const explained = await client.explain({ subject: "user_44", resource: "elsewhere" });
  assert(explained.allowed && explained.skipped.length > 0);
  assert.equal((await client.peek({ ...check, subject: "user_44" })).remaining, 2, "explain or peek has taken units");
});

test("batches", async () => {
  const client = realClient();
  await rule(client, "ts-batches", hourly(2));
  const check = { subject: "user_42", resource: "ts-batches" };
  const decisions = await client.checkBatch([check, check, check, { ...check, subject: 'größe "42"' }]);
  assert.deepEqual(decisions.map(({ allowed }) => allowed), [true, true, false, true]);
  assert(decisions.every(({ noDecision, headers }) => noDecision === null && headers["X-RateLimit-Limit"] === "2"));
  assert.equal(decisions[3]?.subject, 'größe "42"');
  assert(decisions[2]?.headers["Retry-After"]);
});

for (const [slug, batching] of [["ts-callers", false], ["ts-callers-batching", true]] as const) {
  test(`however many callers ask, a limit of 100 lets 100 through: ${slug}`, async () => {
    const client = realClient({ batching });
    await rule(client, slug, hourly(100));
    const calls = Array.from({ length: 250 }, () => client.check({ subject: "user_42", resource: slug }));
    const decisions = await Promise.all(calls);
    assert.equal(decisions.filter(({ allowed }) => allowed).length, 100);
    assert(decisions.every(({ noDecision }) => noDecision === null));
  });
}

/** A window whose end is more than a day away. */
function quietWindow(): string {
  const day = 86_400_000;
  for (let days = 360; ; days -= 7) if (days * day - (Date.now() % (days * day)) > day) return `${days}d`;
}

// Clients take units in advance, and each unit is granted once: as many checks are allowed as without leases.
test("however many clients lease units, a limit of 4000 lets 4000 through", async () => {
  const limit = 4000;
  await rule(realClient(), "ts-leased", { limit, window: quietWindow(), algorithm: "fixed_window", consistency: "leased", lease: "1s", on_unavailable: "deny" });
  const clients = Array.from({ length: 4 }, () => realClient({ leases: true, onFailure: "deny", denialMemory: false }));
  let [allowed, leased, ended] = [0, 0, false];
  const caller = async (client: Client) => {
    while (!ended) {
      const decision = await client.check({ subject: "user_42", resource: "ts-leased" });
      assert.equal(decision.noDecision, null);
      if (decision.allowed) allowed++;
      if (decision.source === "lease") leased++;
      // Requests of leases need a turn of the event loop, too.
      if (!decision.allowed || decision.source === "lease") await new Promise((resolve) => setTimeout(resolve, decision.allowed ? 0 : 20));
    }
  };
  const callers = clients.flatMap((client) => Array.from({ length: 8 }, () => caller(client)));
  try {
    await eventually(`${limit} allowed checks`, () => allowed >= limit);
  } finally {
    ended = true;
    await Promise.all(callers);
    await Promise.all(clients.map((client) => client.close()));
  }
  assert.equal(allowed, limit);
  assert(leased > limit / 10, `${leased} checks from leases`);
  const { remaining } = await realClient().peek({ subject: "user_42", resource: "ts-leased" });
  assert.equal(remaining, 0);
});

test("misuse", async () => {
  const client = realClient({ batching: true });
  const check: Check = { subject: "user_42", plan: "platinum" };
  await assert.rejects(client.check(check), { status: 422, code: "UNKNOWN_PLAN", field: "/plan" });
  await assert.rejects(client.checkBatch([{ subject: "user_42" }, check]), { status: 422, field: "/checks/1/plan" });
  await assert.rejects(realClient({ key: "weir_nonsense" }).check({ subject: "user_42" }), { status: 401, code: "MALFORMED_KEY" });
  await assert.rejects(realClient({ url: `${url}/elsewhere` }).check({ subject: "user_42" }), { status: 404 });
});

// The server accepts everything that this client accepts.
test("client and server agree on what is valid", async () => {
  const client = realClient();
  const long = "a".repeat(256);
  for (const check of [
    { subject: long, resource: "é".repeat(128), cost: 1e15 },
    { subject: " \u00a0\u2028\u200b\ufeff🙂 " },
    { subject: "user_42", attributes: { ["n".repeat(64)]: long, "A-z.0_9": "v" } },
    { subject: "user_42", idempotencyKey: `!~${process.hrtime.bigint()}` },
  ]) {
    assert.equal((await client.check(check)).noDecision, null, JSON.stringify(check));
  }
});

test("the same key counts once", async () => {
  const client = realClient();
  await rule(client, "ts-idempotent", hourly(5));
  const check = { subject: "user_42", resource: "ts-idempotent", idempotencyKey: `k-${process.hrtime.bigint()}` };
  for (let i = 0; i < 4; i++) {
    const { allowed, remaining, replayed } = await client.check(check);
    assert.deepEqual([allowed, remaining, replayed], [true, 4, i > 0]);
  }
});

test("wait", async () => {
  const client = realClient();
  await rule(client, "ts-waits", { limit: 10, window: "1s", burst: 1, algorithm: "token_bucket" });
  await rule(client, "ts-queues", { limit: 20, window: "1s", burst: 5, algorithm: "leaky_bucket_queue" });
  for (const resource of ["ts-waits", "ts-queues"]) {
    for (let i = 0; i < 3; i++) {
      const { allowed, noDecision } = await client.wait({ subject: "user_42", resource });
      assert.deepEqual([allowed, noDecision], [true, null]);
    }
  }
});

test("middleware", async () => {
  const client = realClient();
  await rule(client, "ts-guards", hourly(1));
  const handler = guardFetch(() => new Response("ok"), { client, subject: () => "user_42", resource: () => "ts-guards" });
  for (const status of [200, 429, 429]) {
    const response = await handler(new Request("http://localhost/"));
    assert.equal(response.status, status);
    assert.equal(response.headers.get("X-RateLimit-Limit"), "1");
    assert.equal(response.headers.has("Retry-After"), status !== 200);
  }
});

const serverPid = () => Number(readFileSync(environment("WEIR_TEST_PIDFILE"), "utf8"));

// Callers wait for a hanging server until the breaker opens, and then not. When it answers again, decisions
// continue.
test("a server that hangs", async () => {
  const client = realClient({ timeoutMs: 100 });
  const pid = serverPid();
  process.kill(pid, "SIGSTOP");
  try {
    await eventually("an open breaker", async () => {
      // Concurrently, because that many must fail within a second.
      const decisions = await Promise.all(Array.from({ length: 20 }, () => client.check({ subject: "user_42" })));
      assert(decisions.every(({ allowed }) => allowed));
      return client.breakerState === "open";
    });
    assert((await client.check({ subject: "user_42" })).noDecision);
  } finally {
    process.kill(pid, "SIGCONT");
  }
  await eventually("a decision", async () => (await client.check({ subject: "user_42" })).source === "server");
});

// The same client reconnects to a server that was killed and restarted.
test("a server that restarts", async () => {
  const client = realClient({ onFailure: "deny" });
  const decided = async () => {
    const { allowed, noDecision } = await client.check({ subject: "user_42" });
    assert.equal(allowed, noDecision === null);
    return allowed;
  };
  await eventually("a decision", decided);
  const pid = serverPid();
  process.kill(pid, "SIGKILL");
  await eventually("no decision", async () => !(await decided()));
  await eventually("another process", () => serverPid() !== pid);
  await eventually("a decision", decided);
});

test("an unknown key is misuse, and never a fallback", async () => {
  await assert.rejects(realClient({ key: "weir_test_nothing", onFailure: "allow" }).check({ subject: "user_42" }), MisuseError);
});
