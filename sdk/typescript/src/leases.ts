import type { Clock } from "./clock.js";
import type { Decision } from "./decision.js";
import type { NoDecision } from "./errors.js";
import type { Question } from "./question.js";
import { inspectMs, type LeaseReturn, type Returns } from "./returns.js";

/** Units that the server has charged, and that this process may grant. */
export interface Granted {
  readonly id: string;
  readonly units: number;
  readonly lifeMs: number;
  readonly decision: Decision;
}

/** The answer to a request for units: a lease, the denial of a check of cost 1, or how long to send each check. */
export type LeaseAnswer = { granted: Granted } | { denial: Decision } | { refusedMs: number };

/** The part of the client that leases use. */
export interface LeaseSender {
  /** Rejects only if the call is wrong. */
  lease(question: Question, units: number): Promise<LeaseAnswer | NoDecision>;
  denied(question: Question, denial: Decision, sentAt: number): void;
}

const busyChecks = 4; // within tickMs make a kind of check frequent
const tickMs = 64;
const aheadMs = 250; // units are requested for this long, or for as long as the server lets this process hold them
const leastUnits = 2; // of a request; with fewer in a lease, the next one waits for notNowMs
const idleMs = 100; // units that no check uses for this long are returned
const low = 4; // units are requested again when less than 1/low is left, of units or of time
const mostSets = 10_000;
const mostInFlight = 16;
const backoffMs = 200; // after a request without an answer
const notNowMs = 1000; // after a denial, or if little is left
const wrongMs = 10_000; // after a request that was wrong

/** The units of one lease. They end by the monotonic clock, counted from before the request was sent. */
export class Held {
  left: number;
  allowed = 0;
  readonly #sentAt: number;
  readonly #endsUnixMs: number;
  #ended = false;

  constructor(
    readonly granted: Granted,
    sentAt: number,
    sentUnixMs: number,
  ) {
    this.left = granted.units;
    this.#sentAt = sentAt;
    this.#endsUnixMs = sentUnixMs + granted.lifeMs; // the monotonic clock may stop while a machine sleeps
  }

  live(now: number, unixMs: number): boolean {
    return now - this.#sentAt < this.granted.lifeMs && unixMs < this.#endsUnixMs;
  }

  /** Ends the lease, and returns what to send; null if it had ended. */
  giveUp(denied = 0, deniedUnits = 0): LeaseReturn | null {
    if (this.#ended) return null;
    this.#ended = true;
    const units = this.left;
    this.left = 0;
    return { id: this.granted.id, units, allowed: this.allowed, denied, deniedUnits, endsAt: this.#sentAt + this.granted.lifeMs };
  }

  /** Whether it is time to lease more units, with this many left. */
  scarce(now: number, left: number): boolean {
    return left < Math.max(1, Math.floor(this.granted.units / low)) || now - this.#sentAt > this.granted.lifeMs * (1 - 1 / low);
  }

  /** The decision of a check. What remains is what remained when the units were charged, and the units that are left. */
  decide(question: Question, left: number, now: number): Decision {
    const { decision } = this.granted;
    const { remaining, limit, resetAfterMs } = decision;
    const quota = decision.rules.find(({ rule }) => rule === decision.rule)?.burst ?? limit ?? Infinity;
    return {
      ...decision,
      subject: question.subject,
      resource: question.resource,
      cost: question.cost,
      remaining: remaining === null ? null : Math.min(remaining + left, quota),
      resetAfterMs: resetAfterMs === null ? null : Math.max(0, resetAfterMs - Math.floor(now - this.#sentAt)),
    };
  }
}

/** The units of one kind of check: subject, resource, plan, attributes. */
class LeaseSet {
  /** Oldest first; at most two. */
  leases: Held[] = [];
  /** Units of checks that the server has allowed since the last request. */
  missed: number;
  denied = 0;
  deniedUnits = 0;
  asking = false;
  askedAt: number;
  /** When units may be requested again. */
  notBefore = 0;
  usedAt: number;

  constructor(
    readonly question: Question,
    units: number,
    now: number,
  ) {
    this.missed = units;
    this.askedAt = now - tickMs;
    this.usedAt = now;
  }

  /** The leases that have not ended. */
  live(now: number, unixMs: number): Held[] {
    return this.leases.filter((lease) => lease.live(now, unixMs));
  }
}

const sum = (leases: readonly Held[]) => leases.reduce((units, { left }) => units + left, 0);

/**
 * Decides frequent checks from units that the server has charged in advance. Every other check is sent as usual: units
 * are requested in the background, so that no check waits for them.
 */
export class Leases {
  readonly #sender: LeaseSender;
  readonly #clock: Clock;
  readonly #sets = new Map<string, LeaseSet>();
  #rates = new Map<string, { checks: number; units: number }>();
  #tick = 0;
  #stopInspecting: (() => void) | null = null;
  readonly #returns: Returns;
  readonly #inFlight = new Set<Promise<void>>();
  #closed = false;

  constructor(sender: LeaseSender, clock: Clock, returns: Returns) {
    this.#sender = sender;
    this.#clock = clock;
    this.#returns = returns;
  }

  /** The number of kinds of checks that are frequent. */
  get size(): number {
    return this.#sets.size;
  }

  /** The number of requests for units that are under way. */
  get inFlight(): number {
    return this.#inFlight.size;
  }

  /** Decides a check from the units that are held, or returns null if there are too few. */
  take(question: Question): Decision | null {
    if (this.#sets.size === 0) return null;
    const set = this.#sets.get(question.kind());
    if (set === undefined) return null;
    const now = this.#clock.now();
    const live = set.live(now, this.#clock.unixMs());
    const from = live.find((lease) => lease.left >= question.cost);
    if (from === undefined) return null;
    from.left -= question.cost;
    from.allowed++;
    set.usedAt = now;
    const left = sum(live);
    if (live.at(-1)?.scarce(now, left)) this.#request(set, now);
    return from.decide(question, left, now);
  }

  /** Notes that the server has allowed a check. If this kind of check is frequent, units are leased for the next ones. */
  sent(question: Question, decision: Decision): void {
    if (!decision.allowed || decision.replayed || question.explain || question.cost === 0 || this.#closed) return;
    const now = this.#clock.now();
    const kind = question.kind();
    const set = this.#sets.get(kind);
    if (set !== undefined) {
      set.missed += question.cost;
      set.usedAt = now;
      const live = set.live(now, this.#clock.unixMs());
      if (live.at(-1)?.scarce(now, sum(live)) ?? true) this.#request(set, now);
      return;
    }
    const tick = Math.floor(now / tickMs);
    if (tick !== this.#tick) {
      this.#tick = tick;
      this.#rates = new Map();
    }
    const rate = this.#rates.get(kind) ?? { checks: 0, units: 0 };
    rate.checks++;
    rate.units += question.cost;
    this.#rates.set(kind, rate);
    if (rate.checks < busyChecks || this.#sets.size >= mostSets) return;
    const added = new LeaseSet(question, rate.units, now);
    this.#sets.set(kind, added);
    this.#start();
    this.#request(added, now);
  }

  /** Notes that a check was denied from memory. */
  remembered(question: Question): void {
    const set = this.#sets.size === 0 || question.cost === 0 ? undefined : this.#sets.get(question.kind());
    if (set === undefined) return;
    set.denied++;
    set.deniedUnits += question.cost;
    set.usedAt = this.#clock.now();
  }

  /** Ends all leases. Afterwards, every check is sent. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all(this.#inFlight); // a request that is under way may still be granted
    for (const set of this.#sets.values()) this.#retire(set, () => true);
    this.#sets.clear();
    this.#stop();
  }

  #request(set: LeaseSet, now: number): void {
    if (set.asking || this.#closed || now < set.notBefore || this.#inFlight.size >= mostInFlight) return;
    set.asking = true;
    this.#run(this.#ask(set, now).finally(() => (set.asking = false)));
  }

  #run(work: Promise<void>): void {
    const done = work.finally(() => this.#inFlight.delete(done));
    this.#inFlight.add(done);
  }

  async #ask(set: LeaseSet, sentAt: number): Promise<void> {
    const sentUnixMs = this.#clock.unixMs();
    const newest = set.leases.at(-1);
    const used = set.missed + (newest === undefined ? 0 : newest.granted.units - newest.left);
    const ahead = Math.max(aheadMs, newest?.granted.lifeMs ?? 0);
    const wanted = Math.floor((used * ahead) / Math.max(1, sentAt - set.askedAt));
    set.missed = 0;
    set.askedAt = sentAt;
    const units = Math.min(Math.max(wanted, leastUnits), 1e15);
    let answer: LeaseAnswer | NoDecision;
    try {
      answer = await this.#sender.lease(set.question, units);
    } catch {
      set.notBefore = sentAt + wrongMs; // a check gets the same error
      return;
    }
    if ("granted" in answer) {
      // So little is left that leases would cost more than checks.
      if (answer.granted.units < leastUnits) set.notBefore = sentAt + notNowMs;
      const now = this.#clock.now();
      const unixMs = this.#clock.unixMs();
      this.#retire(set, (lease, i) => i < set.leases.length - 1 || lease.left === 0 || !lease.live(now, unixMs));
      set.leases.push(new Held(answer.granted, sentAt, sentUnixMs));
    } else if ("denial" in answer) {
      this.#sender.denied(set.question, answer.denial, sentAt);
      set.notBefore = sentAt + Math.min(Math.max(answer.denial.retryAfterMs ?? notNowMs, backoffMs / 4), notNowMs);
    } else {
      set.notBefore = sentAt + ("refusedMs" in answer ? answer.refusedMs : backoffMs);
    }
  }

  /** Ends leases of a set, and queues their returns. */
  #retire(set: LeaseSet, ends: (lease: Held, i: number) => boolean): void {
    const kept: Held[] = [];
    for (const [i, lease] of set.leases.entries()) {
      if (!ends(lease, i)) {
        kept.push(lease);
        continue;
      }
      const back = lease.giveUp(set.denied, set.deniedUnits);
      set.denied = set.deniedUnits = 0;
      if (back !== null) this.#returns.add(back);
    }
    set.leases = kept;
  }

  #start(): void {
    this.#stopInspecting ??= this.#clock.every(inspectMs, () => this.#inspect());
  }

  #stop(): void {
    this.#stopInspecting?.();
    this.#stopInspecting = null;
  }

  /** Returns what is over or not used, and forgets kinds of checks that are not frequent any more. */
  #inspect(): void {
    const now = this.#clock.now();
    const unixMs = this.#clock.unixMs();
    for (const [kind, set] of this.#sets) {
      if (set.asking) continue;
      const idle = now - set.usedAt >= idleMs;
      this.#retire(set, (lease) => idle || !lease.live(now, unixMs));
      // The set of a rule that cannot be leased stays, so that no request is sent for it.
      if (idle && now >= set.notBefore) this.#sets.delete(kind);
    }
    this.#returns.inspect();
    if (this.#sets.size === 0) this.#stop();
  }
}
