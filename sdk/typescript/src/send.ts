import type { components } from "./api.js";
import type { Deadline } from "./clock.js";
import { decodeBatch, decodeDecision, type Decision } from "./decision.js";
import { type Cause, type FieldError, MisuseError, type NoDecision, Undecided } from "./errors.js";
import { headersOf, wholeNumber } from "./headers.js";
import type { LeaseAnswer } from "./leases.js";
import type { Question } from "./question.js";
import type { LeaseReturn } from "./returns.js";
import { version } from "./version.js";

type Wire = components["schemas"];

export const maxAnswer = 1 << 20;
export const maxBatchAnswer = 8 << 20;

/** The part of the Fetch API that a client needs. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** An answer over HTTP. */
interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: string;
}

/** Sends questions and reads answers. It throws a MisuseError, an Undecided, or the caller's own reason. */
export class Sender {
  readonly #url: string;
  readonly #key: string;
  readonly #fetch: Fetch;

  constructor(url: string, key: string, fetch: Fetch) {
    this.#url = url;
    this.#key = key;
    this.#fetch = fetch;
  }

  /**
   * Sends one question. If it has an idempotency key and the connection failed before an answer began, it is sent once
   * more.
   */
  async check(question: Question, headers: Record<string, string>, deadline: Deadline): Promise<Decision> {
    const keyed = question.idempotencyKey !== "";
    if (keyed) headers = { ...headers, "idempotency-key": question.idempotencyKey };
    const exchange = () => this.#exchange("/v1/check", headers, JSON.stringify(question.json()), deadline, maxAnswer);
    const answer = await exchange().catch((error: unknown) => {
      if (keyed && error instanceof ConnectionFailed && !deadline.signal.aborted) return exchange();
      throw error;
    });
    throwUndecided(answer);
    const decision = understood(answer, () => decodeDecision(parsed(answer), headersOf((name) => answer.headers.get(name))));
    const word = decisionWord(answer);
    if (decision.allowed ? word !== "allow" || answer.status !== 200 : word !== "deny") {
      throw nonsense(answer, new Error(`Weir-Decision is "${word}", status ${answer.status} and allowed ${decision.allowed}`));
    }
    return decision;
  }

  /** Sends many questions in one request. */
  async batch(questions: readonly Question[], headers: Record<string, string>, deadline: Deadline, unixMs: number): Promise<Decision[]> {
    const body = JSON.stringify({ checks: questions.map((question) => question.json()) });
    const answer = await this.#exchange("/v1/check/batch", headers, body, deadline, maxBatchAnswer);
    throwUndecided(answer);
    const word = decisionWord(answer);
    if (answer.status !== 200 || (word !== "allow" && word !== "deny")) {
      throw nonsense(answer, new Error(`Weir-Decision is "${word}" and status ${answer.status}`));
    }
    return understood(answer, () => decodeBatch(parsed(answer), questions.length, unixMs));
  }

  /** Requests units for a kind of check. */
  async lease(question: Question, units: number, deadline: Deadline): Promise<LeaseAnswer> {
    const { cost: _, ...check } = question.json();
    const request: Partial<Wire["LeaseRequest"]> = { ...check, units };
    const answer = await this.#exchange("/v1/leases", {}, JSON.stringify(request), deadline, maxAnswer);
    if (answer.status === 409 || answer.status === 404 || answer.status === 405) { // a server without leases answers 404 or 405
      const seconds = problemOf(answer).code === "NOT_LEASABLE" ? wholeNumber(answer.headers.get("retry-after")) : null;
      return { refusedMs: Math.min(seconds ?? Infinity, 10) * 1000 };
    }
    throwUndecided(answer);
    const word = decisionWord(answer);
    const headers = headersOf((name) => answer.headers.get(name));
    return understood(answer, () => {
      const body = objectOf(parsed(answer));
      const denial = answer.status === 429 && word === "deny" ? decodeDecision(body, headers) : null;
      if (denial !== null && !denial.allowed) return { denial };
      const { lease: id, units: granted, expires_in_ms: lifeMs, decision: checked } = body as Record<keyof Wire["LeaseAnswer"], unknown>;
      const decision = decodeDecision(checked, headers);
      if (answer.status !== 200 || word !== "allow" || !decision.allowed || typeof id !== "string" || id === "" || !within(granted, units) || !within(lifeMs, 60_000)) {
        throw new Error(`a lease of ${String(granted)} units for ${String(lifeMs)} ms, with ${units} requested`);
      }
      return { granted: { id, units: granted, lifeMs, decision: { ...decision, source: "lease" } } };
    });
  }

  /** Returns units. */
  async giveBack(back: LeaseReturn, deadline: Deadline): Promise<void> {
    const { id, units, allowed, denied, deniedUnits } = back;
    const body: Wire["LeaseReturn"] = { units, allowed, denied, denied_units: deniedUnits };
    const answer = await this.#exchange(`/v1/leases/${encodeURIComponent(id)}/return`, {}, JSON.stringify(body), deadline, maxAnswer);
    if (answer.status !== 204) throwUndecided(answer);
  }

  /** Sends one request and reads the whole answer, so that its connection can be used again. */
  async #exchange(path: string, headers: Record<string, string>, body: string, deadline: Deadline, most: number): Promise<Answer> {
    const init: RequestInit & { next: unknown } = {
      method: "POST",
      headers: {
        ...headers,
        authorization: `Bearer ${this.#key}`,
        "content-type": "application/json",
        "user-agent": `weir-typescript/${version}`,
      },
      ...bodyOf(body),
      signal: deadline.signal,
      redirect: "manual", // a redirected check would send the key to another server
      next: { revalidate: 0 }, // some versions of Next cache the results of fetch; others ignore this
    };
    let response: Response;
    try {
      response = await this.#fetch(this.#url + path, init);
    } catch (error) {
      throw failed(error, deadline, true);
    }
    try {
      const { status } = response;
      return { status, headers: response.headers, body: await textOf(response, most) };
    } catch (error) {
      throw failed(error, deadline, false);
    }
  }
}

/**
 * The body of a request. Deno sends a request again when a connection fails that was used before, unless its body is a
 * stream. A check that was counted would then count twice.
 */
function bodyOf(text: string): { body: BodyInit; duplex?: "half" } {
  if (!("Deno" in globalThis)) return { body: text };
  return { body: new Blob([text]).stream(), duplex: "half" };
}

/** Whether a value is a whole number from 1 to most. */
function within(value: unknown, most: number): value is number {
  return Number.isInteger(value) && (value as number) >= 1 && (value as number) <= most;
}

/** A connection that failed before an answer began. */
class ConnectionFailed extends Undecided {}

/** Classifies an error of fetch. The caller's own reason is returned unchanged. */
function failed(error: unknown, deadline: Deadline, beforeAnswer: boolean): unknown {
  if (error instanceof Undecided) return error;
  if (deadline.cancelled) return deadline.signal.reason;
  const cause = deadline.timedOut ? "timeout" : causeOf(error);
  const failure: NoDecision = { cause, status: null, code: "", retryAfterMs: null, error };
  const connection = cause === "connection_refused" || cause === "connection_lost";
  return beforeAnswer && connection ? new ConnectionFailed(failure) : new Undecided(failure);
}

/** Runtimes report a connection error by a code or, without one, by a message. */
function causeOf(error: unknown): Cause {
  const told = toldBy(error);
  if (told.some((text) => /^ECONNREFUSED$|ConnectionRefused|connection refused/i.test(text))) return "connection_refused";
  if (told.some((text) => /^ETIMEDOUT$|^UND_ERR_.*TIMEOUT$|^ConnectionTimeout$/.test(text))) return "timeout";
  if (told.some((text) => text.startsWith("HPE_"))) return "invalid_answer";
  return "connection_lost";
}

/** The codes and messages of an error and its causes. */
function toldBy(error: unknown, depth = 0): string[] {
  if (typeof error !== "object" || error === null || depth > 4) return [];
  const { code, message, cause, errors } = error as { code?: unknown; message?: unknown; cause?: unknown; errors?: unknown };
  const behind = [cause, ...(Array.isArray(errors) ? errors : [])];
  return [code, message].filter((text) => typeof text === "string").concat(...behind.map((one) => toldBy(one, depth + 1)));
}

/** Reads a body to its end, or up to a limit. */
async function textOf(response: Response, most: number): Promise<string> {
  const announced = wholeNumber(response.headers.get("content-length"));
  const tooLong = () => nonsense({ status: response.status, headers: response.headers, body: "" }, new Error(`the answer has more than ${most} bytes`));
  if (announced !== null && announced > most) {
    await response.body?.cancel();
    throw tooLong();
  }
  if (response.body === null) return "";
  // A compressed body may be longer than announced.
  if (announced !== null && !response.headers.has("content-encoding")) return response.text();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.byteLength;
    if (bytes > most) {
      await reader.cancel();
      throw tooLong();
    }
    text += decoder.decode(value, { stream: true });
  }
}

const misuses = new Set([400, 401, 403, 404, 413, 415, 422, 431]);

/** Throws the misuse or the failure that the status means. 200 and 429 may be decisions. */
function throwUndecided(answer: Answer): void {
  if (answer.status === 200 || (answer.status === 429 && decisionWord(answer) !== "none")) return;
  if (misuses.has(answer.status)) throw new MisuseError({ status: answer.status, ...problemOf(answer) });
  if (answer.status === 429) throw new Undecided(failureOf(answer, "quota_exceeded"));
  throw new Undecided(failureOf(answer, answer.status >= 500 ? "server_error" : "invalid_answer"));
}

function decisionWord(answer: Answer): string {
  return (answer.headers.get("weir-decision") ?? "").toLowerCase();
}

function parsed(answer: Answer): unknown {
  return JSON.parse(answer.body);
}

function understood<T>(answer: Answer, read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw nonsense(answer, error);
  }
}

/** The failure of an answer with the status of a decision that is not a decision. */
function nonsense(answer: Answer, error: unknown): Undecided {
  return new Undecided({ ...failureOf(answer, "invalid_answer"), error });
}

function failureOf(answer: Answer, cause: Cause): NoDecision {
  const seconds = wholeNumber(answer.headers.get("retry-after"));
  const code = answer.status === 200 ? "" : problemOf(answer).code;
  return { cause, status: answer.status, code, retryAfterMs: seconds === null ? null : seconds * 1000 };
}

/** Reads a problem document (RFC 9457). Anything else leaves all fields empty, and the status decides. */
function problemOf(answer: Answer): { code: string; detail: string; requestId: string; errors: FieldError[] } {
  let document: Record<string, unknown> = {};
  try {
    document = objectOf(JSON.parse(answer.body));
  } catch {
    // not JSON
  }
  const text = (value: unknown) => (typeof value === "string" ? value : "");
  const errors = Array.isArray(document["errors"]) ? document["errors"].map(objectOf) : [];
  return {
    code: text(document["code"]),
    detail: text(document["detail"]),
    requestId: text(document["request_id"]),
    errors: errors.map(({ pointer, message, fix }) => ({ pointer: text(pointer), message: text(message), fix: text(fix) })),
  };
}

function objectOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}
