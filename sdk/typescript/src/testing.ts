/** A fake of the client, for tests of code that uses Weir. It needs no server. */
import type { CallOptions, Checker } from "./client.js";
import type { Decision } from "./decision.js";
import { type Cause, MisuseError } from "./errors.js";
import { ceilSeconds } from "./headers.js";
import type { Lease } from "./lease.js";
import type { Check } from "./question.js";

/** What a fake returns for one check: a decision, with the subject, resource and cost of the check, or an error. */
export type FakeAnswer = Omit<Decision, "subject" | "resource" | "cost"> | Error;

/** Gives the configured answers and records the checks. */
export class Fake implements Checker {
  /** The checks so far, in order. A peek has cost 0. */
  readonly asked: Check[] = [];
  /** The delays of wait, in milliseconds. The fake does not wait. */
  readonly held: number[] = [];
  readonly #answer: (check: Check) => FakeAnswer;

  private constructor(answer: (check: Check) => FakeAnswer) {
    this.#answer = answer;
  }

  /** A fake that allows every check. */
  static allowAll(): Fake {
    return new Fake(() => allowed());
  }

  /** A fake that denies every check, with a retry after one minute. */
  static denyAll(): Fake {
    return new Fake(() => denied(60_000));
  }

  /** A fake that answers with a function. */
  static func(answer: (check: Check) => FakeAnswer): Fake {
    return new Fake(answer);
  }

  /** A fake that gives these answers in order. It throws for further checks. */
  static script(...answers: FakeAnswer[]): Fake {
    const left = [...answers];
    return new Fake((check) => {
      const answer = left.shift();
      if (answer === undefined) throw new Error(`weir: the script has no answer left for the check of ${check.subject}`);
      return answer;
    });
  }

  async check(check: Check, options: CallOptions = {}): Promise<Decision> {
    options.signal?.throwIfAborted();
    const asked = { ...check, resource: check.resource || "default", cost: check.cost ?? 1 };
    this.asked.push(asked);
    const answer = this.#answer(asked);
    if (answer instanceof Error) throw answer;
    return { ...answer, subject: asked.subject, resource: asked.resource, cost: asked.cost };
  }

  async checkBatch(checks: readonly Check[], options: CallOptions = {}): Promise<Decision[]> {
    const decisions: Decision[] = [];
    for (const check of checks) decisions.push(await this.check(check, options));
    return decisions;
  }

  async peek(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.check({ ...check, cost: 0 }, options);
  }

  async explain(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.check(check, options);
  }

  /** Answers like check, without waiting. */
  async wait(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.check(check, options);
  }

  /** Calls work with a lease whose checks are answered like check. */
  async withLease<T>(check: Check, _units: number, work: (lease: Lease) => Promise<T> | T): Promise<T> {
    return work({ left: 0, check: (cost = 1, options = {}) => this.check({ ...check, cost }, options) });
  }

  async hold(decision: Decision, options: CallOptions = {}): Promise<void> {
    options.signal?.throwIfAborted();
    if (decision.allowed && decision.delayMs) this.held.push(decision.delayMs);
  }
}

/** An allowed check of a rule "test" with 99 of 100 units left. */
export function allowed(): Exclude<FakeAnswer, Error> {
  return {
    allowed: true,
    source: "server",
    plan: null,
    rule: "test",
    limit: 100,
    remaining: 99,
    retryAfterMs: 0,
    resetAfterMs: 60_000,
    delayMs: null,
    rules: [],
    skipped: [],
    degraded: false,
    warning: false,
    overage: false,
    replayed: false,
    denial: null,
    headers: { "X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99" },
    noDecision: null,
  };
}

/** An allowed check for which the caller must wait. */
export function delayed(delayMs: number): FakeAnswer {
  return { ...allowed(), delayMs };
}

/** A denied check that may be allowed after a time. */
export function denied(retryAfterMs: number): FakeAnswer {
  const retryAfter = ceilSeconds(retryAfterMs);
  return {
    ...allowed(),
    allowed: false,
    remaining: 0,
    retryAfterMs,
    resetAfterMs: retryAfterMs,
    denial: { code: "RATE_LIMIT_EXCEEDED", message: "Rate limit exceeded.", retryAfter },
    headers: { "X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "Retry-After": String(retryAfter) },
  };
}

/** What a client with onFailure "allow" or "deny" returns if the server has not decided. */
export function noDecision(cause: Cause, onFailure: "allow" | "deny" = "allow"): FakeAnswer {
  const deny = onFailure === "deny";
  return {
    ...allowed(),
    allowed: !deny,
    source: "fallback",
    rule: null,
    limit: null,
    remaining: null,
    retryAfterMs: null,
    resetAfterMs: null,
    degraded: true,
    denial: deny ? { code: "LIMITER_UNAVAILABLE", message: "The rate limiter is unavailable.", retryAfter: null } : null,
    headers: {},
    noDecision: { cause, status: null, code: "", retryAfterMs: null },
  };
}

/** A misuse. */
export function misuse(code: string): MisuseError {
  return new MisuseError({ status: 422, code, detail: "", errors: [] });
}
