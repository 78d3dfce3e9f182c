import type { components } from "./api.js";
import type { NoDecision } from "./errors.js";
import { builtHeaders, type RateLimitHeaders } from "./headers.js";

/** Who decided: the server, a denial of the server that is still valid, leased units, or the fallback. */
export type Source = "server" | "memory" | "lease" | "fallback";

/** The answer to a check. */
export interface Decision {
  readonly allowed: boolean;
  readonly source: Source;
  readonly subject: string;
  readonly resource: string;
  readonly cost: number;
  /** null if the tenant has none. */
  readonly plan: string | null;
  /** The deciding rule, to which the next fields belong. If no enforcing rule with a limit matched, they are null. */
  readonly rule: string | null;
  readonly limit: number | null;
  readonly remaining: number | null;
  /** null on a denial: no wait helps. */
  readonly retryAfterMs: number | null;
  readonly resetAfterMs: number | null;
  /** Wait this long before you proceed. */
  readonly delayMs: number | null;
  /** The result of each matching rule. */
  readonly rules: readonly RuleDecision[];
  readonly skipped: readonly SkippedRule[];
  /** A rule was answered without the shared counters. */
  readonly degraded: boolean;
  /** The subject is near the limit of an enforcing rule. */
  readonly warning: boolean;
  /** The subject is beyond the limit of an enforcing rule, which allows it. */
  readonly overage: boolean;
  /** The first decision of the same idempotency key. */
  readonly replayed: boolean;
  /** The reason; null if allowed. */
  readonly denial: Denial | null;
  /** The headers to forward to your own client; see copyHeaders. */
  readonly headers: RateLimitHeaders;
  /** Why there is no decision of the server; null unless the source is "fallback". */
  readonly noDecision: NoDecision | null;
}

/** The result of one rule. */
export interface RuleDecision {
  readonly rule: string;
  readonly algorithm: string;
  /** "enforce" or "shadow". */
  readonly mode: string;
  readonly allowed: boolean;
  /** Where the limit comes from: rule, plan:SLUG or override. */
  readonly source: string;
  readonly unlimited: boolean;
  readonly limit: number | null;
  readonly burst: number | null;
  readonly windowMs: number | null;
  readonly remaining: number | null;
  readonly retryAfterMs: number | null;
  readonly resetAfterMs: number | null;
  readonly delayMs: number | null;
  readonly penalized: boolean;
  readonly degraded: boolean;
  readonly warning: boolean;
  readonly overage: boolean;
  /** Units beyond the limit that count now. */
  readonly overageUnits: number;
  /** Prepaid units that this check spent. */
  readonly creditsSpent: number;
  /** Prepaid units that are left, or null if the subject never had any for the rule. */
  readonly creditsRemaining: number | null;
}

/** A rule that was not evaluated. */
export interface SkippedRule {
  readonly rule: string;
  readonly reason: string;
  /** The missing attribute; may be empty. */
  readonly attribute: string;
}

/** The reason of a denial, in a form that can be shown to an end user. */
export interface Denial {
  readonly code: string;
  readonly message: string;
  /** In seconds, rounded up; null if no wait helps. */
  readonly retryAfter: number | null;
}

// The fields of the API, so that a renamed one does not compile.
type WireDecision = components["schemas"]["CheckAnswer"];
type WireRule = components["schemas"]["CheckRule"];
type WireSkip = components["schemas"]["CheckSkip"];
type WireDenial = components["schemas"]["CheckFailure"];

/** An answer that does not follow the API. */
export class Nonsense extends Error {}

/** Reads the decision in an answer. The caller adds the headers. */
export function decodeDecision(value: unknown, headers: RateLimitHeaders): Decision {
  const w = new Fields<keyof WireDecision>(value, "the answer");
  const allowed = w.required("allowed");
  const rules = w.list("rules").map(decodeRule);
  const denial = w.object("error");
  return {
    allowed,
    source: "server",
    subject: w.text("subject") ?? "",
    resource: w.text("resource") ?? "",
    cost: w.number("cost") ?? 0,
    plan: w.text("plan") || null,
    rule: w.text("rule") || null,
    limit: w.number("limit"),
    remaining: w.number("remaining"),
    retryAfterMs: w.number("retry_after_ms"),
    resetAfterMs: w.number("reset_after_ms"),
    delayMs: w.number("delay_ms"),
    rules,
    skipped: w.list("skipped").map(decodeSkip),
    degraded: w.flag("degraded"),
    warning: w.flag("warning") || rules.some((rule) => rule.warning && rule.mode !== "shadow"),
    overage: w.flag("overage"),
    replayed: w.flag("replayed"),
    denial: denial === null ? null : decodeDenial(denial),
    headers,
    noDecision: null,
  };
}

/** Reads the answer to a batch of n checks. */
export function decodeBatch(value: unknown, n: number, unixMs: number): Decision[] {
  const results = new Fields<keyof components["schemas"]["CheckResults"]>(value, "the answer").list("results");
  if (results.length !== n) throw new Nonsense(`the answer has ${results.length} results for ${n} checks`);
  return results.map((result) => {
    const decision = decodeDecision(result, {});
    return { ...decision, headers: builtHeaders(decision, unixMs) };
  });
}

function decodeRule(value: unknown): RuleDecision {
  const w = new Fields<keyof WireRule>(value, "a rule");
  return {
    rule: w.text("rule") ?? "",
    algorithm: w.text("algorithm") ?? "",
    mode: w.text("mode") ?? "",
    allowed: w.flag("allowed"),
    source: w.text("source") ?? "",
    unlimited: w.flag("unlimited"),
    limit: w.number("limit"),
    burst: w.number("burst"),
    windowMs: w.number("window_ms"),
    remaining: w.number("remaining"),
    retryAfterMs: w.number("retry_after_ms"),
    resetAfterMs: w.number("reset_after_ms"),
    delayMs: w.number("delay_ms"),
    penalized: w.flag("penalized"),
    degraded: w.flag("degraded"),
    warning: w.flag("warning"),
    overage: w.flag("overage"),
    overageUnits: w.number("overage_units") ?? 0,
    creditsSpent: w.number("credits_spent") ?? 0,
    creditsRemaining: w.number("credits_remaining"),
  };
}

function decodeSkip(value: unknown): SkippedRule {
  const w = new Fields<keyof WireSkip>(value, "a skipped rule");
  return { rule: w.text("rule") ?? "", reason: w.text("reason") ?? "", attribute: w.text("attribute") ?? "" };
}

function decodeDenial(value: unknown): Denial {
  const w = new Fields<keyof WireDenial>(value, "the denial");
  return { code: w.text("code") ?? "", message: w.text("message") ?? "", retryAfter: w.number("retry_after") };
}

/** The greatest number of 64 bits, rounded as all numbers of this size are. */
const greatest = 2 ** 63;

/** Reads a field with its type. null is the same as a missing field. */
class Fields<Name extends string> {
  readonly #fields: Readonly<Record<string, unknown>>;
  readonly #what: string;

  constructor(value: unknown, what: string) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Nonsense(`${what} is no object`);
    this.#fields = value as Record<string, unknown>;
    this.#what = what;
  }

  #wrong(name: string, want: string): Nonsense {
    return new Nonsense(`${this.#what} has a field ${name} that is no ${want}`);
  }

  required(name: Name): boolean {
    const value = this.#fields[name];
    if (typeof value !== "boolean") throw this.#wrong(name, "boolean");
    return value;
  }

  flag(name: Name): boolean {
    return (this.#fields[name] ?? false) === false ? false : this.required(name);
  }

  text(name: Name): string | null {
    const value = this.#fields[name] ?? null;
    if (value !== null && typeof value !== "string") throw this.#wrong(name, "string");
    return value;
  }

  number(name: Name): number | null {
    const value = this.#fields[name] ?? null;
    if (value === null) return null;
    if (!Number.isInteger(value)) throw this.#wrong(name, "whole number");
    if (Math.abs(value as number) > greatest) throw this.#wrong(name, "number of 64 bits");
    return value as number;
  }

  object(name: Name): unknown {
    return this.#fields[name] ?? null;
  }

  list(name: Name): unknown[] {
    const value = this.#fields[name] ?? [];
    if (!Array.isArray(value)) throw this.#wrong(name, "list");
    return value;
  }
}

