package weir

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-dev/weir-go/internal/scripted"
)

// All clients must pass the suite in ../suite. Its README describes the tables.
const suiteFolder = "../suite"

func readSuite(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(suiteFolder, name))
	must(t, err)
	if err := scripted.Strict(content, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func readFixtures(t *testing.T) map[string]fixture {
	t.Helper()
	fixtures, err := scripted.ReadFixtures(suiteFolder)
	must(t, err)
	return fixtures
}

type suiteOptions struct {
	URL          *string  `json:"url"`
	Key          *string  `json:"key"`
	TimeoutMS    *int64   `json:"timeout_ms"`
	OnFailure    *string  `json:"on_failure"`
	LocalShare   *float64 `json:"local_share"`
	Breaker      *bool    `json:"breaker"`
	DenialMemory *bool    `json:"denial_memory"`
	Batching     bool     `json:"batching"`
	Leases       bool     `json:"leases"`
}

func (o *suiteOptions) options() []Option {
	options := []Option{WithTimeout(5 * time.Second), WithConnectTimeout(5 * time.Second)}
	if o.TimeoutMS != nil {
		options = append(options, WithTimeout(time.Duration(*o.TimeoutMS)*time.Millisecond))
	}
	if o.OnFailure != nil {
		options = append(options, WithOnFailure(OnFailure(*o.OnFailure)))
	}
	if o.LocalShare != nil {
		options = append(options, WithLocalShare(*o.LocalShare))
	}
	if o.Breaker != nil && !*o.Breaker {
		options = append(options, WithoutBreaker())
	}
	if o.DenialMemory != nil && !*o.DenialMemory {
		options = append(options, WithoutDenialMemory())
	}
	if o.Batching {
		options = append(options, WithBatching())
	}
	if o.Leases {
		options = append(options, WithLeases())
	}
	return options
}

type suiteCase struct {
	Name      string       `json:"name"`
	Why       string       `json:"why"`
	Languages []string     `json:"languages"`
	Options   suiteOptions `json:"options"`
	Server    []action     `json:"server"`
	ServerUp  *bool        `json:"server_up"`
	Steps     []step       `json:"steps"`
}

type step struct {
	Call          string          `json:"call"`
	Args          json.RawMessage `json:"args"`
	Steps         []step          `json:"steps"` // of with_lease
	Lease         *leaseArgs      `json:"lease"`
	Repeat        int             `json:"repeat"`
	Expect        *expectation    `json:"expect"`
	Start         string          `json:"start"`
	Join          string          `json:"join"`
	Cancel        string          `json:"cancel"`
	AwaitRequests int             `json:"await_requests"`
	AwaitWaiting  int             `json:"await_waiting"`
	Release       bool            `json:"release"`
	Settle        bool            `json:"settle"`
	Inspect       bool            `json:"inspect"`
	Close         bool            `json:"close"`
	AdvanceMS     int64           `json:"advance_ms"`
	Server        string          `json:"server"`
}

type leaseArgs struct {
	Cost int64 `json:"cost"`
}

type expectation struct {
	entry
	Decisions     []entry         `json:"decisions"`
	Misuse        map[string]any  `json:"misuse"`
	Requests      *int            `json:"requests"`
	Leased        *int            `json:"leased"`
	Request       *requestPattern `json:"request"`
	RequestBefore *requestPattern `json:"request_before"`
	Breaker       string          `json:"breaker"`
	Warnings      *int            `json:"warnings"`
	SleptMS       *[]int64        `json:"slept_ms"`
}

// An entry is the expected result of one check.
type entry struct {
	Outcome           string         `json:"outcome"`
	Decision          map[string]any `json:"decision"`
	Cause             string         `json:"cause"`
	CauseStatus       *int           `json:"cause_status"`
	CauseCode         *string        `json:"cause_code"`
	CauseRetryAfterMS *int64         `json:"cause_retry_after_ms"`
}

type requestPattern struct {
	Method  string             `json:"method"`
	Path    string             `json:"path"`
	Headers map[string]*string `json:"headers"`
	Body    json.RawMessage    `json:"body"`
}

func TestSuite(t *testing.T) {
	fixtures := readFixtures(t)
	for _, file := range []string{"requests", "answers", "outcomes", "failures", "retries", "breaker", "memory", "local", "batch", "wait", "leases", "with_lease"} {
		var table struct {
			Cases []suiteCase `json:"cases"`
		}
		readSuite(t, file+".json", &table)
		if len(table.Cases) == 0 {
			t.Fatalf("%s.json has no cases", file)
		}
		for _, c := range table.Cases {
			if c.Languages != nil && !slices.Contains(c.Languages, "go") {
				continue
			}
			t.Run(file+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				newPlay(t, fixtures, c).run()
			})
		}
	}
}

// A play is a case that is being executed.
type play struct {
	t        *testing.T
	c        suiteCase
	server   *scriptedServer
	client   *Client
	clock    *fakeClock
	warnings *countingHandler
	started  map[string]*startedCall
	lease    *Lease
}

type startedCall struct {
	cancel context.CancelFunc
	done   chan struct{}
	result callResult
}

// A callResult is what a call returned.
type callResult struct {
	decisions []Decision
	err       error
	slept     []int64
}

func newPlay(t *testing.T, fixtures map[string]fixture, c suiteCase) *play {
	p := &play{t: t, c: c, clock: newFakeClock(), warnings: &countingHandler{}, started: map[string]*startedCall{}}
	p.server = newScripted(t, fixtures, c.Server, c.ServerUp == nil || *c.ServerUp)
	options := append(c.Options.options(), WithLogger(slog.New(p.warnings)), withClock(p.clock))
	client, err := New("http://"+p.server.Address, "weir_test_key", options...)
	must(t, err)
	p.client = client
	if client.leased != nil {
		client.leased.every = time.Hour // the cases inspect leases on the virtual clock
	}
	t.Cleanup(client.Close)
	return p
}

func (p *play) run() {
	for i, s := range p.c.Steps {
		p.step(fmt.Sprintf("step %d", i), s)
		if p.t.Failed() {
			return
		}
	}
	if n := p.server.Unmet(); n > 0 {
		p.t.Errorf("%d actions of the script met no request", n)
	}
}

func (p *play) step(name string, s step) {
	p.t.Helper()
	switch {
	case s.Start != "":
		ctx, cancel := context.WithCancel(context.Background())
		call := &startedCall{cancel: cancel, done: make(chan struct{})}
		p.started[s.Start] = call
		go func() {
			defer close(call.done)
			call.result = p.call(ctx, s.Call, s.Args)
		}()
	case s.Call == "with_lease":
		r := p.withLease(name, s)
		p.compare(name, s.Expect, &r)
	case s.Lease != nil:
		d, err := p.lease.Check(context.Background(), s.Lease.Cost)
		p.compare(name, s.Expect, &callResult{decisions: []Decision{d}, err: err})
	case s.Call != "":
		for i := range max(1, s.Repeat) {
			r := p.call(context.Background(), s.Call, s.Args)
			p.compare(fmt.Sprintf("%s, call %d", name, i), s.Expect, &r)
		}
	case s.Join != "":
		call := p.started[s.Join]
		select {
		case <-call.done:
		case <-time.After(patience):
			p.t.Fatalf("%s: %s does not end", name, s.Join)
		}
		call.cancel()
		p.compare(name, s.Expect, &call.result)
	case s.Cancel != "":
		p.started[s.Cancel].cancel()
	case s.AwaitRequests > 0:
		p.server.await(s.AwaitRequests)
	case s.AwaitWaiting > 0:
		p.awaitWaiting(s.AwaitWaiting)
	case s.Release:
		p.server.Release()
	case s.Settle:
		p.settle()
	case s.Inspect:
		p.client.leased.round(nil)
		p.settle()
	case s.Close:
		p.client.Close()
		if s.Expect != nil {
			p.compare(name, s.Expect, nil)
		}
	case s.AdvanceMS > 0:
		p.clock.advance(time.Duration(s.AdvanceMS) * time.Millisecond)
	case s.Server == "down":
		p.server.Down()
		p.client.transport.(*http.Transport).CloseIdleConnections()
	case s.Server == "up":
		p.server.up()
	case s.Expect != nil:
		p.compare(name, s.Expect, nil)
	default:
		p.t.Fatalf("%s: unknown step", name)
	}
}

func (p *play) withLease(name string, s step) callResult {
	var args struct {
		suiteCheck
		Units int64 `json:"units"`
	}
	must(p.t, scripted.Strict(s.Args, &args))
	err := p.client.WithLease(context.Background(), args.check(p.t), args.Units, func(l *Lease) error {
		p.lease = l
		for i, inner := range s.Steps {
			p.step(fmt.Sprintf("%s, step %d", name, i), inner)
		}
		return nil
	})
	return callResult{err: err}
}

// awaitWaiting polls, because the batcher does not report how many checks wait.
func (p *play) awaitWaiting(n int) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		p.client.batcher.mu.Lock()
		waiting := len(p.client.batcher.waiting)
		p.client.batcher.mu.Unlock()
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d of %d checks wait", waiting, n)
		}
	}
}

// settle polls until no request of leases is under way, because no caller waits for them.
func (p *play) settle() {
	p.t.Helper()
	l := p.client.leased
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		busy := len(l.queue) + len(l.places)
		for i := range l.shards {
			if sets := l.shards[i].Load(); sets != nil {
				for _, set := range *sets {
					if set.busy.Load() {
						busy++
					}
				}
			}
		}
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d requests of leases do not end", busy)
		}
	}
}

type suiteArgs struct {
	suiteCheck
	Traceparent string `json:"traceparent"`
	MaxWaitMS   *int64 `json:"max_wait_ms"`
	Checks      any    `json:"checks"`
}

type suiteCheck struct {
	Subject        any    `json:"subject"`
	Resource       any    `json:"resource"`
	Cost           int64  `json:"cost"`
	Plan           string `json:"plan"`
	Attributes     any    `json:"attributes"`
	IdempotencyKey any    `json:"idempotency_key"`
}

func (c *suiteCheck) check(t *testing.T) Check {
	check := Check{Subject: text(t, c.Subject), Resource: text(t, c.Resource), Cost: c.Cost, Plan: c.Plan, IdempotencyKey: text(t, c.IdempotencyKey)}
	if c.Attributes != nil {
		check.Attributes = map[string]string{}
		for name, value := range expand(t, c.Attributes).(map[string]any) {
			check.Attributes[name] = value.(string)
		}
	}
	return check
}

func text(t *testing.T, v any) string {
	if v == nil {
		return ""
	}
	return expand(t, v).(string)
}

// expand replaces the macros in a value.
func expand(t *testing.T, v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return v
	}
	switch {
	case object["$repeat"] != nil:
		args := object["$repeat"].([]any)
		return strings.Repeat(args[0].(string), int(args[1].(float64)))
	case object["$bytes"] != nil:
		b, err := hex.DecodeString(object["$bytes"].(string))
		must(t, err)
		return string(b)
	case object["$attributes"] != nil:
		attributes := map[string]any{}
		for i := range int(object["$attributes"].(float64)) {
			attributes[fmt.Sprintf("a%d", i+1)] = "v"
		}
		return attributes
	case object["$checks"] != nil:
		return slices.Repeat([]any{map[string]any{"subject": "user_42"}}, int(object["$checks"].(float64)))
	}
	expanded := map[string]any{}
	for name, value := range object {
		expanded[name] = expand(t, value)
	}
	return expanded
}

func (p *play) call(ctx context.Context, name string, raw json.RawMessage) callResult {
	var args suiteArgs
	if err := scripted.Strict(raw, &args); err != nil {
		p.t.Errorf("args: %v", err)
		return callResult{}
	}
	ctx = ContextWithTraceparent(ctx, args.Traceparent)
	slept := p.clock.slept()
	var r callResult
	var d Decision
	switch name {
	case "check":
		d, r.err = p.client.Check(ctx, args.check(p.t))
	case "peek":
		d, r.err = p.client.Peek(ctx, args.check(p.t))
	case "explain":
		d, r.err = p.client.Explain(ctx, args.check(p.t))
	case "wait":
		var deadline time.Time
		if args.MaxWaitMS != nil {
			deadline = p.clock.Now().Add(time.Duration(*args.MaxWaitMS) * time.Millisecond)
		}
		d, r.err = p.client.waitUntil(ctx, args.check(p.t), deadline, args.MaxWaitMS != nil)
	case "batch":
		var checks []Check
		for _, entry := range expand(p.t, args.Checks).([]any) {
			encoded, err := json.Marshal(entry)
			must(p.t, err)
			var check suiteCheck
			must(p.t, scripted.Strict(encoded, &check))
			checks = append(checks, check.check(p.t))
		}
		r.decisions, r.err = p.client.CheckBatch(ctx, checks)
	default:
		p.t.Errorf("unknown call %q", name)
	}
	if name != "batch" {
		r.decisions = []Decision{d}
	}
	r.slept = p.clock.slept()[len(slept):]
	return r
}

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

func TestSuiteOptions(t *testing.T) {
	var table struct {
		Defaults struct {
			TimeoutMS          int64   `json:"timeout_ms"`
			ConnectTimeoutMS   int64   `json:"connect_timeout_ms"`
			OnFailure          string  `json:"on_failure"`
			LocalShare         float64 `json:"local_share"`
			Breaker            bool    `json:"breaker"`
			DenialMemory       bool    `json:"denial_memory"`
			Batching           bool    `json:"batching"`
			Leases             bool    `json:"leases"`
			MaxIdleConnections int     `json:"max_idle_connections"`
		} `json:"defaults"`
		Limits  map[string]float64 `json:"limits"`
		Refused []struct {
			Name    string       `json:"name"`
			Options suiteOptions `json:"options"`
			Field   string       `json:"field"`
		} `json:"refused"`
	}
	readSuite(t, "options.json", &table)
	client, err := New("http://localhost:8080", "weir_test_key")
	must(t, err)
	defer client.Close()
	d, transport := table.Defaults, client.transport.(*http.Transport)
	for name, equal := range map[string]bool{
		"timeout_ms": client.timeout.Milliseconds() == d.TimeoutMS, "connect_timeout_ms": client.connectTimeout.Milliseconds() == d.ConnectTimeoutMS,
		"on_failure": string(client.onFailure) == d.OnFailure, "local_share": client.localShare == d.LocalShare, "breaker": (client.brk != nil) == d.Breaker,
		"denial_memory": (client.memory != nil) == d.DenialMemory, "batching": (client.batcher != nil) == d.Batching,
		"leases":               (client.leased != nil) == d.Leases,
		"max_idle_connections": transport.MaxIdleConnsPerHost == d.MaxIdleConnections && transport.MaxIdleConns == d.MaxIdleConnections,
	} {
		if !equal {
			t.Errorf("%s has another default", name)
		}
	}
	constants := map[string]float64{
		"breaker_window_ms": float64(breakerWindow.Milliseconds()), "breaker_min_calls": breakerMinCalls, "breaker_failure_ratio": 0.5,
		"breaker_refused_in_a_row": breakerRefusedInARow, "breaker_probe_interval_ms": float64(breakerProbeInterval.Milliseconds()),
		"memory_max_ms": float64(memoryTime.Milliseconds()), "memory_max_entries": memoryEntries, "batch_max_checks": maxBatch,
		"answer_max_bytes": maxAnswer, "batch_answer_max_bytes": maxBatchAnswer,
	}
	if !reflect.DeepEqual(table.Limits, constants) {
		t.Errorf("limits are %v, want %v", constants, table.Limits)
	}
	for _, c := range table.Refused {
		url, key := "http://localhost:8080", "weir_test_key"
		if c.Options.URL != nil {
			url = *c.Options.URL
		}
		if c.Options.Key != nil {
			key = *c.Options.Key
		}
		_, err := New(url, key, c.Options.options()...)
		var misuse *MisuseError
		if !errors.As(err, &misuse) || misuse.Field != c.Field || misuse.Fix == "" {
			t.Errorf("%s: %v, want a misuse of %s", c.Name, err, c.Field)
		}
	}
}

func TestSuiteHeaders(t *testing.T) {
	var table struct {
		Cases []struct {
			Name     string            `json:"name"`
			Existing map[string]string `json:"existing"`
			Decision map[string]string `json:"decision"`
			Expect   map[string]string `json:"expect"`
		} `json:"cases"`
	}
	readSuite(t, "headers.json", &table)
	header := func(m map[string]string) http.Header {
		h := http.Header{}
		for name, value := range m {
			h.Set(name, value)
		}
		return h
	}
	for _, c := range table.Cases {
		d := Decision{Headers: headersOf(header(c.Decision))}
		got := header(c.Existing)
		d.CopyHeaders(got)
		if want := header(c.Expect); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", c.Name, got, want)
		}
	}
}

func TestSuiteHash(t *testing.T) {
	var table struct {
		Cases []struct {
			Value  any    `json:"value"`
			Secret string `json:"secret"`
			Expect string `json:"expect"`
		} `json:"cases"`
	}
	readSuite(t, "hash.json", &table)
	for _, c := range table.Cases {
		value := text(t, c.Value)
		got := HashSubject(value)
		if c.Secret != "" {
			got = HashSubjectWith(c.Secret, value)
		}
		if got != c.Expect {
			t.Errorf("%v: %s, want %s", c.Value, got, c.Expect)
		}
		if c.Expect != "" && nameProblem(got) != "" {
			t.Errorf("%s is no subject", got)
		}
	}
}

// A fakeClock advances only when a test moves it, and by sleeping.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	sleeps []int64
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.UnixMilli(1_800_000_000_000)} }

func withClock(c clock) Option { return func(s *settings) { s.clock = c } }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.sleeps = append(c.sleeps, d.Milliseconds())
	return nil
}

func (c *fakeClock) slept() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sleeps)
}

// A countingHandler counts log records by level.
type countingHandler struct {
	mu     sync.Mutex
	levels []slog.Level
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.levels = append(h.levels, r.Level)
	return nil
}

func (h *countingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *countingHandler) WithGroup(string) slog.Handler      { return h }

func (h *countingHandler) count(level slog.Level) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, l := range h.levels {
		if l == level {
			n++
		}
	}
	return n
}
