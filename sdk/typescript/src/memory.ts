import type { Decision } from "./decision.js";
import { ceilSeconds } from "./headers.js";
import type { Question } from "./question.js";

export const memoryMs = 1000;
export const memoryEntries = 10_000;

interface Remembered {
  readonly decision: Decision;
  /** When the request was sent, which is before the decision. */
  readonly sentAt: number;
  readonly until: number;
}

/** Stores denials of the server until they end, so that repeated checks cost nothing. */
export class Memory {
  readonly #entries = new Map<string, Remembered>();

  /** Returns the stored denial for a question, if it is still valid. */
  recall(question: Question, now: number): Decision | null {
    if (this.#entries.size === 0) return null;
    const key = question.key();
    const entry = this.#entries.get(key);
    if (entry === undefined) return null;
    if (now >= entry.until) {
      this.#entries.delete(key);
      return null;
    }
    return asOf(entry, now);
  }

  /** Stores a denial. It ignores other decisions. */
  remember(question: Question, decision: Decision, sentAt: number): void {
    if (decision.allowed || decision.source !== "server" || decision.replayed) return;
    const lasts = Math.min(memoryMs, decision.retryAfterMs ?? memoryMs);
    if (lasts <= 0) return;
    const key = question.key();
    this.#entries.delete(key);
    if (this.#entries.size >= memoryEntries) this.#evict(sentAt);
    this.#entries.set(key, { decision, sentAt, until: sentAt + lasts });
  }

  /** Removes all entries that have ended, or else the oldest one. */
  #evict(now: number): void {
    for (const [key, entry] of this.#entries) {
      if (now >= entry.until) this.#entries.delete(key);
    }
    if (this.#entries.size < memoryEntries) return;
    for (const key of this.#entries.keys()) {
      this.#entries.delete(key);
      return;
    }
  }
}

/** The decision with the times of now. */
function asOf(entry: Remembered, now: number): Decision {
  const { decision } = entry;
  const passed = Math.floor(now - entry.sentAt);
  const less = (ms: number | null) => (ms === null ? null : Math.max(0, ms - passed));
  const retryAfterMs = less(decision.retryAfterMs);
  let { denial, headers } = decision;
  if (retryAfterMs !== null) {
    const seconds = ceilSeconds(retryAfterMs);
    if (denial) denial = { ...denial, retryAfter: seconds };
    if (headers["Retry-After"]) headers = { ...headers, "Retry-After": String(seconds) };
  }
  return { ...decision, source: "memory", retryAfterMs, resetAfterMs: less(decision.resetAfterMs), denial, headers };
}
