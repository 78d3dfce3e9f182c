import type { CallOptions, Checker } from "./client.js";
import type { Clock } from "./clock.js";
import type { Decision } from "./decision.js";
import type { Held } from "./leases.js";
import { ask, type Check } from "./question.js";

/** The units of withLease. */
export interface Lease {
  /** The number of units that the lease can still grant. */
  readonly left: number;
  /** Decides a check of this cost; the default is 1. If the lease has too few units, or has ended, the check is sent. */
  check(cost?: number, options?: CallOptions): Promise<Decision>;
}

/** A lease for one block. Without units, it sends every check. */
export class BlockLease implements Lease {
  readonly #held: Held | null;
  readonly #check: Check;
  readonly #checker: Pick<Checker, "check">;
  readonly #clock: Clock;
  readonly #decided: (check: Check, decision: Decision) => void;

  constructor(held: Held | null, check: Check, checker: Pick<Checker, "check">, clock: Clock, decided: (check: Check, decision: Decision) => void) {
    this.#held = held;
    this.#check = check;
    this.#checker = checker;
    this.#clock = clock;
    this.#decided = decided;
  }

  get left(): number {
    return this.#held?.live(this.#clock.now(), this.#clock.unixMs()) ? this.#held.left : 0;
  }

  async check(cost = 1, options: CallOptions = {}): Promise<Decision> {
    const check = { ...this.#check, cost };
    const question = ask(check);
    options.signal?.throwIfAborted();
    const held = this.#held;
    if (held === null || cost === 0 || this.left < cost) return this.#checker.check(check, options);
    held.left -= cost;
    held.allowed++;
    const decision = held.decide(question, held.left, this.#clock.now());
    this.#decided(check, decision);
    return decision;
  }
}
