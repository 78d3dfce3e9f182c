package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
)

// compare compares what a call returned and what is visible from outside. r is nil if no call was
// made.
func (p *play) compare(name string, e *expectation, r *callResult) {
	p.t.Helper()
	if e == nil {
		return
	}
	if r != nil {
		p.compareResult(name, e, r)
	}
	if e.Requests != nil && p.server.Count() != *e.Requests {
		p.t.Errorf("%s: %d requests, want %d", name, p.server.Count(), *e.Requests)
	}
	if e.Leased != nil && p.client.leased.count.Load() != int64(*e.Leased) {
		p.t.Errorf("%s: %d kinds of checks are leased, want %d", name, p.client.leased.count.Load(), *e.Leased)
	}
	p.compareRequest(name, e.Request, 0)
	p.compareRequest(name, e.RequestBefore, 1)
	if e.Breaker != "" && string(p.client.BreakerState()) != e.Breaker {
		p.t.Errorf("%s: the breaker is %s, want %s", name, p.client.BreakerState(), e.Breaker)
	}
	if e.Warnings != nil && p.warnings.count(slog.LevelWarn) != *e.Warnings {
		p.t.Errorf("%s: %d warnings, want %d", name, p.warnings.count(slog.LevelWarn), *e.Warnings)
	}
}

func (p *play) compareResult(name string, e *expectation, r *callResult) {
	p.t.Helper()
	if e.SleptMS != nil && !slices.Equal(*e.SleptMS, r.slept) {
		p.t.Errorf("%s: slept %v ms, want %v", name, r.slept, *e.SleptMS)
	}
	if e.Decisions != nil {
		must(p.t, r.err)
		if len(r.decisions) != len(e.Decisions) {
			p.t.Fatalf("%s: %d decisions, want %d", name, len(r.decisions), len(e.Decisions))
		}
		for i := range e.Decisions {
			compareEntry(p.t, fmt.Sprintf("%s, check %d", name, i), &e.Decisions[i], &r.decisions[i], nil)
		}
		return
	}
	var misuse *MisuseError
	if errors.As(r.err, &misuse) && e.Misuse != nil {
		compareMisuse(p.t, name, e.Misuse, misuse)
	} else if e.Misuse != nil {
		p.t.Errorf("%s: no misuse: %v", name, r.err)
	}
	var d *Decision
	if r.err == nil {
		d = &r.decisions[0]
	} else if !reflect.DeepEqual(r.decisions, []Decision{{}}) && r.decisions != nil {
		p.t.Errorf("%s: a decision beside the error %v", name, r.err)
	}
	compareEntry(p.t, name, &e.entry, d, r.err)
}

func outcomeOf(d *Decision, err error) string {
	var misuse *MisuseError
	switch {
	case errors.As(err, &misuse):
		return "misuse"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case err != nil:
		return "error"
	case d.NoDecision != nil && d.Source == SourceFallback:
		return "no_decision"
	case d.NoDecision == nil && d.Source != SourceFallback:
		return "decision"
	}
	return "contradiction"
}

func compareEntry(t *testing.T, name string, e *entry, d *Decision, err error) {
	t.Helper()
	if outcome := outcomeOf(d, err); e.Outcome != "" && outcome != e.Outcome {
		t.Fatalf("%s: %s, want %s (%+v, %v)", name, outcome, e.Outcome, d, err)
	}
	if e.Decision != nil {
		if d == nil {
			t.Fatalf("%s: no decision: %v", name, err)
		}
		subset(t, name, e.Decision, decisionFields(t, d))
	}
	if e.Cause == "" && e.CauseStatus == nil && e.CauseCode == nil && e.CauseRetryAfterMS == nil {
		return
	}
	if d == nil || d.NoDecision == nil {
		t.Fatalf("%s: want the cause %s", name, e.Cause)
	}
	n := d.NoDecision
	if e.Cause != "" && string(n.Cause) != e.Cause {
		t.Errorf("%s: %v, want the cause %s", name, n, e.Cause)
	}
	if e.CauseStatus != nil && n.Status != *e.CauseStatus || e.CauseCode != nil && n.Code != *e.CauseCode {
		t.Errorf("%s: status %d and code %q of the cause", name, n.Status, n.Code)
	}
	if e.CauseRetryAfterMS != nil && n.RetryAfterMS != N(*e.CauseRetryAfterMS) {
		t.Errorf("%s: retry after %v ms", name, n.RetryAfterMS)
	}
}

func compareMisuse(t *testing.T, name string, want map[string]any, m *MisuseError) {
	t.Helper()
	got := map[string]any{"code": m.Code, "field": m.Field, "fix": m.Fix, "detail": m.Detail, "request_id": m.RequestID, "status": nil}
	if m.Status != 0 {
		got["status"] = float64(m.Status)
	}
	subset(t, name+", misuse", want, got)
}

// decisionFields returns the fields of a decision by their names in the API.
func decisionFields(t *testing.T, d *Decision) map[string]any {
	t.Helper()
	rules := make([]any, len(d.Rules))
	for i := range d.Rules {
		rules[i] = asMap(t, d.Rules[i])
	}
	fields := map[string]any{
		"allowed": d.Allowed, "source": string(d.Source), "subject": d.Subject, "resource": d.Resource, "cost": float64(d.Cost),
		"plan": orNil(d.Plan), "rule": orNil(d.Rule), "limit": numberOrNil(d.Limit), "remaining": numberOrNil(d.Remaining),
		"retry_after_ms": numberOrNil(d.RetryAfterMS), "reset_after_ms": numberOrNil(d.ResetAfterMS), "delay_ms": numberOrNil(d.DelayMS),
		"rules": rules, "degraded": d.Degraded, "warning": d.Warning, "overage": d.Overage, "replayed": d.Replayed, "error": nil,
		"headers": map[string]any{
			"RateLimit": orNil(d.Headers.RateLimit), "RateLimit-Policy": orNil(d.Headers.RateLimitPolicy), "Retry-After": orNil(d.Headers.RetryAfter),
			"X-RateLimit-Limit": orNil(d.Headers.Limit), "X-RateLimit-Remaining": orNil(d.Headers.Remaining), "X-RateLimit-Reset": orNil(d.Headers.Reset)},
	}
	skipped := make([]any, len(d.Skipped))
	for i := range d.Skipped {
		skipped[i] = asMap(t, d.Skipped[i])
	}
	fields["skipped"] = skipped
	if d.Denial != nil {
		fields["error"] = asMap(t, d.Denial)
	}
	return fields
}

func asMap(t *testing.T, v any) map[string]any {
	t.Helper()
	encoded, err := json.Marshal(v)
	must(t, err)
	var m map[string]any
	must(t, json.Unmarshal(encoded, &m))
	return m
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func numberOrNil(n Number) any {
	if !n.Known {
		return nil
	}
	return float64(n.Value)
}

// subset compares the fields of want.
func subset(t *testing.T, path string, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			t.Errorf("%s is %v, want an object", path, got)
			return
		}
		for name, value := range want {
			subset(t, path+"."+name, value, object[name])
		}
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			t.Errorf("%s is %v, want %v", path, got, want)
			return
		}
		for i := range want {
			subset(t, fmt.Sprintf("%s[%d]", path, i), want[i], list[i])
		}
	default:
		if !reflect.DeepEqual(want, got) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

func (p *play) compareRequest(name string, want *requestPattern, back int) {
	p.t.Helper()
	if want == nil {
		return
	}
	got, ok := p.server.FromLatest(back)
	if !ok {
		p.t.Fatalf("%s: no request", name)
	}
	want.compare(p.t, name, got)
}

func (want *requestPattern) compare(t *testing.T, name string, got request) {
	t.Helper()
	if want.Method != "" && got.Method != want.Method || want.Path != "" && got.Path != want.Path {
		t.Errorf("%s: %s %s, want %s %s", name, got.Method, got.Path, want.Method, want.Path)
	}
	for header, value := range want.Headers {
		values := got.Header.Values(header)
		if value == nil && len(values) > 0 || value != nil && (len(values) != 1 || values[0] != *value) {
			t.Errorf("%s: header %s is %q", name, header, values)
		}
	}
	if want.Body == nil {
		return
	}
	var wantBody, gotBody any
	must(t, json.Unmarshal(want.Body, &wantBody))
	must(t, json.Unmarshal(got.Body, &gotBody))
	if wantBody, gotBody = filled(t, wantBody), filled(t, gotBody); !reflect.DeepEqual(wantBody, gotBody) {
		t.Errorf("%s: the body is %v, want %v", name, gotBody, wantBody)
	}
}

// filled fills in the defaults of a check, or of the checks of a batch.
func filled(t *testing.T, body any) any {
	object := expand(t, body).(map[string]any)
	if checks, ok := object["checks"].([]any); ok {
		for i := range checks {
			checks[i] = filled(t, checks[i])
		}
		return object
	}
	for name, value := range map[string]any{"resource": "default", "cost": 1.0, "attributes": map[string]any{}, "dry_run": false, "explain": false} {
		if _, set := object[name]; !set {
			object[name] = value
		}
	}
	return object
}
