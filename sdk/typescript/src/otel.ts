/**
 * Hooks for OpenTelemetry: a span and metrics for each call, and the trace headers for the server. Neither subjects nor
 * keys are attributes: they are personal, and there are too many of them.
 */
import type { Decision } from "./decision.js";
import { MisuseError } from "./errors.js";
import type { Hooks, Result } from "./hooks.js";

type Attributes = Record<string, string | number>;

/** The part of a span that the hooks use, as in @opentelemetry/api. */
export interface OtelSpan {
  setAttributes(attributes: Attributes): unknown;
  setStatus(status: { code: number; message?: string }): unknown;
  recordException(error: Error): unknown;
  end(): void;
  spanContext(): { traceId: string; spanId: string; traceFlags: number; traceState?: { serialize(): string } | undefined };
}

/** The part of a tracer that the hooks use. */
export interface OtelTracer {
  startSpan(name: string, options: { kind: number; attributes: Attributes }): OtelSpan;
}

/** The part of a meter that the hooks use. */
export interface OtelMeter {
  createHistogram(name: string, options: { unit: string; description: string; advice: { explicitBucketBoundaries: number[] } }): {
    record(value: number, attributes: Attributes): void;
  };
  createCounter(name: string, options: { unit: string; description: string }): { add(value: number, attributes?: Attributes): void };
}

// Values of SpanKind and SpanStatusCode.
const kindClient = 2;
const statusError = 2;

/**
 * Returns hooks for the option hooks of a client:
 *
 *     otelHooks({ tracer: trace.getTracer("weir"), meter: metrics.getMeter("weir") })
 *
 * Metrics: weir.client.duration (seconds, by call and outcome), weir.client.checks (by outcome, source and cause) and
 * weir.client.breaker.openings.
 */
export function otelHooks({ tracer, meter }: { tracer?: OtelTracer; meter?: OtelMeter }): Hooks {
  const duration = meter?.createHistogram("weir.client.duration", {
    unit: "s",
    description: "Duration of calls",
    advice: { explicitBucketBoundaries: [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1] },
  });
  const checks = meter?.createCounter("weir.client.checks", { unit: "{check}", description: "Checks by outcome" });
  const openings = meter?.createCounter("weir.client.breaker.openings", { unit: "{opening}", description: "Times that the circuit breaker has opened" });
  return {
    begin(call) {
      const span = tracer?.startSpan(`weir ${call.name}`, { kind: kindClient, attributes: { "weir.checks": call.checks.length } });
      return {
        headers: span ? traceHeaders(span) : {},
        end(result) {
          const outcome = outcomeOf(result);
          duration?.record(result.durationMs / 1000, { "weir.call": call.name, "weir.outcome": outcome });
          if (result.decisions === undefined) checks?.add(call.checks.length, { "weir.outcome": outcome });
          for (const decision of result.decisions ?? []) checks?.add(1, attributesOf(decision));
          if (span) end(span, result, outcome);
        },
      };
    },
    breakerChanged(from, to) {
      if (from === "closed" && to === "open") openings?.add(1);
    },
  };
}

function end(span: OtelSpan, result: Result, outcome: string): void {
  if (result.decisions === undefined) {
    if (result.error instanceof Error) span.recordException(result.error);
    span.setStatus({ code: statusError, message: outcome });
  }
  const [decision, ...more] = result.decisions ?? [];
  if (decision && more.length === 0) span.setAttributes({ ...attributesOf(decision), "weir.rule": decision.rule ?? "" });
  span.end();
}

/** The headers of W3C Trace Context. A tracer that records nothing has a trace of zeros, which is not sent. */
function traceHeaders(span: OtelSpan): Record<string, string> {
  const { traceId, spanId, traceFlags, traceState } = span.spanContext();
  if (/^0*$/.test(traceId)) return {};
  const headers: Record<string, string> = { traceparent: `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, "0")}` };
  const state = traceState?.serialize();
  if (state) headers["tracestate"] = state;
  return headers;
}

/** The outcome of a call. A call of several checks is a decision unless none of them was decided. */
function outcomeOf({ decisions, error }: Result): string {
  if (decisions === undefined) return error instanceof MisuseError ? "misuse" : "cancelled";
  return decisions.some((decision) => decision.noDecision === null) ? "decision" : "no_decision";
}

function attributesOf(decision: Decision): Attributes {
  const attributes: Attributes = { "weir.outcome": decision.allowed ? "allowed" : "denied", "weir.source": decision.source };
  if (decision.noDecision) attributes["weir.cause"] = decision.noDecision.cause;
  return attributes;
}
