import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, copyHeaders, defaults, hashSubject, type Lease, MisuseError, type RateLimitHeaders } from "@weir-dev/client";
import {
  checkOf,
  clientOptions,
  compareEnded,
  compareSeen,
  CountingLogger,
  type Ended,
  eventually,
  expand,
  type Expectation,
  FakeClock,
  quiet,
  readSuite,
  ScriptedServer,
  type SuiteOptions,
} from "./support.js";

interface Step {
  call?: string;
  args?: Record<string, unknown>;
  /** Of with_lease. */
  steps?: Step[];
  lease?: { cost?: number };
  repeat?: number;
  expect?: Expectation;
  start?: string;
  join?: string;
  cancel?: string;
  await_requests?: number;
  await_waiting?: number;
  release?: boolean;
  settle?: boolean;
  inspect?: boolean;
  close?: boolean;
  advance_ms?: number;
  server?: "up" | "down";
}

interface Case {
  name: string;
  languages?: string[];
  options?: SuiteOptions;
  server: unknown[];
  server_up?: boolean;
  steps: Step[];
}

for (const file of ["requests", "answers", "outcomes", "failures", "retries", "breaker", "memory", "local", "batch", "wait", "leases", "with_lease"]) {
  const { cases } = readSuite<{ cases: Case[] }>(file);
  assert(cases.length > 0);
  for (const one of cases) {
    if (one.languages && !one.languages.includes("typescript")) continue;
    test(`${file}: ${one.name}`, async () => {
      const server = await ScriptedServer.start(one.server, one.server_up);
      try {
        await play(one, server);
      } catch (error) {
        await server.discard();
        throw error;
      }
      await server.end();
    });
  }
}

async function play(one: Case, server: ScriptedServer): Promise<void> {
  const clock = new FakeClock();
  let held: Lease | undefined;
  const logger = new CountingLogger();
  const client = new Client({ ...clientOptions(server.url, one.options), clock, logger });
  const started = new Map<string, { controller: AbortController; ended: Promise<Ended> }>();
  for (const [i, step] of one.steps.entries()) {
    try {
      await play1(step);
    } catch (error) {
      if (error instanceof Error) error.message = `step ${i}: ${error.message}`;
      throw error;
    }
  }

  async function play1(step: Step): Promise<void> {
    if (step.start && step.call) {
      const controller = new AbortController();
      started.set(step.start, { controller, ended: call(client, step.call, step.args ?? {}, controller.signal) });
    } else if (step.call === "with_lease") {
      const { units, ...check } = (step.args ?? {}) as { units: number };
      const ended: Ended = {};
      await client
        .withLease(checkOf(check), units, async (lease) => {
          held = lease;
          for (const inner of step.steps ?? []) await play1(inner);
        })
        .catch((error: unknown) => (ended.error = error));
      if (!step.expect && ended.error) throw ended.error;
      await compare(step.expect, ended);
    } else if (step.lease) {
      const ended = await held?.check(step.lease.cost).then(
        (decision): Ended => ({ decisions: [decision] }),
        (error: unknown): Ended => ({ error }),
      );
      await compare(step.expect, ended);
    } else if (step.call) {
      for (let n = 0; n < (step.repeat ?? 1); n++) {
        const slept = clock.slept.length;
        const ended = await call(client, step.call, step.args ?? {});
        if (step.expect?.slept_ms) assert.deepEqual(clock.slept.slice(slept), step.expect.slept_ms);
        await compare(step.expect, ended);
      }
    } else if (step.join) {
      await compare(step.expect, await started.get(step.join)?.ended);
    } else if (step.cancel) {
      started.get(step.cancel)?.controller.abort();
    } else if (step.await_requests) {
      await server.await(step.await_requests);
    } else if (step.await_waiting) {
      await eventually(`${step.await_waiting} waiting checks`, () => client.waiting === step.await_waiting);
    } else if (step.release) {
      await server.tell("release");
    } else if (step.settle || step.inspect) {
      if (step.inspect) clock.tick();
      await eventually("no request of leases is under way", () => client.leasing === 0);
    } else if (step.close) {
      await client.close();
      await compare(step.expect);
    } else if (step.advance_ms) {
      clock.advance(step.advance_ms);
    } else if (step.server) {
      await server.tell(step.server);
    } else {
      assert(step.expect, "an unknown step");
      await compare(step.expect);
    }
  }

  async function compare(expected: Expectation | undefined, ended?: Ended): Promise<void> {
    if (!expected) return;
    if (ended) compareEnded(expected, ended);
    await compareSeen(expected, server, client, logger);
  }
}

async function call(client: Client, name: string, args: Record<string, unknown>, signal?: AbortSignal): Promise<Ended> {
  const options = { signal, traceparent: args["traceparent"] as string | undefined };
  const check = checkOf(args);
  try {
    switch (name) {
      case "check":
        return { decisions: [await client.check(check, options)] };
      case "peek":
        return { decisions: [await client.peek(check, options)] };
      case "explain":
        return { decisions: [await client.explain(check, options)] };
      case "wait":
        return { decisions: [await client.wait(check, { ...options, maxWaitMs: args["max_wait_ms"] as number | undefined })] };
      case "batch":
        return { decisions: await client.checkBatch((expand(args["checks"]) as Record<string, unknown>[]).map(checkOf), options) };
    }
  } catch (error) {
    return { error };
  }
  throw new Error(`unknown call ${name}`);
}

test("options: defaults", () => {
  const { defaults: wanted } = readSuite<{ defaults: Record<string, unknown> }>("options");
  const { connect_timeout_ms, max_idle_connections, ...settable } = wanted; // fetch decides about these two
  assert.deepEqual(
    {
      timeout_ms: defaults.timeoutMs,
      on_failure: defaults.onFailure,
      local_share: defaults.localShare,
      breaker: defaults.breaker,
      denial_memory: defaults.denialMemory,
      batching: defaults.batching,
      leases: defaults.leases,
    },
    settable,
  );
});

test("options: refused", () => {
  const { refused } = readSuite<{ refused: { name: string; options: SuiteOptions; field: string }[] }>("options");
  assert(refused.length > 0);
  for (const { name, options, field } of refused) {
    assert.throws(
      () => new Client({ ...clientOptions("http://localhost:8080", options), logger: quiet }),
      (error) => error instanceof MisuseError && error.field === field && error.fix !== "" && error.status === null,
      name,
    );
  }
});

test("headers", () => {
  type Table = { cases: { name: string; existing: Record<string, string>; decision: RateLimitHeaders; expect: Record<string, string> }[] };
  for (const { name, existing, decision, expect } of readSuite<Table>("headers").cases) {
    const headers = new Headers(existing);
    copyHeaders({ headers: decision }, headers);
    assert.deepEqual([...headers], [...new Headers(expect)], name);
  }
});

test("hash", async () => {
  for (const { value, secret, expect } of readSuite<{ cases: { value: unknown; secret?: string; expect: string }[] }>("hash").cases) {
    assert.equal(await hashSubject(expand(value) as string, secret), expect);
  }
});
