import type { Decision } from "./decision.js";
import { copyHeaders, type HeaderTarget, headersOf, rateLimitHeaders, type RateLimitHeaders, targetOf } from "./headers.js";

/** The part of a response of Node that sets headers. */
export interface NodeResponse {
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
  writeHead(...args: never[]): unknown;
}

/** The headers of the guards of a response, the strictest of them. */
const guarded = new WeakMap<object, RateLimitHeaders>();

/** Headers that only mean something together. */
const groups: (keyof RateLimitHeaders)[][] = [
  ["RateLimit", "RateLimit-Policy"],
  ["X-RateLimit-Limit", "X-RateLimit-Remaining"],
  ["X-RateLimit-Reset"],
  ["Retry-After"],
];

/**
 * Sets the decision's headers on an allowed answer before its handler runs. If the handler sets those of another limiter,
 * the stricter ones are sent. target is where the framework sets headers of the response.
 */
export function guardHeaders(decision: Decision, response: NodeResponse, target: HeaderTarget = response): void {
  copyHeaders(decision, target);
  const first = !guarded.has(response);
  guarded.set(response, headersOf((name) => targetOf(target).get(name)));
  if (!first) return;
  const writeHead = response.writeHead as (...args: unknown[]) => unknown;
  response.writeHead = (...args: unknown[]) => writeHead.apply(response, settled(response, args));
}

/** Settles the headers of a response, and returns the arguments of writeHead without those that are settled. */
function settled(response: NodeResponse, args: unknown[]): unknown[] {
  const last = args.at(-1);
  const passed = typeof last === "object" && last !== null && !Array.isArray(last) ? Object.entries(last) : [];
  const ours = guarded.get(response) ?? {};
  const now = (name: string): string | null => {
    const value: unknown = passed.find(([key]) => key.toLowerCase() === name.toLowerCase())?.[1] ?? response.getHeader(name);
    return withoutOurs(value, ours[name as keyof RateLimitHeaders]);
  };
  const current = headersOf(now);
  const theirs = Object.fromEntries(
    groups
      .filter((group) => group.some((name) => current[name] !== undefined && current[name] !== ours[name]))
      .flatMap((group) => group.filter((name) => current[name] !== undefined).map((name) => [name, current[name] as string])),
  );
  if (Object.keys(theirs).length === 0) return args;
  for (const name of rateLimitHeaders) {
    const value = theirs[name];
    if (value === undefined) response.removeHeader(name);
    else response.setHeader(name, value);
  }
  copyHeaders({ headers: ours }, response);
  if (passed.length === 0) return args;
  const settledNames = new Set(rateLimitHeaders.map((name) => name.toLowerCase()));
  return [...args.slice(0, -1), Object.fromEntries(passed.filter(([name]) => !settledNames.has(name.toLowerCase())))];
}

/** The value of a header. The handler may have added its own to the guard's. */
function withoutOurs(value: unknown, ours: string | undefined): string | null {
  if (value === undefined || value === null) return null;
  if (!Array.isArray(value)) return String(value);
  const values = value.map(String);
  return String((values.length > 1 && values[0] === ours ? values.slice(1) : values)[0]);
}
