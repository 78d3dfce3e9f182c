package weirotel

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	weir "github.com/weir-dev/weir-go"
)

func TestHooks(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	reader := sdkmetric.NewManualReader()
	hooks, err := Hooks(WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))),
		WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	if err != nil {
		t.Fatal(err)
	}
	var traceparents []string
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		traceparents = append(traceparents, r.Header.Get("Traceparent"))
		w.Header().Set("Weir-Decision", "allow")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"allowed": true, "rule": "api", "rules": [], "degraded": false}`))
	}))
	defer server.Close()
	client, err := weir.New(server.URL, "weir_test_key", weir.WithHooks(hooks), weir.WithTimeout(1<<40))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	if d, err := client.Check(ctx, weir.Check{Subject: "secret_customer"}); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	status = http.StatusInternalServerError
	_, _ = client.Check(ctx, weir.Check{Subject: "secret_customer"})
	_, _ = client.Check(ctx, weir.Check{})
	server.Close()
	for client.BreakerState() == weir.BreakerClosed {
		_, _ = client.Peek(ctx, weir.Check{Subject: "secret_customer"})
	}

	ended := spans.Ended()
	if ended[0].Name() != "weir check" || !strings.Contains(traceparents[0], ended[0].SpanContext().TraceID().String()) ||
		!strings.Contains(traceparents[0], ended[0].SpanContext().SpanID().String()) {
		t.Errorf("span %s, traceparent %s", ended[0].Name(), traceparents[0])
	}
	if ended[2].Status().Description != "misuse" {
		t.Errorf("the span of a misuse has the status %+v", ended[2].Status())
	}
	for _, span := range ended {
		for _, a := range span.Attributes() {
			if strings.Contains(a.Value.Emit(), "secret_customer") {
				t.Errorf("a subject became the attribute %s", a.Key)
			}
		}
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &collected); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				name := m.Name
				for _, a := range point.Attributes.ToSlice() {
					name += " " + a.Value.Emit()
				}
				sums[name] += point.Value
			}
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				sums[m.Name] += int64(point.Count)
			}
		}
	}
	for name, want := range map[string]int64{
		"weir.client.checks allowed server": 1, "weir.client.checks server_error allowed fallback": 1, "weir.client.checks misuse": 1,
		"weir.client.breaker.openings": 1, "weir.client.duration": int64(len(ended)),
	} {
		if sums[name] != want {
			t.Errorf("%s is %d, want %d: %v", name, sums[name], want, sums)
		}
	}
}
