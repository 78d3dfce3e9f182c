import { Deadline } from "./clock.js";
import type { Decision } from "./decision.js";
import { MisuseError, type NoDecision } from "./errors.js";
import { maxBatch, type Question } from "./question.js";

/** The server accepts batches of 256 KiB. Half of that is used, because sizes are estimates. */
const maxBytes = 128 << 10;

/** A check that waits to be sent, and then for its answer. */
interface Waiter {
  readonly question: Question;
  readonly deadline: Deadline;
  readonly bytes: number;
  readonly settle: (answer: Promise<Decision>) => void;
}

/** The part of the client that a batcher uses. */
export interface Sending {
  ask(question: Question, headers: Record<string, string>, deadline: Deadline): Promise<Decision>;
  askTogether(questions: readonly Question[], deadline: Deadline): Promise<Decision[] | NoDecision>;
  fallback(question: Question, failure: NoDecision): Decision;
  learn(question: Question, decision: Decision, sentAt: number): void;
  now(): number;
}

/**
 * Sends checks that start during another request together in the next one. If no request is in flight, a check is
 * sent immediately and alone.
 */
export class Batcher {
  readonly #client: Sending;
  #underWay = 0;
  #waiting: Waiter[] = [];
  #bytes = 0;

  constructor(client: Sending) {
    this.#client = client;
  }

  /** The number of checks that wait for a batch. */
  get waiting(): number {
    return this.#waiting.length;
  }

  /** Answers a question. */
  async ask(question: Question, headers: Record<string, string>, deadline: Deadline): Promise<Decision> {
    if (this.#underWay === 0) {
      return this.#during(() => this.#client.ask(question, headers, deadline));
    }
    return new Promise((resolve) => {
      const bytes = 128 + 3 * JSON.stringify(question.json()).length;
      const ended = () => {
        this.#withdraw(waiter);
        settle(this.#ended(waiter));
      };
      const settle = (answer: Promise<Decision>) => {
        deadline.signal.removeEventListener("abort", ended);
        answer.catch(() => {}); // no other code handles the error if the check has ended before
        resolve(answer);
      };
      const waiter: Waiter = { question, deadline, bytes, settle };
      deadline.signal.addEventListener("abort", ended, { once: true });
      this.#waiting.push(waiter);
      this.#bytes += bytes;
      if (this.#waiting.length >= maxBatch || this.#bytes >= maxBytes) this.#send();
    });
  }

  /** The answer to a check whose time ended while it waited. */
  async #ended({ question, deadline }: Waiter): Promise<Decision> {
    if (deadline.cancelled) throw deadline.signal.reason;
    return this.#client.fallback(question, { cause: "timeout", status: null, code: "", retryAfterMs: null, error: deadline.signal.reason });
  }

  /** Removes a check whose caller no longer waits, unless it was sent. */
  #withdraw(waiter: Waiter): void {
    const i = this.#waiting.indexOf(waiter);
    if (i < 0) return;
    this.#waiting.splice(i, 1);
    this.#bytes -= waiter.bytes;
  }

  /** Runs a request, and sends the waiting checks after it. */
  async #during<T>(request: () => Promise<T>): Promise<T> {
    this.#underWay++;
    try {
      return await request();
    } finally {
      this.#underWay--;
      if (this.#underWay === 0 && this.#waiting.length > 0) this.#send();
    }
  }

  /** Sends all waiting checks. */
  #send(): void {
    const batch = this.#waiting;
    this.#waiting = [];
    this.#bytes = 0;
    const [only] = batch;
    void this.#during(async () => {
      if (batch.length === 1 && only) await this.#alone(only);
      else await this.#together(batch);
    });
  }

  /** Sends one check with its own deadline. It never rejects: the check's caller gets the error. */
  async #alone(waiter: Waiter): Promise<void> {
    const answer = this.#client.ask(waiter.question, {}, waiter.deadline);
    waiter.settle(answer);
    await answer.catch(() => {});
  }

  /** Sends a batch with the deadline of its newest check, and distributes the answers. */
  async #together(batch: readonly Waiter[]): Promise<void> {
    const deadline = new Deadline(batch.at(-1)?.deadline.left ?? 0, undefined);
    const sentAt = this.#client.now();
    const questions = batch.map((waiter) => waiter.question);
    const answer = await this.#client.askTogether(questions, deadline).catch((error: unknown) => new Refused(error));
    deadline.dispose();
    if (answer instanceof Refused && answer.forOne) {
      // Nothing was counted. Each check is sent alone, so that only the invalid one rejects with a misuse.
      await Promise.all(batch.map((waiter) => this.#alone(waiter)));
      return;
    }
    batch.forEach((waiter, i) => waiter.settle(this.#answerOf(waiter, answer, i, sentAt)));
  }

  async #answerOf(waiter: Waiter, answer: Decision[] | NoDecision | Refused, i: number, sentAt: number): Promise<Decision> {
    if (answer instanceof Refused) throw answer.error;
    const decision = Array.isArray(answer) ? answer[i] : undefined;
    if (decision === undefined) return this.#client.fallback(waiter.question, answer as NoDecision);
    this.#client.learn(waiter.question, decision, sentAt);
    return decision;
  }
}

/** The error of a batch that the server refused. */
class Refused {
  constructor(readonly error: unknown) {}

  /** Whether it was refused because of one of its checks. */
  get forOne(): boolean {
    if (!(this.error instanceof MisuseError)) return false;
    return this.error.code === "RESOURCE_NOT_ALLOWED" || [400, 413, 415, 422].includes(this.error.status ?? 0);
  }
}
