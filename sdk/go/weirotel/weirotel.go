// Package weirotel connects a Weir client to OpenTelemetry: a span and three metrics for each call,
// and propagation of the trace to the server.
//
//	hooks, err := weirotel.Hooks()
//	client, err := weir.New(url, key, weir.WithHooks(hooks))
//
// Neither subjects nor keys become attributes: they are personal, and there are too many of them.
package weirotel

import (
	"context"
	"errors"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	weir "github.com/weir-dev/weir-go"
)

const scope = "github.com/weir-dev/weir-go/weirotel"

type settings struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	propagator propagation.TextMapPropagator
}

// An Option changes where telemetry goes.
type Option func(*settings)

// WithTracerProvider sets where spans go. The default is the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(s *settings) { s.tracers = p } }

// WithMeterProvider sets where metrics go. The default is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(s *settings) { s.meters = p } }

// Hooks returns hooks for weir.WithHooks. Metrics: weir.client.duration (seconds, by call and
// outcome), weir.client.checks (by outcome, source and cause) and weir.client.breaker.openings.
func Hooks(options ...Option) (weir.Hooks, error) {
	s := settings{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(), propagator: propagation.TraceContext{}}
	for _, option := range options {
		option(&s)
	}
	meter := s.meters.Meter(scope, metric.WithInstrumentationVersion(weir.Version))
	duration, errDuration := meter.Float64Histogram("weir.client.duration", metric.WithUnit("s"), metric.WithDescription("Duration of calls"),
		metric.WithExplicitBucketBoundaries(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1))
	checks, errChecks := meter.Int64Counter("weir.client.checks", metric.WithUnit("{check}"), metric.WithDescription("Checks by outcome"))
	openings, errOpenings := meter.Int64Counter("weir.client.breaker.openings", metric.WithUnit("{opening}"), metric.WithDescription("Times that the circuit breaker has opened"))
	if err := errors.Join(errDuration, errChecks, errOpenings); err != nil {
		return weir.Hooks{}, err
	}
	tracer := s.tracers.Tracer(scope, trace.WithInstrumentationVersion(weir.Version))
	return weir.Hooks{
		Begin: func(ctx context.Context, call weir.Call) (context.Context, func(weir.Result)) {
			ctx, span := tracer.Start(ctx, "weir "+call.Name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.Int("weir.checks", len(call.Checks))))
			return ctx, func(r weir.Result) {
				outcome := outcomeOf(r)
				duration.Record(ctx, r.Duration.Seconds(), metric.WithAttributes(attribute.String("weir.call", call.Name), attribute.String("weir.outcome", outcome)))
				if r.Err != nil {
					checks.Add(ctx, int64(len(call.Checks)), metric.WithAttributes(attribute.String("weir.outcome", outcome)))
					span.RecordError(r.Err)
					span.SetStatus(codes.Error, outcome)
				}
				for i := range r.Decisions {
					checks.Add(ctx, 1, metric.WithAttributes(checkAttributes(&r.Decisions[i])...))
				}
				if len(r.Decisions) == 1 {
					span.SetAttributes(append(checkAttributes(&r.Decisions[0]), attribute.String("weir.rule", r.Decisions[0].Rule))...)
				}
				span.End()
			}
		},
		Inject: func(ctx context.Context, header http.Header) {
			if trace.SpanContextFromContext(ctx).IsValid() {
				s.propagator.Inject(ctx, propagation.HeaderCarrier(header))
			}
		},
		BreakerChanged: func(from, to weir.BreakerState) {
			if from == weir.BreakerClosed && to == weir.BreakerOpen {
				openings.Add(context.Background(), 1)
			}
		},
	}, nil
}

// outcomeOf returns the outcome of a call. A call of several checks without an error is a decision
// unless none of them was decided.
func outcomeOf(r weir.Result) string {
	var misuse *weir.MisuseError
	switch {
	case errors.As(r.Err, &misuse):
		return "misuse"
	case r.Err != nil:
		return "cancelled"
	}
	for i := range r.Decisions {
		if r.Decisions[i].NoDecision == nil {
			return "decision"
		}
	}
	return "no_decision"
}

func checkAttributes(d *weir.Decision) []attribute.KeyValue {
	outcome := "denied"
	if d.Allowed {
		outcome = "allowed"
	}
	attributes := []attribute.KeyValue{attribute.String("weir.outcome", outcome), attribute.String("weir.source", string(d.Source))}
	if d.NoDecision != nil {
		attributes = append(attributes, attribute.String("weir.cause", string(d.NoDecision.Cause)))
	}
	return attributes
}
