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
