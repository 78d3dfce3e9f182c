import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Cause, Check, Client, ClientOptions, Clock, Decision } from "@weir-dev/client";
import { MisuseError } from "@weir-dev/client";

/** The timeout of all waits in tests. Passing tests wait less. */
export const patience = 30_000;

/** A file of the package. */
export const packageFile = (name: string) => fileURLToPath(new URL(`../${name}`, import.meta.url));

/** A table of the behaviour suite, whose README describes the fields. */
export function readSuite<T>(name: string): T {
  return JSON.parse(readFileSync(packageFile(`../suite/${name}.json`), "utf8")) as T;
}

export function environment(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run make test-clients`);
  return value;
}

/** Polls until a condition is true. */
export async function eventually(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  for (const until = performance.now() + patience; !(await holds()); ) {
    if (performance.now() > until) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

export interface SeenRequest {
  method: string;
  path: string;
  headers: Record<string, string[]>;
  body: string;
}

export interface SeenByServer {
  requests: number;
  latest: SeenRequest[];
  unmet: number;
  problems: string[];
}

/** A scripted server. The command withscripted serves it, for all languages. */
export class ScriptedServer {
  private constructor(
    readonly address: string,
    readonly control: string,
  ) {}

  static async start(script: unknown[], up = true): Promise<ScriptedServer> {
    const servers = `${environment("WEIR_TEST_SCRIPTED")}/servers`;
    const { id, address } = (await tell("POST", servers, { server: script, server_up: up })) as { id: string; address: string };
    return new ScriptedServer(address, `${servers}/${id}`);
  }

  get url(): string {
    return `http://${this.address}`;
  }

  async tell(what: "up" | "down" | "release"): Promise<void> {
    await tell("POST", `${this.control}/${what}`);
    // The server has closed its connections. One turn of the event loop lets fetch notice, so that
    // it does not send the next request over one of them.
    if (what === "down") await new Promise((resolve) => setImmediate(resolve));
  }

  async await(requests: number): Promise<void> {
    await tell("POST", `${this.control}/await`, { requests });
  }

  async seen(): Promise<SeenByServer> {
    return (await tell("GET", this.control)) as SeenByServer;
  }

  /** Closes it, and fails if its script was not followed. */
  async end(): Promise<void> {
    const { unmet, problems } = await this.seen();
    await tell("DELETE", this.control);
    assert.deepEqual(problems, []);
    assert.equal(unmet, 0, "actions of the script met no request");
  }

  /** Closes it in any case. */
  async discard(): Promise<void> {
    await tell("DELETE", this.control);
  }
}

async function tell(method: string, url: string, body?: unknown): Promise<unknown> {
  const headers = { connection: "close" }; // so that no connection of the tests themselves stays open
  const response = await fetch(url, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${url}: ${text}`);
  return JSON.parse(text);
}

/** A clock that advances only explicitly and by sleeping. */
export class FakeClock implements Clock {
  readonly slept: number[] = [];
  readonly #periodic = new Set<() => void>();
  #now = 1_800_000_000_000;

  now(): number {
    return this.#now;
  }

  unixMs(): number {
    return this.#now;
  }

  advance(ms: number): void {
    this.#now += ms;
  }

  every(_: number, run: () => void): () => void {
    this.#periodic.add(run);
    return () => this.#periodic.delete(run);
  }

  /** Does the periodic work once. */
  tick(): void {
    for (const run of this.#periodic) run();
  }

  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#now += ms;
    this.slept.push(ms);
  }
}

/** Counts log records. */
export class CountingLogger {
  warnings = 0;
  errors = 0;

  warn(): void {
    this.warnings++;
  }

  error(): void {
    this.errors++;
  }
}

export const quiet = { warn: () => {}, error: () => {} };

export interface SuiteOptions {
  url?: string;
  key?: string;
  timeout_ms?: number;
  on_failure?: string;
  local_share?: number;
  breaker?: boolean;
  denial_memory?: boolean;
  batching?: boolean;
  leases?: boolean;
}

/** The options of a case with this client's names. */
export function clientOptions(url: string, options: SuiteOptions = {}): ClientOptions {
  return {
    url: options.url ?? url,
    key: options.key ?? "weir_test_key",
    timeoutMs: options.timeout_ms ?? 5000,
    onFailure: options.on_failure as ClientOptions["onFailure"],
    localShare: options.local_share,
    breaker: options.breaker,
    denialMemory: options.denial_memory,
    batching: options.batching,
    leases: options.leases,
  };
}

/** Replaces the macros in a value. */
export function expand(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  const object = value as Record<string, unknown>;
  const repeat = object["$repeat"] as [string, number] | undefined;
  if (repeat) return repeat[0].repeat(repeat[1]);
  const attributes = object["$attributes"] as number | undefined;
  if (attributes) return Object.fromEntries(Array.from({ length: attributes }, (_, i) => [`a${i + 1}`, "v"]));
  const checks = object["$checks"] as number | undefined;
  if (checks) return Array.from({ length: checks }, () => ({ subject: "user_42" }));
  return Object.fromEntries(Object.entries(object).map(([name, field]) => [name, expand(field)]));
}

/** The fields of a check with this client's names. */
export function checkOf(args: Record<string, unknown>): Check {
  const { subject, resource, cost, plan, attributes, idempotency_key: idempotencyKey } = expand(args) as Record<string, unknown>;
  return { subject, resource, cost, plan, attributes, idempotencyKey } as Check;
}

/** The result of a call. */
export interface Ended {
  decisions?: Decision[];
  error?: unknown;
}

export function outcomeOf({ decisions, error }: Ended, i = 0): string {
  if (error instanceof MisuseError) return "misuse";
  if (error instanceof DOMException && error.name === "AbortError") return "cancelled";
  if (error instanceof DOMException && error.name === "TimeoutError") return "deadline";
  if (error !== undefined) return `the error ${error}`;
  const decision = decisions?.[i];
  if (!decision) return "nothing";
  const fallback = decision.source === "fallback";
  if (fallback !== (decision.noDecision !== null)) return "contradiction";
  return fallback ? "no_decision" : "decision";
}

/** What is expected of one check. */
export interface Entry {
  outcome?: string;
  decision?: Record<string, unknown>;
  cause?: Cause;
  cause_status?: number;
  cause_code?: string;
  cause_retry_after_ms?: number;
}

export interface RequestPattern {
  method?: string;
  path?: string;
  headers?: Record<string, string | null>;
  body?: unknown;
}

export interface Expectation extends Entry {
  decisions?: Entry[];
  misuse?: Record<string, unknown>;
  requests?: number;
  leased?: number;
  request?: RequestPattern;
  request_before?: RequestPattern;
  breaker?: string;
  warnings?: number;
  slept_ms?: number[];
}

/** Compares the result of a call. */
export function compareEnded(expected: Expectation, ended: Ended): void {
  if (expected.decisions) {
    assert.equal(ended.error, undefined);
    assert.equal(ended.decisions?.length, expected.decisions.length);
    expected.decisions.forEach((entry, i) => compareEntry(entry, ended, i));
    return;
  }
  compareEntry(expected, ended, 0);
  if (expected.misuse) {
    assert(ended.error instanceof MisuseError);
    const { status, code, field, fix, detail, requestId } = ended.error;
    subset("misuse", expected.misuse, { status, code, field, fix, detail, request_id: requestId });
  }
}

function compareEntry(entry: Entry, ended: Ended, i: number): void {
  if (entry.outcome) assert.equal(outcomeOf(ended, i), entry.outcome);
  const decision = ended.decisions?.[i];
  if (entry.decision) {
    assert(decision, `no decision: ${ended.error}`);
    subset("decision", entry.decision, asInAPI(decision));
  }
  const failure = decision?.noDecision;
  if (entry.cause) assert.equal(failure?.cause, entry.cause);
  if (entry.cause_status !== undefined) assert.equal(failure?.status, entry.cause_status);
  if (entry.cause_code !== undefined) assert.equal(failure?.code, entry.cause_code);
  if (entry.cause_retry_after_ms !== undefined) assert.equal(failure?.retryAfterMs, entry.cause_retry_after_ms);
}

/** A decision with the names of the API. */
function asInAPI(decision: Decision): Record<string, unknown> {
  const { denial, ...fields } = decision;
  return { ...(snake(fields) as object), headers: decision.headers, error: snake(denial) };
}

function snake(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(snake);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), snake(field)]));
}

/** Compares the expected fields. null means null or missing. */
export function subset(path: string, want: unknown, got: unknown): void {
  if (Array.isArray(want)) {
    assert(Array.isArray(got) && got.length === want.length, `${path} is ${JSON.stringify(got)}`);
    want.forEach((entry, i) => subset(`${path}[${i}]`, entry, (got as unknown[])[i]));
  } else if (typeof want === "object" && want !== null) {
    assert(typeof got === "object" && got !== null, `${path} is ${JSON.stringify(got)}`);
    for (const [name, value] of Object.entries(want)) subset(`${path}.${name}`, value, (got as Record<string, unknown>)[name]);
  } else {
    assert.equal(got ?? null, want, path);
  }
}

export function compareRequest(want: RequestPattern, got: SeenRequest | undefined): void {
  assert(got, "no request");
  if (want.method) assert.equal(got.method, want.method);
  if (want.path) assert.equal(got.path, want.path);
  for (const [name, value] of Object.entries(want.headers ?? {})) {
    assert.deepEqual(got.headers[name.toLowerCase()] ?? [], value === null ? [] : [value], name);
  }
  if (want.body !== undefined) assert.deepEqual(filled(JSON.parse(got.body)), filled(want.body));
}

/** Fills in the defaults of a check, or of the checks of a batch. */
function filled(body: unknown): unknown {
  const object = expand(body) as Record<string, unknown>;
  if (Array.isArray(object["checks"])) return { ...object, checks: object["checks"].map(filled) };
  return { resource: "default", cost: 1, attributes: {}, dry_run: false, explain: false, ...object };
}

/** Compares the observable state. */
export async function compareSeen(expected: Expectation, server: ScriptedServer, client: Client, logger: CountingLogger): Promise<void> {
  if (expected.breaker) assert.equal(client.breakerState, expected.breaker);
  if (expected.warnings !== undefined) assert.equal(logger.warnings, expected.warnings);
  if (expected.leased !== undefined) assert.equal(client.leased, expected.leased, "leased");
  if (expected.requests === undefined && !expected.request && !expected.request_before) return;
  const { requests, latest } = await server.seen();
  if (expected.requests !== undefined) assert.equal(requests, expected.requests, "requests");
  if (expected.request) compareRequest(expected.request, latest[0]);
  if (expected.request_before) compareRequest(expected.request_before, latest[1]);
}
