import type { BreakerState } from "./breaker.js";
import type { Decision } from "./decision.js";
import type { Check } from "./question.js";

/** A call of check, peek, explain or checkBatch. wait makes several calls. */
export interface Call {
  readonly name: "check" | "peek" | "explain" | "batch";
  readonly checks: readonly Check[];
}

/** The result of a call: decisions, one for each check, or an error. */
export interface Result {
  readonly decisions?: readonly Decision[];
  readonly error?: unknown;
  readonly durationMs: number;
}

/** Observe a client. They must be quick, and must not throw. */
export interface Hooks {
  /**
   * Is called before a call. The returned headers, such as traceparent, are added to the request, except to automatic
   * batches, which belong to many callers. The returned end is called with the result.
   */
  begin?(call: Call): { headers?: Record<string, string>; end?(result: Result): void } | void;
  /** Is called when the circuit breaker changes its state. */
  breakerChanged?(from: BreakerState, to: BreakerState): void;
}

/** Begins a call, and adds the headers of the hooks. The returned function must be called with the result. */
export function beginAll(hooks: readonly Hooks[], call: Call, headers: Record<string, string>): (result: Omit<Result, "durationMs">) => void {
  const ends: ((result: Result) => void)[] = [];
  for (const hook of hooks) {
    const begun = hook.begin?.(call);
    if (!begun) continue;
    Object.assign(headers, begun.headers);
    ends.unshift((result) => begun.end?.(result));
  }
  const began = performance.now();
  return (result) => {
    const durationMs = performance.now() - began;
    for (const end of ends) end({ ...result, durationMs });
  };
}
