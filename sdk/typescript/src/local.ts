import type { Decision } from "./decision.js";
import { ceilSeconds } from "./headers.js";
import type { Question } from "./question.js";

const localEntries = 10_000;

interface Limit {
  readonly rule: string;
  readonly limit: number;
  readonly windowMs: number;
}

interface Known {
  readonly blocked: boolean;
  readonly limits: readonly Limit[];
}

interface Counter {
  used: number;
  readonly ends: number;
}

/** The result of one rule without the server. */
interface Verdict {
  readonly rule: string;
  readonly windowMs: number;
  readonly share: number;
  remaining: number;
  /** Until it would be allowed: 0 for now, infinite for never. */
  readonly wait: number;
  reset: number;
  counter: Counter | null;
}

/** A map of bounded size: a new entry replaces the oldest one. */
class Bounded<V> extends Map<string, V> {
  override set(key: string, value: V): this {
    if (!this.has(key) && this.size >= localEntries) {
      for (const oldest of this.keys()) {
        this.delete(oldest);
        break;
      }
    }
    return super.set(key, value);
  }
}

/**
 * Stores the limits of earlier decisions, and counts a share of them in process while there is no decision. It does
 * not know other processes: the share is what this process may allow.
 */
export class Local {
  readonly #share: number;
  readonly #ofSubject = new Bounded<Known>();
  readonly #ofResource = new Bounded<Known>();
  readonly #counters = new Bounded<Counter>();

  constructor(share: number) {
    this.#share = share;
  }

  /** Stores the limits of a decision of the server. */
  learn(question: Question, decision: Decision): void {
    if (question.explain) return;
    const limits: Limit[] = [];
    for (const { rule, mode, unlimited, limit, windowMs } of decision.rules) {
      if (mode === "enforce" && !unlimited && limit !== null && windowMs !== null) limits.push({ rule, limit, windowMs });
    }
    const known = { blocked: decision.denial?.code === "SUBJECT_BLOCKED", limits };
    this.#ofSubject.set(keyOf(question.subject, question.resource, question.plan), known);
    if (!known.blocked) this.#ofResource.set(keyOf(question.resource, question.plan), known);
  }

  /** Answers a question. It fills in the decision, which allows at first. */
  decide(question: Question, decision: Decision, now: number): Decision {
    const known =
      this.#ofSubject.get(keyOf(question.subject, question.resource, question.plan)) ??
      this.#ofResource.get(keyOf(question.resource, question.plan));
    if (known === undefined) return decision;
    if (known.blocked) {
      return { ...decision, allowed: false, denial: { code: "SUBJECT_BLOCKED", message: "The subject is blocked.", retryAfter: null } };
    }
    const verdicts = known.limits.map((limit) => this.#judge(question, limit, now));
    const allowed = verdicts.every((verdict) => verdict.wait === 0);
    if (allowed && question.cost > 0) {
      for (const verdict of verdicts) this.#take(question, verdict, now);
    }
    let deciding: Verdict | undefined;
    for (const verdict of verdicts) {
      if (deciding === undefined || before(verdict, deciding, allowed)) deciding = verdict;
    }
    return deciding === undefined ? decision : described(decision, deciding, allowed);
  }

  /** Evaluates one limit and counts nothing. */
  #judge(question: Question, { rule, limit, windowMs }: Limit, now: number): Verdict {
    const share = limit > 0 ? Math.max(1, Math.floor(limit * this.#share)) : 0;
    let counter = this.#counters.get(keyOf(question.subject, rule)) ?? null;
    if (counter !== null && now >= counter.ends) counter = null;
    const remaining = counter === null ? share : Math.max(0, share - counter.used);
    const reset = counter === null ? 0 : Math.floor(counter.ends - now);
    let wait = 0;
    if (question.cost > share) wait = Infinity;
    else if (question.cost > remaining) wait = Math.max(1, reset);
    return { rule, windowMs, share, remaining, wait, reset, counter };
  }

  #take(question: Question, verdict: Verdict, now: number): void {
    if (verdict.counter === null) {
      verdict.counter = { used: 0, ends: now + verdict.windowMs };
      verdict.reset = verdict.windowMs;
      this.#counters.set(keyOf(question.subject, verdict.rule), verdict.counter);
    }
    verdict.counter.used += question.cost;
    verdict.remaining = Math.max(0, verdict.share - verdict.counter.used);
  }
}

function keyOf(...parts: string[]): string {
  return JSON.stringify(parts);
}

/** Whether a verdict decides instead of another: among denials the longest wait, otherwise the smallest share left. */
function before(verdict: Verdict, other: Verdict, allowed: boolean): boolean {
  if (!allowed) return verdict.wait > other.wait;
  return verdict.remaining * Math.max(1, other.share) < other.remaining * Math.max(1, verdict.share);
}

function described(decision: Decision, verdict: Verdict, allowed: boolean): Decision {
  const never = verdict.wait === Infinity;
  const answer = {
    ...decision,
    allowed,
    rule: verdict.rule,
    limit: verdict.share,
    remaining: verdict.remaining,
    retryAfterMs: never ? null : verdict.wait,
    resetAfterMs: verdict.reset,
  };
  if (allowed) return answer;
  if (never) {
    const message = `The cost is greater than ${verdict.rule} allows while the rate limiter is unavailable.`;
    return { ...answer, denial: { code: "COST_EXCEEDS_LIMIT", message, retryAfter: null } };
  }
  const retryAfter = ceilSeconds(verdict.wait);
  const message = `Rate limit exceeded. Try again in ${retryAfter} seconds.`;
  return { ...answer, denial: { code: "RATE_LIMIT_EXCEEDED", message, retryAfter }, headers: { "Retry-After": String(retryAfter) } };
}
