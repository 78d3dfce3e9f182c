import type { Decision } from "./decision.js";

/** The names of the headers that a decision can have. */
export const rateLimitHeaders = [
  "RateLimit",
  "RateLimit-Policy",
  "Retry-After",
  "X-RateLimit-Limit",
  "X-RateLimit-Remaining",
  "X-RateLimit-Reset",
] as const;

/** The rate-limit headers of a decision. An absent one has no entry. */
export type RateLimitHeaders = { readonly [name in (typeof rateLimitHeaders)[number]]?: string };

/** An answer whose headers can be read and set: Headers, or a response of Node. */
export type HeaderTarget =
  | { get(name: string): string | null; set(name: string, value: string): unknown; delete(name: string): unknown }
  | { getHeader(name: string): unknown; setHeader(name: string, value: string): unknown; removeHeader(name: string): unknown };

/**
 * Copies the decision's rate-limit headers to an answer. If the answer already has headers of another limiter, the
 * stricter set is used: the one with the longer Retry-After, then with the smaller share left.
 */
export function copyHeaders(decision: Pick<Decision, "headers">, to: HeaderTarget): void {
  const target = targetOf(to);
  if (Object.keys(decision.headers).length === 0) return;
  const existing = headersOf((name) => target.get(name));
  if (Object.keys(existing).length > 0 && !stricter(decision.headers, existing)) return;
  for (const name of rateLimitHeaders) {
    const value = decision.headers[name];
    if (value !== undefined) target.set(name, value);
    else if (existing[name] !== undefined) target.delete(name);
  }
}

/** Reads and sets the headers of any answer in the same way. */
export function targetOf(to: HeaderTarget): Extract<HeaderTarget, { get: unknown }> {
  if (!("getHeader" in to)) return to;
  return {
    get: (name) => {
      const value = to.getHeader(name);
      return value === undefined || value === null ? null : String(value);
    },
    set: (name, value) => to.setHeader(name, value),
    delete: (name) => to.removeHeader(name),
  };
}

/** Reads the rate-limit headers of an answer. */
export function headersOf(get: (name: string) => string | null | undefined): RateLimitHeaders {
  const headers: { -readonly [name in keyof RateLimitHeaders]: RateLimitHeaders[name] } = {};
  for (const name of rateLimitHeaders) {
    const value = get(name);
    if (value) headers[name] = value;
  }
  return headers;
}

function stricter(headers: RateLimitHeaders, than: RateLimitHeaders): boolean {
  const wait = seconds(headers["Retry-After"]);
  const thanWait = seconds(than["Retry-After"]);
  if (wait !== thanWait) return wait > thanWait;
  return share(headers) < share(than);
}

function seconds(text: string | undefined): number {
  return wholeNumber(text) ?? 0;
}

/** Reads a header that is a whole number. */
export function wholeNumber(text: string | null | undefined): number | null {
  return text && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** The smallest remaining share of a quota. An unknown share is infinite. */
function share(headers: RateLimitHeaders): number {
  const limit = wholeNumber(headers["X-RateLimit-Limit"]);
  const remaining = wholeNumber(headers["X-RateLimit-Remaining"]);
  if (limit && remaining !== null) return remaining / limit;
  const quotas = parameters(headers["RateLimit-Policy"], "q");
  let smallest = Infinity;
  for (const [name, left] of parameters(headers["RateLimit"], "r")) {
    const quota = quotas.get(name);
    if (quota) smallest = Math.min(smallest, left / quota);
  }
  return smallest;
}

/**
 * Reads one parameter of each member of a list such as `"api";r=5;t=3, "login";r=1`. Members are names of rules, which
 * contain neither commas nor semicolons.
 */
function parameters(list: string | undefined, parameter: string): Map<string, number> {
  const values = new Map<string, number>();
  for (const member of (list ?? "").split(",")) {
    const [name, ...parts] = member.split(";").map((part) => part.trim());
    for (const part of parts) {
      const value = part.startsWith(`${parameter}=`) ? wholeNumber(part.slice(parameter.length + 1)) : null;
      if (value !== null) values.set(name ?? "", value);
    }
  }
  return values;
}

/** The headers of a decision of a batch, which has none. */
export function builtHeaders(decision: Omit<Decision, "headers">, unixMs: number): RateLimitHeaders {
  const deciding = decision.rules.find((rule) => rule.rule === decision.rule && rule.burst !== null);
  const text = (value: number | null | undefined) => (value === null || value === undefined ? null : String(value));
  const built: Record<string, string | null> = {
    "Retry-After": text(decision.denial?.retryAfter),
    "X-RateLimit-Limit": text(deciding?.burst ?? decision.limit),
    "X-RateLimit-Remaining": text(decision.remaining),
    "X-RateLimit-Reset": decision.resetAfterMs === null ? null : text(ceilSeconds(unixMs + decision.resetAfterMs)),
  };
  return headersOf((name) => built[name]);
}

/** Converts milliseconds to seconds, rounded up. */
export function ceilSeconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
