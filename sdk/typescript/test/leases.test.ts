import assert from "node:assert/strict";
import { test } from "node:test";
import { type Check, Client, type ClientOptions, type Decision } from "@weir-dev/client";
import { mostWaiting, Returns } from "../dist/returns.js";
import { eventually, FakeClock, quiet } from "./support.js";

/** A fetch that counts as the server does: units of leases are charged when they are granted. */
class LeaseServer {
  used = 0;
  checks = 0;
  asked = 0;
  reported = { allowed: 0, denied: 0, deniedUnits: 0 };
  lifeMs = 240;
  refuse = false;
  lose: () => boolean = () => false;
  readonly leases = new Map<string, number>();

  constructor(readonly limit: number) {}

  client(options: Partial<ClientOptions> = {}): Client {
    return new Client({ url: "http://127.0.0.1:1", key: "weir_test_key", timeoutMs: 5000, logger: quiet, leases: true, fetch: this.fetch, ...options });
  }

  readonly fetch = async (url: string, init: RequestInit): Promise<Response> => {
    await new Promise((resolve) => setImmediate(resolve));
    const answer = this.#answer(new URL(url).pathname, JSON.parse(init.body as string) as Record<string, number>);
    if (this.lose()) throw new TypeError("connection reset");
    return answer;
  };

  #answer(path: string, body: Record<string, number>): Response {
    if (path === "/v1/check") {
      this.checks++;
      const cost = body["cost"] ?? 1;
      if (this.used + cost > this.limit) return this.#respond(429, "deny", this.#decision(false, cost));
      this.used += cost;
      return this.#respond(200, "allow", this.#decision(true, cost));
    }
    if (path === "/v1/leases") {
      this.asked++;
      const units = Math.min(body["units"] as number, Math.floor((this.limit - this.used) / 4));
      if (this.refuse) return this.#respond(409, "none", { code: "NOT_LEASABLE" }, { "Retry-After": "10" });
      if (this.used === this.limit) return this.#respond(429, "deny", this.#decision(false, 1));
      if (units < 1) return this.#respond(409, "none", { code: "NOT_LEASABLE" }, { "Retry-After": "1" });
      this.used += units;
      const lease = `lease_${this.asked}`;
      this.leases.set(lease, units);
      return this.#respond(200, "allow", { lease, units, expires_in_ms: this.lifeMs, decision: this.#decision(true, units) });
    }
    const id = path.split("/")[3] as string;
    const had = this.leases.get(id);
    if (had !== undefined && (body["units"] as number) <= had) {
      this.used -= body["units"] as number;
      this.leases.delete(id);
      this.reported.allowed += body["allowed"] as number;
      this.reported.denied += body["denied"] as number;
      this.reported.deniedUnits += body["denied_units"] as number;
    }
    return new Response(null, { status: 204 });
  }

  #decision(allowed: boolean, cost: number) {
    const remaining = this.limit - this.used;
    const state = { limit: this.limit, remaining, retry_after_ms: allowed ? 0 : 60_000, reset_after_ms: 60_000 };
    const rule = { rule: "r", algorithm: "fixed_window", mode: "enforce", allowed, source: "rule", window_ms: 60_000, ...state };
    const error = { code: "RATE_LIMIT_EXCEEDED", message: "Rate limit exceeded.", retry_after: 60 };
    const decision = { allowed, subject: "s", resource: "default", cost, plan: null, rule: "r", ...state, rules: [rule], degraded: false };
    return allowed ? decision : { ...decision, error };
  }

  #respond(status: number, decision: string, body: unknown, headers: Record<string, string> = {}): Response {
    return new Response(JSON.stringify(body), { status, headers: { "Weir-Decision": decision, ...headers } });
  }
}

/** Sends checks until one is decided from a lease, and returns it with the number that were allowed. */
async function leased(client: Client, check: Check): Promise<{ decision: Decision; allowed: number }> {
  for (let allowed = 0; ; ) {
    const decision = await client.check(check);
    if (decision.allowed) allowed++;
    if (decision.source === "lease") return { decision, allowed };
  }
}

test("a frequent check is decided from a lease, and close returns what is left", async () => {
  const server = new LeaseServer(1_000_000);
  const client = server.client();
  const { decision, allowed } = await leased(client, { subject: "s", cost: 2 });
  assert.equal(decision.cost, 2);
  assert.equal(decision.rule, "r");
  assert(decision.remaining !== null && decision.remaining > 0 && decision.remaining < 1_000_000);
  await client.close();
  assert.equal(server.used, allowed * 2);
  assert.equal(server.reported.allowed + server.checks, allowed);
  assert.equal((await client.check({ subject: "s" })).source, "server");
});

test("checks that a lease must not decide are sent", async () => {
  const server = new LeaseServer(1_000_000);
  const client = server.client();
  await leased(client, { subject: "s" });
  for (const check of [
    { subject: "t" },
    { subject: "s", resource: "r" },
    { subject: "s", plan: "p" },
    { subject: "s", attributes: { a: "b" } },
    { subject: "s", idempotencyKey: "k" },
    { subject: "s", cost: 900_000 },
  ]) {
    assert.equal((await client.check(check)).source, "server", JSON.stringify(check));
  }
  assert.equal((await client.peek({ subject: "s" })).source, "server");
  assert.equal((await leased(client, { subject: "s", resource: "default", attributes: {} })).decision.source, "lease");
  await client.close();
});

for (const lossy of [false, true]) {
  test(`many clients never allow more than the limit${lossy ? ", while answers are lost" : ""}`, async () => {
    const server = new LeaseServer(5_000);
    server.lifeMs = 20;
    let random = 1;
    if (lossy) server.lose = () => (random = (random * 48_271) % 2_147_483_647) % 10 === 0;
    let allowed = 0;
    const clients = Array.from({ length: 4 }, () => server.client({ onFailure: "deny", breaker: false, denialMemory: false }));
    const caller = async (client: Client) => {
      for (let denials = 0; denials < 10; ) {
        const decision = await client.check({ subject: "s" });
        if (decision.allowed) allowed++;
        else if (decision.source === "server") denials++;
      }
    };
    await Promise.all(clients.flatMap((client) => Array.from({ length: 4 }, () => caller(client))));
    await Promise.all(clients.map((client) => client.close()));
    assert(allowed <= server.used && server.used <= 5_000, `${allowed} allowed, ${server.used} charged`);
    assert(server.asked > 0);
    if (!lossy) assert.equal(server.used, allowed);
  });
}

test("where a rule is not leased, the client asks once and sends every check", async () => {
  const server = new LeaseServer(1_000_000);
  server.refuse = true;
  const client = server.client();
  for (let i = 0; i < 500; i++) assert.equal((await client.check({ subject: "s" })).source, "server");
  assert.equal(server.asked, 1);
  await client.close();
});

test("units that no check uses are returned, and nothing is left behind", async () => {
  const server = new LeaseServer(1_000_000);
  const client = server.client();
  const { allowed } = await leased(client, { subject: "s" });
  await eventually("all units are returned", () => server.used === allowed && server.leases.size === 0);
  await client.close();
});

test("an answer that grants more than was asked, or nothing, or for too long, is no lease", async () => {
  const decision = { allowed: true, subject: "s", resource: "default", cost: 1, rules: [], degraded: false };
  for (const body of [
    {},
    { lease: "l", units: 1e16, expires_in_ms: 100, decision },
    { lease: "l", units: 0, expires_in_ms: 100, decision },
    { lease: "", units: 1, expires_in_ms: 100, decision },
    { lease: "l", units: 1, expires_in_ms: 0, decision },
    { lease: "l", units: 1, expires_in_ms: 3_600_000, decision },
    { lease: "l", units: 1, expires_in_ms: 100, decision: { ...decision, allowed: false } },
    { lease: "l", units: 1, expires_in_ms: 100, decision: {} },
  ]) {
    const server = new LeaseServer(1_000_000);
    let asked = 0;
    const fetch = async (url: string, init: RequestInit) => {
      if (!url.endsWith("/v1/leases")) return server.fetch(url, init);
      asked++;
      return new Response(JSON.stringify(body), { headers: { "Weir-Decision": "allow" } });
    };
    const client = server.client({ fetch });
    while (asked === 0) await client.check({ subject: "s" });
    await client.close();
    assert.equal((await client.check({ subject: "s" })).source, "server", JSON.stringify(body));
  }
});

test("the lease of a block that lasts long is returned before its end", async () => {
  const server = new LeaseServer(1000);
  server.lifeMs = 20;
  const client = server.client({ leases: false });
  await client.withLease({ subject: "s" }, 100, async (lease) => {
    await lease.check(2); // from the lease, unless this machine is slow
    await eventually("the return", () => server.leases.size === 0);
    assert.deepEqual([server.used, server.reported.allowed + server.checks], [2, 1]);
    assert.deepEqual([lease.left, (await lease.check()).source], [0, "server"]);
  });
  assert.equal(server.used, 3);
});

test("if too many returns wait, the oldest is lost", async () => {
  const sent: string[] = [];
  const returns = new Returns({ giveBack: async ({ id }) => (sent.push(id), null), blocked: () => false }, new FakeClock());
  for (let i = 0; i < mostWaiting + 2; i++) returns.add({ id: `${i}`, units: 1, allowed: 0, denied: 0, deniedUnits: 0, endsAt: 0 });
  assert.equal(returns.waiting, mostWaiting);
  await returns.close();
  assert.deepEqual([sent.length, sent[0], returns.waiting], [mostWaiting, "2", 0]);
});

/** A sender of returns that hang until they are released. */
class HangingSender {
  readonly sent: string[] = [];
  readonly #hanging: Array<() => void> = [];
  most = 0;

  readonly blocked = () => false;

  readonly giveBack = async ({ id }: { id: string }): Promise<null> => {
    this.sent.push(id);
    await new Promise<void>((resolve) => {
      this.most = Math.max(this.most, this.#hanging.push(resolve));
    });
    return null;
  };

  get hanging(): number {
    return this.#hanging.length;
  }

  /** Answers those that hang. */
  async release(): Promise<void> {
    for (const resolve of this.#hanging.splice(0)) resolve();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const unitsOf = (id: number) => ({ id: `${id}`, units: 1, allowed: 0, denied: 0, deniedUnits: 0, endsAt: Infinity });

test("close sends what waits behind hanging requests, 16 at once", async () => {
  const sender = new HangingSender();
  const clock = new FakeClock();
  const returns = new Returns(sender, clock);
  for (let i = 0; i < 40; i++) returns.add(unitsOf(i));
  clock.tick();
  assert.equal(sender.hanging, 16);
  const closed = returns.close();
  returns.add(unitsOf(40));
  clock.tick();
  await sender.release();
  assert.deepEqual([sender.hanging, returns.waiting], [16, 0], "everything that waits is the business of close");
  let ended = false;
  void closed.then(() => (ended = true));
  await eventually("close ends", async () => (await sender.release(), ended));
  assert.deepEqual([sender.sent.length, new Set(sender.sent).size, sender.most], [41, 41, 16]);
});

test("close begins no return after a second", async () => {
  const sender = new HangingSender();
  const clock = new FakeClock();
  const returns = new Returns(sender, clock);
  for (let i = 0; i < 40; i++) returns.add(unitsOf(i));
  const closed = returns.close();
  await eventually("the first returns", () => sender.hanging > 0);
  clock.advance(999);
  await sender.release();
  assert.equal(sender.sent.length, 32);
  clock.advance(1);
  await sender.release();
  await closed;
  assert.deepEqual([sender.sent.length, returns.waiting], [32, 0]);
});
