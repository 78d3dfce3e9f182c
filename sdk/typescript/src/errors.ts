/** Why there is no decision. */
export type Cause =
  | "timeout" // no complete answer within the timeout
  | "connection_refused" // the address refuses connections
  | "connection_lost" // any other failure of the connection
  | "server_error" // status 5xx
  | "quota_exceeded" // the tenant is over its own quota of checks
  | "invalid_answer" // an answer that is neither a decision nor misuse
  | "breaker_open"; // the circuit breaker is open; nothing was sent

/** Why there is no decision of the server. */
export interface NoDecision {
  readonly cause: Cause;
  /** The HTTP status; null if there was no answer. */
  readonly status: number | null;
  /** The problem's code, such as OVERLOADED; may be empty. */
  readonly code: string;
  /** From Retry-After. */
  readonly retryAfterMs: number | null;
  /** The error of the network, or what is wrong with the answer. */
  readonly error?: unknown;
}

/** Points at one wrong field. */
export interface FieldError {
  readonly pointer: string;
  readonly message: string;
  readonly fix: string;
}

/**
 * A mistake of the caller: a wrong key, an unknown plan, an invalid subject. Nothing was decided and nothing was
 * counted. It is never turned into a fallback, because a mistake must not switch the limiter off.
 */
export class MisuseError extends Error {
  override readonly name = "MisuseError";
  /** The HTTP status; null if the client refused the call and sent nothing. */
  readonly status: number | null;
  /** A stable name such as UNKNOWN_PLAN; empty if the answer was not a problem document. */
  readonly code: string;
  /** A JSON pointer to the first wrong field, such as /subject; may be empty. */
  readonly field: string;
  /** What to do about it; may be empty. */
  readonly fix: string;
  /** What is wrong, for people. */
  readonly detail: string;
  /** The id of the request, as in the server's log. */
  readonly requestId: string;
  readonly errors: readonly FieldError[];

  constructor(about: {
    status: number | null;
    code: string;
    detail: string;
    requestId?: string;
    errors: readonly FieldError[];
  }) {
    const first = about.errors[0];
    super(messageOf(about.status, about.code, about.detail, first?.fix ?? ""));
    this.status = about.status;
    this.code = about.code;
    this.detail = about.detail;
    this.requestId = about.requestId ?? "";
    this.errors = about.errors;
    this.field = first?.pointer ?? "";
    this.fix = first?.fix ?? "";
  }
}

function messageOf(status: number | null, code: string, detail: string, fix: string): string {
  const parts = ["weir:"];
  if (status !== null) parts.push(`status ${status}:`);
  if (detail !== "") parts.push(code === "" ? detail : `${code}: ${detail}`);
  else parts.push(code === "" ? "the answer is not from Weir; check the URL" : code);
  if (fix !== "") parts.push(fix);
  return parts.join(" ");
}

/** A misuse that the client detects before it sends anything. */
export function invalid(field: string, problem: string, fix: string): MisuseError {
  const name = field.replace(/^header:/, "").replace(/^\//, "");
  return new MisuseError({
    status: null,
    code: "INVALID_REQUEST",
    detail: `${name} ${problem}.`,
    errors: [{ pointer: field, message: problem, fix }],
  });
}

/** Carries a failure to the code that calls the fallback. */
export class Undecided extends Error {
  readonly failure: NoDecision;
  constructor(failure: NoDecision) {
    super(failure.cause);
    this.failure = failure;
  }
}
