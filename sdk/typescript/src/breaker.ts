import type { NoDecision } from "./errors.js";

/** A state of the circuit breaker. In half_open, a probe is in flight. */
export type BreakerState = "closed" | "open" | "half_open";

export const windowMs = 1000;
export const minCalls = 20;
export const failureRatio = 0.5;
export const refusedInARow = 5;
export const probeIntervalMs = 200;

const buckets = 10;
const bucketMs = windowMs / buckets;

/** The permission to send one call. */
export interface Ticket {
  readonly probe: boolean;
}

/**
 * Prevents calls from waiting for a dead server. It counts the calls of the last second, and opens if at least 20
 * ended and half of them failed, or if 5 consecutive calls were refused. Calls then fail immediately, except one every
 * 200 ms, which is sent as a probe. A probe that gets an answer closes the breaker.
 */
export class Breaker {
  state: BreakerState = "closed";
  #counts: { slot: number; calls: number; failed: number }[] = [];
  #refused = 0;
  #probeFrom = 0;
  readonly #changed: (from: BreakerState, to: BreakerState) => void;

  constructor(changed: (from: BreakerState, to: BreakerState) => void) {
    this.#changed = changed;
  }

  /** Whether a call would be refused now. It takes no ticket. */
  blocked(now: number): boolean {
    return this.state === "half_open" || (this.state === "open" && now < this.#probeFrom);
  }

  /** Returns a ticket if a call may be sent. The caller must then call leave or cancel. */
  enter(now: number): Ticket | null {
    if (this.state === "closed") return { probe: false };
    if (this.blocked(now)) return null;
    this.#probeFrom = now + probeIntervalMs;
    this.#become("half_open");
    return { probe: true };
  }

  /** Returns a ticket without a result. */
  cancel(ticket: Ticket, now: number): void {
    if (!ticket.probe) return;
    this.#probeFrom = now;
    this.#become("open");
  }

  /** Records the result of a call: failure is null if the server answered. */
  leave(ticket: Ticket, failure: NoDecision | null, now: number): void {
    const failed = failure !== null && failure.cause !== "quota_exceeded";
    if (!ticket.probe) {
      this.#count(failed, failed && failure.cause === "connection_refused", now);
      return;
    }
    if (!failed) {
      this.#counts = [];
      this.#refused = 0;
    }
    this.#become(failed ? "open" : "closed");
  }

  /** Calls that were sent before the breaker opened may end later: they change nothing. */
  #count(failed: boolean, refused: boolean, now: number): void {
    if (this.state !== "closed") return;
    const slot = Math.floor(now / bucketMs);
    this.#counts = this.#counts.filter((bucket) => bucket.slot > slot - buckets);
    let bucket = this.#counts.at(-1);
    if (bucket?.slot !== slot) {
      bucket = { slot, calls: 0, failed: 0 };
      this.#counts.push(bucket);
    }
    bucket.calls++;
    this.#refused = refused ? this.#refused + 1 : 0;
    if (!failed) return;
    bucket.failed++;
    if (this.#refused >= refusedInARow || this.#halfFailed()) {
      this.#probeFrom = now + probeIntervalMs;
      this.#become("open");
    }
  }

  #halfFailed(): boolean {
    let calls = 0;
    let failed = 0;
    for (const bucket of this.#counts) {
      calls += bucket.calls;
      failed += bucket.failed;
    }
    return calls >= minCalls && failed >= calls * failureRatio;
  }

  #become(state: BreakerState): void {
    const from = this.state;
    this.state = state;
    if (from !== state) this.#changed(from, state);
  }
}
