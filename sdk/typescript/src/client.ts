import { Batcher } from "./batcher.js";
import { Breaker, type BreakerState, probeIntervalMs } from "./breaker.js";
import { type Clock, Deadline, systemClock } from "./clock.js";
import type { Decision } from "./decision.js";
import { invalid, MisuseError, type NoDecision, Undecided } from "./errors.js";
import { type Hooks, beginAll } from "./hooks.js";
import { BlockLease, type Lease } from "./lease.js";
import { Held, Leases } from "./leases.js";
import { Local } from "./local.js";
import { Memory } from "./memory.js";
import { ask, askBatch, type Check, type Question } from "./question.js";
import { type LeaseReturn, Returns } from "./returns.js";
import { type Fetch, Sender } from "./send.js";

/** The answer if the server has not decided: allow, deny, or count a share of each limit in this process. */
export type OnFailure = "allow" | "deny" | "local";

/** The log of a client and its middleware, such as console. */
export interface Logger {
  warn(message: string, ...details: unknown[]): void;
  error(message: string, ...details: unknown[]): void;
}

/** The options of a client. Only the address and the key are required. */
export interface ClientOptions {
  /** The address of the server, such as https://weir.example.com. */
  readonly url: string | undefined;
  /** An API key with the scope check. */
  readonly key: string | undefined;
  /** The timeout of a call in total. The default is 100. */
  readonly timeoutMs?: number | undefined;
  /** The default is "allow". */
  readonly onFailure?: OnFailure | undefined;
  /** The share of each limit that this process allows with onFailure "local": greater than 0, up to 1. The default is 0.1. */
  readonly localShare?: number | undefined;
  /** false sends every call, even after many failures. */
  readonly breaker?: boolean | undefined;
  /** false asks the server even while a known denial is valid. */
  readonly denialMemory?: boolean | undefined;
  /**
   * true sends checks that start during another request together, up to 100 in one request. A single caller never
   * waits for others. Batched decisions have the X-RateLimit headers and Retry-After, but not those of the IETF draft.
   */
  readonly batching?: boolean | undefined;
  /**
   * true decides frequent checks in memory, without a call. If all rules that match a check have the consistency leased,
   * the client leases units for this process in the background, which the server charges, and grants them. A limit is
   * never exceeded, with any number of processes. Call close at the end, to return the rest.
   */
  readonly leases?: boolean | undefined;
  /** Replaces the fetch of the runtime. It must not retry by itself. */
  readonly fetch?: Fetch | undefined;
  /** The log for the warning when the breaker opens. The default is console. */
  readonly logger?: Logger | undefined;
  /** For metrics, traces and logs. */
  readonly hooks?: readonly Hooks[] | undefined;
  /** For tests. */
  readonly clock?: Clock | undefined;
}

/** The defaults of a client. */
export const defaults = {
  timeoutMs: 100,
  onFailure: "allow",
  localShare: 0.1,
  breaker: true,
  denialMemory: true,
  batching: false,
  leases: false,
} as const;

/** The options of one call. */
export interface CallOptions {
  /** Ends the call; it rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** A W3C traceparent to send with the request. A text of another form is ignored. */
  readonly traceparent?: string | undefined;
}

/** The options of wait. */
export interface WaitOptions extends CallOptions {
  /** The maximum time to wait. By default, there is no maximum. */
  readonly maxWaitMs?: number | undefined;
}

/** Answers checks. It is implemented by Client and by the fake for tests. */
export interface Checker {
  check(check: Check, options?: CallOptions): Promise<Decision>;
  checkBatch(checks: readonly Check[], options?: CallOptions): Promise<Decision[]>;
  peek(check: Check, options?: CallOptions): Promise<Decision>;
  explain(check: Check, options?: CallOptions): Promise<Decision>;
  wait(check: Check, options?: WaitOptions): Promise<Decision>;
  withLease<T>(check: Check, units: number, work: (lease: Lease) => Promise<T> | T, options?: CallOptions): Promise<T>;
  hold(decision: Decision, options?: CallOptions): Promise<void>;
}

/** Version, trace, parent and flags. Customers write this header, and must not get their check refused with it. */
const traceparentForm = /^(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/;

/** A client of one server with one key. Create one for each server and key, and keep it. */
export class Client implements Checker {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #onFailure: OnFailure;
  readonly #hooks: readonly Hooks[];
  readonly #sender: Sender;
  readonly #breaker: Breaker | null;
  readonly #memory: Memory | null;
  readonly #local: Local | null;
  readonly #batcher: Batcher | null;
  readonly #leases: Leases | null;
  readonly #returns: Returns;

  /** Throws a MisuseError if an option is invalid. */
  constructor(options: ClientOptions) {
    const url = validURL(options.url);
    const { timeoutMs, onFailure, localShare } = validSettings(options);
    this.#clock = options.clock ?? systemClock;
    this.#timeoutMs = timeoutMs;
    this.#onFailure = onFailure;
    this.#hooks = options.hooks ?? [];
    this.#sender = new Sender(url, validKey(options.key), options.fetch ?? ((to, init) => fetch(to, init)));
    const logger = options.logger ?? console;
    const changed = (from: BreakerState, to: BreakerState) => {
      if (from === "closed" && to === "open") {
        logger.warn("weir: the circuit breaker is open; calls are answered by the fallback", { url, onFailure });
      }
      for (const hooks of this.#hooks) hooks.breakerChanged?.(from, to);
    };
    this.#breaker = (options.breaker ?? defaults.breaker) ? new Breaker(changed) : null;
    this.#memory = (options.denialMemory ?? defaults.denialMemory) ? new Memory() : null;
    this.#local = onFailure === "local" ? new Local(localShare) : null;
    this.#batcher = (options.batching ?? defaults.batching) ? new Batcher(this.#sending()) : null;
    this.#returns = new Returns(this.#leasing(), this.#clock);
    this.#leases = (options.leases ?? defaults.leases) ? new Leases(this.#leasing(), this.#clock, this.#returns) : null;
  }

  /** The state of the circuit breaker. */
  get breakerState(): BreakerState {
    return this.#breaker?.state ?? "closed";
  }

  /** The number of checks that wait for a batch. */
  get waiting(): number {
    return this.#batcher?.waiting ?? 0;
  }

  /** The number of kinds of checks for which units are leased. */
  get leased(): number {
    return this.#leases?.size ?? 0;
  }

  /** The number of requests for units, and of returns, that are under way. */
  get leasing(): number {
    return (this.#leases?.inFlight ?? 0) + this.#returns.inFlight;
  }

  /** Returns leased units; it begins returns for a second at most. The client stays usable, without leases. */
  async close(): Promise<void> {
    await this.#leases?.close();
    await this.#returns.close();
  }

  /** Asks whether the subject may proceed, and counts the check if it is allowed. */
  async check(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.#single("check", check, options);
  }

  /** Returns the current state and takes nothing. Its cost is 0, and it is always allowed unless the subject is blocked. */
  async peek(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.#single("peek", check, options);
  }

  /**
   * Returns the answer that check would return, consumes nothing, and lists in skipped the rules that were not
   * evaluated, with the reason. It always asks the server.
   */
  async explain(check: Check, options: CallOptions = {}): Promise<Decision> {
    return this.#single("explain", check, options);
  }

  /**
   * Sends up to 100 checks in one request. They are decided in order, and each has its own outcome. If one check is
   * invalid, the whole batch is refused before anything is counted.
   */
  async checkBatch(checks: readonly Check[], options: CallOptions = {}): Promise<Decision[]> {
    return this.#told("batch", checks, options, async (headers) => {
      const questions = askBatch(checks);
      options.signal?.throwIfAborted();
      const deadline = new Deadline(this.#timeoutMs, options.signal);
      try {
        const answer = await this.#askTogether(questions, headers, deadline);
        if (!Array.isArray(answer)) return questions.map((question) => this.#fallback(question, answer));
        questions.forEach((question, i) => this.#local?.learn(question, answer[i] as Decision));
        return answer;
      } finally {
        deadline.dispose();
      }
    });
  }

  /**
   * Repeats a check until it is allowed, waits for the delay of a queue, and returns. If the wait would exceed maxWaitMs,
   * or no wait helps, it returns the denial immediately, so check allowed. If the delay of an allowed check would exceed
   * it, it rejects with a TimeoutError: the units are used, but the caller must not proceed.
   */
  async wait(check: Check, options: WaitOptions = {}): Promise<Decision> {
    const until = options.maxWaitMs === undefined ? Infinity : this.#clock.now() + options.maxWaitMs;
    for (;;) {
      const decision = await this.#told("check", [check], options, async (headers) => {
        if (check?.idempotencyKey) {
          throw invalid("header:Idempotency-Key", "is set", "Omit it: the same key would get the same denial again.");
        }
        return [await this.#answer(ask(check), headers, options.signal)];
      }).then(([first]) => first as Decision);
      const fits = (ms: number) => this.#clock.now() + ms <= until;
      if (decision.allowed) {
        if (!fits(decision.delayMs ?? 0)) {
          throw new DOMException(`weir: the request must be held for ${decision.delayMs} ms, beyond the deadline`, "TimeoutError");
        }
        await this.hold(decision, options);
        return decision;
      }
      let wait = decision.retryAfterMs;
      if (decision.denial?.code === "LIMITER_UNAVAILABLE" && decision.source === "fallback") wait ??= probeIntervalMs;
      if (wait === null || !fits(wait)) return decision;
      await this.#clock.sleep(wait, options.signal);
    }
  }

  /**
   * Takes up to that many units for checks with the subject, resource, plan and attributes of check, calls work, and
   * returns the units that work has not used: when it ends, or when the time of the lease is over. It needs no option,
   * and is for work that knows how many units it will use: an import, an export.
   *
   * The server gives fewer units if a quarter of what remains is less, and none if a rule is not leased or it does not
   * answer. The checks that find too few units are sent. It resolves to the result of work.
   */
  async withLease<T>(check: Check, units: number, work: (lease: Lease) => Promise<T> | T, options: CallOptions = {}): Promise<T> {
    const question = ask(check).costing(1);
    if (check.idempotencyKey) throw invalid("header:Idempotency-Key", "is set", "Omit it: a lease is for many checks.");
    if (!Number.isSafeInteger(units) || units < 1 || units > 1e15) throw invalid("/units", `is ${units}`, "Pass a whole number from 1 to 1000000000000000.");
    options.signal?.throwIfAborted();
    const leasing = this.#leasing(options.signal);
    const [sentAt, sentUnixMs] = [this.#clock.now(), this.#clock.unixMs()];
    const answer = await leasing.lease(question, units);
    if ("denial" in answer) leasing.denied(question, answer.denial, sentAt);
    const held = "granted" in answer ? new Held(answer.granted, sentAt, sentUnixMs) : null;
    const lease = new BlockLease(held, check, this, this.#clock, (asked, decision) => this.#decidedByLease(asked, decision));
    if (held === null) return work(lease);
    this.#returns.hold(held);
    try {
      return await work(lease);
    } finally {
      await this.#returns.end(held);
    }
  }

  /** Calls the hooks for a check that a lease has decided. */
  #decidedByLease(check: Check, decision: Decision): void {
    if (this.#hooks.length > 0) beginAll(this.#hooks, { name: "check", checks: [check] }, {})({ decisions: [decision] });
  }

  /** Waits for the delay of an allowed decision, if it has one. The middleware calls it. */
  async hold(decision: Decision, options: CallOptions = {}): Promise<void> {
    if (decision.allowed && decision.delayMs) await this.#clock.sleep(decision.delayMs, options.signal);
  }

  async #single(name: "check" | "peek" | "explain", check: Check, options: CallOptions): Promise<Decision> {
    const [decision] = await this.#told(name, [check], options, async (headers) => [await this.#answer(ask(check, name), headers, options.signal)]);
    return decision as Decision;
  }

  /** Makes a call, and calls the hooks at its beginning and end. */
  async #told(
    name: "check" | "peek" | "explain" | "batch",
    checks: readonly Check[],
    options: CallOptions,
    call: (headers: Record<string, string>) => Promise<Decision[]>,
  ): Promise<Decision[]> {
    const headers: Record<string, string> = traceparentForm.test(options.traceparent ?? "") ? { traceparent: options.traceparent as string } : {};
    if (this.#hooks.length === 0) return call(headers);
    const end = beginAll(this.#hooks, { name, checks }, headers);
    try {
      const decisions = await call(headers);
      end({ decisions });
      return decisions;
    } catch (error) {
      end({ error });
      throw error;
    }
  }

  /** Answers one question: from memory, by the server, or by the fallback. */
  async #answer(question: Question, headers: Record<string, string>, signal: AbortSignal | undefined): Promise<Decision> {
    signal?.throwIfAborted();
    const alone = question.explain || question.idempotencyKey !== "";
    if (!alone) {
      const leased = question.cost > 0 ? this.#leases?.take(question) : null;
      if (leased) return leased;
      const remembered = this.#memory?.recall(question, this.#clock.now());
      if (remembered) {
        this.#leases?.remembered(question);
        return remembered;
      }
    }
    const deadline = new Deadline(this.#timeoutMs, signal);
    try {
      if (alone || this.#batcher === null) return await this.#ask(question, headers, deadline);
      if (this.#breaker?.blocked(this.#clock.now())) return this.#fallback(question, breakerOpen);
      return await this.#batcher.ask(question, headers, deadline);
    } finally {
      deadline.dispose();
    }
  }

  /** Sends one question. */
  async #ask(question: Question, headers: Record<string, string>, deadline: Deadline): Promise<Decision> {
    const sentAt = this.#clock.now();
    const answer = await this.#counted(() => this.#sender.check(question, headers, deadline));
    if ("cause" in answer) return this.#fallback(question, answer);
    this.#learn(question, answer, sentAt);
    return answer;
  }

  /** Sends one batch. */
  async #askTogether(questions: readonly Question[], headers: Record<string, string>, deadline: Deadline): Promise<Decision[] | NoDecision> {
    return this.#counted(() => this.#sender.batch(questions, headers, deadline, this.#clock.unixMs()));
  }

  /** Sends if the breaker allows it, and reports the result to it. No decision is a value; misuse and cancellation are errors. */
  async #counted<T>(send: () => Promise<T>): Promise<T | NoDecision> {
    if (this.#breaker === null) return send().catch(failureOrThrow);
    const ticket = this.#breaker.enter(this.#clock.now());
    if (ticket === null) return breakerOpen;
    try {
      const answer = await send();
      this.#breaker.leave(ticket, null, this.#clock.now());
      return answer;
    } catch (error) {
      if (error instanceof Undecided) this.#breaker.leave(ticket, error.failure, this.#clock.now());
      else if (error instanceof MisuseError) this.#breaker.leave(ticket, null, this.#clock.now());
      else this.#breaker.cancel(ticket, this.#clock.now());
      return failureOrThrow(error);
    }
  }

  /** Stores what a decision of the server implies for later questions. */
  #learn(question: Question, decision: Decision, sentAt: number): void {
    this.#local?.learn(question, decision);
    this.#leases?.sent(question, decision);
    if (!question.explain) this.#memory?.remember(question, decision, sentAt);
  }

  /** Answers a question that the server has not decided. */
  #fallback(question: Question, failure: NoDecision): Decision {
    const denied = this.#onFailure === "deny";
    const decision: Decision = {
      allowed: !denied,
      source: "fallback",
      subject: question.subject,
      resource: question.resource,
      cost: question.cost,
      plan: null,
      rule: null,
      limit: null,
      remaining: null,
      retryAfterMs: null,
      resetAfterMs: null,
      delayMs: null,
      rules: [],
      skipped: [],
      degraded: true,
      warning: false,
      overage: false,
      replayed: false,
      denial: denied ? { code: "LIMITER_UNAVAILABLE", message: "The rate limiter is unavailable.", retryAfter: null } : null,
      headers: {},
      noDecision: failure,
    };
    return this.#local === null ? decision : this.#local.decide(question, decision, this.#clock.now());
  }

  /** The part of the client that leases and returns use. */
  #leasing(signal?: AbortSignal) {
    const within = async <T>(send: (deadline: Deadline) => Promise<T>): Promise<T | NoDecision> => {
      const deadline = new Deadline(this.#timeoutMs, signal);
      try {
        return await this.#counted(() => send(deadline));
      } finally {
        deadline.dispose();
      }
    };
    return {
      lease: (question: Question, units: number) => within((deadline) => this.#sender.lease(question, units, deadline)),
      giveBack: async (back: LeaseReturn) => within((deadline) => this.#sender.giveBack(back, deadline).then(() => null)),
      blocked: () => this.#breaker?.blocked(this.#clock.now()) ?? false,
      denied: (question: Question, denial: Decision, sentAt: number) => this.#memory?.remember(question.costing(1), denial, sentAt),
    };
  }

  /** The part of the client that the batcher uses. */
  #sending() {
    return {
      ask: (question: Question, headers: Record<string, string>, deadline: Deadline) => this.#ask(question, headers, deadline),
      askTogether: (questions: readonly Question[], deadline: Deadline) => this.#askTogether(questions, {}, deadline),
      fallback: (question: Question, failure: NoDecision) => this.#fallback(question, failure),
      learn: (question: Question, decision: Decision, sentAt: number) => this.#learn(question, decision, sentAt),
      now: () => this.#clock.now(),
    };
  }
}

const breakerOpen: NoDecision = { cause: "breaker_open", status: null, code: "", retryAfterMs: null };

function failureOrThrow(error: unknown): NoDecision {
  if (error instanceof Undecided) return error.failure;
  throw error;
}

/** Reads the address of the server, without a slash at the end. */
function validURL(text: string | undefined): string {
  const fix = "Pass the address of the server, such as https://weir.example.com.";
  let url: URL;
  try {
    url = new URL(text ?? "");
  } catch {
    throw invalid("url", "cannot be parsed", fix);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw invalid("url", `has the scheme "${url.protocol.slice(0, -1)}"`, fix);
  if (url.username !== "" || url.password !== "") throw invalid("url", "contains a user", `${fix} The key is an option of its own.`);
  if (url.search !== "" || url.hash !== "") throw invalid("url", "has a query string or a fragment", fix);
  return url.href.replace(/\/$/, "");
}

function validKey(key: string | undefined): string {
  const fix = "Pass an API key with the scope check.";
  if (typeof key !== "string" || key === "") throw invalid("key", "is empty", fix);
  if (!/^[!-~]+$/.test(key)) throw invalid("key", "contains a character that is not visible ASCII", fix);
  return key;
}

function validSettings(options: ClientOptions): { timeoutMs: number; onFailure: OnFailure; localShare: number } {
  const { timeoutMs = defaults.timeoutMs, onFailure = defaults.onFailure, localShare = defaults.localShare } = options;
  if (!(timeoutMs > 0)) throw invalid("timeout_ms", `is ${timeoutMs}`, "Pass a positive number as timeoutMs.");
  if (!["allow", "deny", "local"].includes(onFailure)) throw invalid("on_failure", `is "${onFailure}"`, 'Pass "allow", "deny" or "local" as onFailure.');
  if (!(localShare > 0 && localShare <= 1)) throw invalid("local_share", `is ${localShare}`, "Pass a number greater than 0 and up to 1 as localShare.");
  return { timeoutMs, onFailure, localShare };
}
