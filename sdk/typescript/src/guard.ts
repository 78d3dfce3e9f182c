import type { Checker, Logger } from "./client.js";
import type { Decision } from "./decision.js";
import { MisuseError } from "./errors.js";
import type { Check } from "./question.js";

type MaybePromise<T> = T | Promise<T>;

/** The options of the middleware of all frameworks. Only the client and the subject are required. */
export interface GuardOptions<Request> {
  readonly client: Checker;
  /**
   * Returns the subject. A request without a subject is a misuse, so that a missing one never switches the limiter off.
   * Hash values that the customer chooses with hashSubject: a value of more than 256 bytes is a misuse, too.
   */
  subject(request: Request): MaybePromise<string | null | undefined>;
  /** Returns the resource. The default is the method and the route template. */
  resource?(request: Request): MaybePromise<string>;
  /** Returns the units that the request takes. The default is 1. */
  cost?(request: Request): MaybePromise<number>;
  /** Returns the plan. The default is the subject's own. */
  plan?(request: Request): MaybePromise<string | undefined>;
  /** Returns further values that rules can count by. The default is none. */
  attributes?(request: Request): MaybePromise<Record<string, string>>;
  /** Selects requests that are not checked, such as health checks. */
  skip?(request: Request): MaybePromise<boolean>;
  /** The log for misuse. The default is console. */
  readonly logger?: Logger | undefined;
}

/** The result of the middleware for one request. */
export type Verdict =
  | { readonly kind: "pass"; readonly decision: Decision | null } // null: it was skipped
  | { readonly kind: "denied"; readonly decision: Decision; readonly answer: Problem }
  | { readonly kind: "misuse"; readonly error: MisuseError; log(): Problem }
  | { readonly kind: "gone" }; // the client has cancelled the request

/** A problem document (RFC 9457) as an answer. */
export interface Problem {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** The data of a framework about a request. */
export interface Incoming {
  /** The method and the route template. */
  readonly route: string;
  readonly traceparent: string | undefined;
  readonly signal: AbortSignal | undefined;
}

/** Sends the check of one request, and waits for the delay of a queue. */
export async function judge<Request>(options: GuardOptions<Request>, request: Request, incoming: Incoming): Promise<Verdict> {
  if (await options.skip?.(request)) return { kind: "pass", decision: null };
  const call = { signal: incoming.signal, traceparent: incoming.traceparent };
  try {
    const decision = await options.client.check(await checkOf(options, request, incoming.route), call);
    if (!decision.allowed) return { kind: "denied", decision, answer: problemOf(decision) };
    await options.client.hold(decision, call);
    return { kind: "pass", decision };
  } catch (error) {
    if (error instanceof MisuseError) {
      const log = () => {
        (options.logger ?? console).error("weir: the check of a request is wrong", error);
        return problem({ title: "Internal Server Error", status: 500 });
      };
      return { kind: "misuse", error, log };
    }
    if (incoming.signal?.aborted) return { kind: "gone" };
    throw error;
  }
}

async function checkOf<Request>(options: GuardOptions<Request>, request: Request, route: string): Promise<Check> {
  return {
    subject: (await options.subject(request)) ?? "",
    resource: options.resource ? await options.resource(request) : route,
    cost: await options.cost?.(request),
    plan: await options.plan?.(request),
    attributes: await options.attributes?.(request),
  };
}

/**
 * The answer to a denied request: status 429 and a problem document. If the fallback "deny" has answered, the status is
 * 503, because the subject is not known to be over a limit.
 */
export function problemOf(decision: Decision): Problem {
  const { denial } = decision;
  const unavailable = denial?.code === "LIMITER_UNAVAILABLE";
  return problem({
    title: unavailable ? "Service Unavailable" : "Too Many Requests",
    status: unavailable ? 503 : 429,
    ...(denial ? { code: denial.code, detail: denial.message } : {}),
    ...(denial && denial.retryAfter !== null ? { retry_after: denial.retryAfter } : {}),
  });
}

function problem(document: { title: string; status: number; [field: string]: unknown }): Problem {
  return {
    status: document.status,
    headers: { "Content-Type": "application/problem+json", "Cache-Control": "no-store" },
    body: `${JSON.stringify({ type: "about:blank", ...document })}\n`,
  };
}

/**
 * The resource of a request: the method and the route template, or the method alone if that is unknown. HEAD is GET,
 * because the same handlers answer both, and a method that HTTP does not define is "OTHER". With the method as it was
 * sent, a customer could choose one that no rule knows.
 */
export function routeName(method: string, template: unknown): string {
  const name = methodName(method);
  return typeof template === "string" && template.startsWith("/") ? `${name} ${template}` : name;
}

const methods: ReadonlySet<string> = new Set(["GET", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"]);

function methodName(method: string): string {
  if (method === "HEAD") return "GET";
  return methods.has(method) ? method : "OTHER";
}
