import type { Clock } from "./clock.js";
import type { NoDecision } from "./errors.js";

/** What a return tells the server. */
export interface LeaseReturn {
  readonly id: string;
  readonly units: number;
  readonly allowed: number;
  readonly denied: number;
  readonly deniedUnits: number;
  /** The end of the lease. */
  readonly endsAt: number;
}

/** The lease of a block. */
export interface Ending {
  live(now: number, unixMs: number): boolean;
  /** Ends it, and returns what to send; null if it had ended. */
  giveUp(): LeaseReturn | null;
}

/** The part of the client that returns use. */
export interface ReturnSender {
  /** Rejects if the server refuses the return. */
  giveBack(back: LeaseReturn): Promise<NoDecision | null>;
  /** Whether the breaker refuses calls. */
  blocked(): boolean;
}

export const inspectMs = 25;
export const mostWaiting = 20_000; // as many as leases can be held
const mostInFlight = 16;
const retryMs = 250;
const mostRetryMs = 2000;
const keptMs = 9000; // after the end of a lease, the server has its record for 10 s, less one for the way
const closingMs = 1000; // how long close begins returns

interface Waiting {
  readonly back: LeaseReturn;
  pause: number;
  after: number;
}

/** When the server may have forgotten the lease. */
const until = ({ back }: Waiting) => back.endsAt + keptMs;

/**
 * What is to be returned, of leases in the background and of withLease. The server counts a return once, so one without
 * an answer is sent again, for as long as the server has a record of its lease. Otherwise what was decided from the
 * lease would never be metered.
 */
export class Returns {
  readonly #sender: ReturnSender;
  readonly #clock: Clock;
  readonly #blocks = new Set<Ending>();
  #waiting: Waiting[] = [];
  #due: Waiting[] = [];
  readonly #inFlight = new Set<Promise<void>>();
  #stopInspecting: (() => void) | null = null;
  #closing: Promise<void> | null = null;

  constructor(sender: ReturnSender, clock: Clock) {
    this.#sender = sender;
    this.#clock = clock;
  }

  /** The number of returns that are under way. */
  get inFlight(): number {
    return this.#inFlight.size;
  }

  /** The number of returns that wait. */
  get waiting(): number {
    return this.#waiting.length + this.#due.length;
  }

  /** Ends the lease of a block when its time is over, if end does not before. A block can last longer than its record. */
  hold(block: Ending): void {
    this.#blocks.add(block);
    this.#start();
  }

  /** Ends the lease of a block, and sends its return, unless that was done before. */
  async end(block: Ending): Promise<void> {
    this.#blocks.delete(block);
    const back = block.giveUp();
    if (back === null) return;
    await this.#attempt({ back, pause: 0, after: 0 }, async () => {
      const failure = await this.#sender.giveBack(back);
      const lost = failure?.cause === "connection_lost" || failure?.cause === "connection_refused";
      return lost ? this.#sender.giveBack(back) : failure;
    });
  }

  /** Queues a return that was not sent yet. */
  add(back: LeaseReturn): void {
    this.#wait({ back, pause: 0, after: 0 });
  }

  /** Ends the leases of blocks whose time is over, and sends the returns that are due. */
  inspect(): void {
    const now = this.#clock.now();
    const unixMs = this.#clock.unixMs();
    for (const block of this.#blocks) {
      if (block.live(now, unixMs)) continue;
      this.#blocks.delete(block);
      const back = block.giveUp();
      if (back !== null) this.add(back);
    }
    if (this.#closing === null) this.#sendDue(now);
    this.#rest();
  }

  /**
   * Sends each return that waits once more, but begins none after closingMs, and drops the rest. Blocks that have not
   * ended return their units later.
   */
  close(): Promise<void> {
    this.#closing ??= this.#sendLast().finally(() => {
      this.#closing = null;
      this.#rest();
    });
    return this.#closing;
  }

  async #sendLast(): Promise<void> {
    await Promise.all(this.#inFlight); // one that fails waits again
    const last = [...this.#due.splice(0), ...this.#waiting.splice(0)].values();
    const until = this.#clock.now() + closingMs;
    const ignore = () => {};
    const sendSome = async () => {
      while (this.#clock.now() < until) {
        const { value, done } = last.next();
        if (done) return;
        await this.#track(this.#sender.giveBack(value.back).then(ignore, ignore));
      }
    };
    await Promise.all(Array.from({ length: mostInFlight }, sendSome));
  }

  /** Queues a return. If there are too many, the oldest is lost. */
  #wait(one: Waiting): void {
    if (this.waiting >= mostWaiting) (this.#waiting.length > 0 ? this.#waiting : this.#due).shift();
    this.#waiting.push(one);
    this.#start();
  }

  #sendDue(now: number): void {
    if (this.#sender.blocked()) {
      this.#due = this.#due.filter((one) => now <= until(one));
      this.#waiting = this.#waiting.filter((one) => now <= until(one));
      return;
    }
    this.#due = this.#due.concat(this.#waiting.filter(({ after }) => after <= now));
    this.#waiting = this.#waiting.filter(({ after }) => after > now);
    this.#send();
  }

  #send(): void {
    while (this.#closing === null && this.#due.length > 0 && this.#inFlight.size < mostInFlight && !this.#sender.blocked()) {
      void this.#attempt(this.#due.shift() as Waiting);
    }
  }

  #attempt(one: Waiting, send = () => this.#sender.giveBack(one.back)): Promise<void> {
    return this.#track(
      send().then(
        (failure) => {
          if (failure !== null) this.#again(one, failure);
        },
        () => {}, // the server refuses it
      ),
    );
  }

  /** Counts a return as under way until it has ended. */
  #track(sent: Promise<void>): Promise<void> {
    const done = sent.finally(() => {
      this.#inFlight.delete(done);
      this.#send();
    });
    this.#inFlight.add(done);
    return done;
  }

  /** Queues a return without an answer. An attempt that the breaker has refused does not count. */
  #again(one: Waiting, failure: NoDecision): void {
    const counts = failure.cause !== "breaker_open";
    if (counts) one.pause = Math.min(Math.max(2 * one.pause, retryMs), mostRetryMs);
    one.after = this.#clock.now() + (counts ? one.pause : retryMs);
    if (one.after <= until(one)) this.#wait(one);
  }

  #start(): void {
    this.#stopInspecting ??= this.#clock.every(inspectMs, () => this.inspect());
  }

  #rest(): void {
    if (this.#blocks.size > 0 || this.waiting > 0) return;
    this.#stopInspecting?.();
    this.#stopInspecting = null;
  }
}
