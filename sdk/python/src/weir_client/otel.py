"""Hooks for OpenTelemetry: a span and metrics for each call, and the trace headers for the server.

They take a tracer and a meter of the OpenTelemetry API, and do not import it. Neither subjects nor keys
are attributes: they are personal, and there are too many of them.
"""

from __future__ import annotations

from typing import Any

from ._breaker import BreakerState
from ._decision import Decision
from ._errors import MisuseError
from ._hooks import Begun, Call, Hooks, Result


class OtelHooks(Hooks):
    """Hooks for the option hooks of a client.

    Metrics: weir.client.duration (seconds, by call and outcome), weir.client.checks (by outcome, source
    and cause) and weir.client.breaker.openings. Pass span_options={"kind": SpanKind.CLIENT} to set the
    kind of the spans.
    """

    def __init__(self, tracer: Any = None, meter: Any = None, span_options: dict[str, Any] | None = None) -> None:
        self._tracer = tracer
        self._span_options = span_options or {}
        self._duration = self._checks = self._openings = None
        if meter is not None:
            self._duration = meter.create_histogram("weir.client.duration", unit="s", description="Duration of calls")
            self._checks = meter.create_counter("weir.client.checks", unit="{check}", description="Checks by outcome")
            self._openings = meter.create_counter(
                "weir.client.breaker.openings",
                unit="{opening}",
                description="Times that the circuit breaker has opened",
            )

    def begin(self, call: Call) -> Begun:
        span = None
        headers: dict[str, str] = {}
        if self._tracer is not None:
            attributes = {"weir.checks": len(call.checks)}
            span = self._tracer.start_span(f"weir {call.name}", attributes=attributes, **self._span_options)
            headers = _trace_headers(span.get_span_context())

        def end(result: Result) -> None:
            outcome = _outcome(result)
            self._measure(call, result, outcome)
            if span is not None:
                _end(span, result)

        return Begun(headers, end)

    def breaker_changed(self, before: BreakerState, after: BreakerState) -> None:
        if self._openings is not None and (before, after) == ("closed", "open"):
            self._openings.add(1)

    def _measure(self, call: Call, result: Result, outcome: str) -> None:
        if self._duration is None or self._checks is None:
            return
        self._duration.record(result.duration_ms / 1000, {"weir.call": call.name, "weir.outcome": outcome})
        if result.decisions is None:
            self._checks.add(len(call.checks), {"weir.outcome": outcome})
        for decision in result.decisions or ():
            self._checks.add(1, _attributes(decision))


def _end(span: Any, result: Result) -> None:
    if result.error is not None:
        span.record_exception(result.error)
    if result.decisions is not None and len(result.decisions) == 1:
        decision = result.decisions[0]
        span.set_attributes({**_attributes(decision), "weir.rule": decision.rule or ""})
    else:
        span.set_attributes({"weir.outcome": _outcome(result)})
    span.end()


def _trace_headers(context: Any) -> dict[str, str]:
    """The headers of W3C Trace Context. The trace of a tracer that records nothing is not sent."""
    if not context.is_valid:
        return {}
    trace = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    headers = {"traceparent": trace}
    if context.trace_state:
        headers["tracestate"] = context.trace_state.to_header()
    return headers


def _outcome(result: Result) -> str:
    """The outcome of a call. A call of several checks is a decision unless none of them was decided."""
    if result.decisions is None:
        return "misuse" if isinstance(result.error, MisuseError) else "cancelled"
    return "decision" if any(d.no_decision is None for d in result.decisions) else "no_decision"


def _attributes(decision: Decision) -> dict[str, str]:
    attributes = {"weir.outcome": "allowed" if decision.allowed else "denied", "weir.source": decision.source}
    if decision.no_decision is not None:
        attributes["weir.cause"] = decision.no_decision.cause
    return attributes
