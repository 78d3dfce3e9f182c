package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"sort"

	"weir/internal/engine"
	"weir/internal/limit"
)

// File is a file of test vectors: cases of requests with the exact answer to each, or the bounds of
// calendar windows.
type File struct {
	Schema int      `json:"schema"` // 1 if there are cases
	Suite  string   `json:"suite"`
	Cases  []Case   `json:"cases"`
	Bounds []Bounds `json:"bounds"`
}

// Case starts without state and executes its steps in order, each request against all rules.
type Case struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
	Steps []Step `json:"steps"`
}

// Rule is a rule in the files. Burst 0 means that the burst is the limit.
type Rule struct {
	Name        string `json:"name"`
	Algorithm   string `json:"algorithm"`
	Limit       int64  `json:"limit"`
	WindowMS    int64  `json:"window_ms"`
	Calendar    string `json:"calendar"` // for fixed_window, instead of WindowMS: day, week, month
	Burst       int64  `json:"burst"`
	PrecisionMS int64  `json:"precision_ms"`
}

// Step is a request at an instant, or a change of the rules.
type Step struct {
	TimeMS   int64             `json:"t_ms"`
	Cost     int64             `json:"cost"`
	Keys     map[string]string `json:"keys"` // rule name to subject; "k" where not named
	Expect   *Answer           `json:"expect"`
	SetRules []Rule            `json:"set_rules"`
}

// Answer is the combined answer of all rules, in the form of the files.
type Answer struct {
	Allowed      bool         `json:"allowed"`
	Remaining    int64        `json:"remaining"`      // the smallest
	RetryAfterMS *int64       `json:"retry_after_ms"` // the largest; null: never
	ResetMS      int64        `json:"reset_ms"`       // an instant, the latest
	DelayMS      *int64       `json:"delay_ms"`       // the longest of queue rules, null if denied
	Error        string       `json:"error"`          // "cost_exceeds_limit"
	Rules        []RuleAnswer `json:"rules"`          // if there are several
}

// RuleAnswer is the answer of one of several rules.
type RuleAnswer struct {
	Name         string `json:"name"`
	Allowed      bool   `json:"allowed"`
	Remaining    int64  `json:"remaining"`
	RetryAfterMS *int64 `json:"retry_after_ms"`
	ResetMS      int64  `json:"reset_ms"`
}

// Failure is a field of an answer that differs from the expected value.
type Failure struct {
	Case      string
	Step      int // from 0, including changes of rules
	Field     string
	Want, Got string
}

func (f Failure) String() string {
	return fmt.Sprintf("case %s, step %d, %s: expected %s, got %s", f.Case, f.Step, f.Field, f.Want, f.Got)
}

// ReadFile reads one file of vectors.
func ReadFile(fsys fs.FS, name string) (File, error) {
	var file File
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return file, err
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return file, fmt.Errorf("read %s: %w", name, err)
	}
	if len(file.Cases) > 0 && file.Schema == 1 || len(file.Cases) == 0 && len(file.Bounds) > 0 {
		return file, nil
	}
	return file, fmt.Errorf("read %s: must hold test vectors: cases of schema 1, or bounds", name)
}

// FileNames returns the JSON files under fsys, in all its directories, sorted.
func FileNames(fsys fs.FS) ([]string, error) {
	var names []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path.Ext(name) == ".json" {
			names = append(names, name)
		}
		return err
	})
	sort.Strings(names)
	return names, err
}

// RunCase sends a case to an engine and returns the differences. Keys begin with prefix, which must
// be new to the engine.
func RunCase(ctx context.Context, eng engine.Engine, prefix string, c Case) []Failure {
	var calls []*engine.Call
	var rules [][]Rule // of each call
	var steps []int    // of each call
	var used []engine.Counter
	current := c.Rules
	for i, step := range c.Steps {
		if step.Expect == nil {
			current = step.SetRules
			continue
		}
		call := &engine.Call{Cost: step.Cost, NowMS: step.TimeMS}
		for _, rule := range current {
			counter, err := rule.counter(prefix, step.Keys, step.TimeMS)
			if err != nil {
				return []Failure{{Case: c.Name, Step: i, Field: "rules", Want: "a known rule", Got: err.Error()}}
			}
			used = append(used, counter)
			call.Counters = append(call.Counters, counter)
		}
		calls, rules, steps = append(calls, call), append(rules, current), append(steps, i)
	}
	eng.Evaluate(ctx, calls...)
	var failures []Failure
	for i, call := range calls {
		for _, f := range compare(call, rules[i], c.Steps[steps[i]].Expect) {
			f.Case, f.Step = c.Name, steps[i]
			failures = append(failures, f)
		}
	}
	if err := eng.Reset(ctx, used...); err != nil {
		failures = append(failures, Failure{Case: c.Name, Field: "reset", Want: "no error", Got: err.Error()})
	}
	return failures
}

func (r Rule) counter(prefix string, subjects map[string]string, atMS int64) (engine.Counter, error) {
	algorithm, err := limit.ParseAlgorithm(r.Algorithm)
	if err != nil {
		return engine.Counter{}, fmt.Errorf("algorithm %q %w", r.Algorithm, err)
	}
	n := limit.Numbers{Algorithm: algorithm, Limit: r.Limit, WindowMS: r.WindowMS, PrecisionMS: r.PrecisionMS}
	if r.Calendar != "" {
		if n.Calendar, err = limit.ParseCalendar(r.Calendar); err != nil {
			return engine.Counter{}, fmt.Errorf("calendar %q %w", r.Calendar, err)
		}
		windows, err := limit.NewCalendarWindows(n.Calendar, nil)
		if err != nil {
			return engine.Counter{}, err
		}
		n.Bounds = windows.Around(atMS)
	}
	if algorithm.Bucket() {
		if n.Burst = r.Burst; n.Burst == 0 {
			n.Burst = r.Limit
		}
	}
	subject, named := subjects[r.Name]
	if !named {
		subject = "k"
	}
	key := fmt.Sprintf("%s%q:%q:%s:%d%s:%d", prefix, r.Name, subject, r.Algorithm, r.WindowMS, r.Calendar, r.PrecisionMS)
	return engine.Counter{Key: key, Numbers: n}, nil
}

func compare(call *engine.Call, rules []Rule, want *Answer) []Failure {
	if call.Err != nil {
		return []Failure{{Field: "error", Want: "an answer", Got: call.Err.Error()}}
	}
	var failures []Failure
	field := func(name string, want, got any) {
		if want != got {
			failures = append(failures, Failure{Field: name, Want: fmt.Sprint(want), Got: fmt.Sprint(got)})
		}
	}
	got := combine(call, rules)
	field("allowed", want.Allowed, got.Allowed)
	field("remaining", want.Remaining, got.Remaining)
	field("retry_after_ms", number(want.RetryAfterMS), number(got.RetryAfterMS))
	field("reset_ms", want.ResetMS, got.ResetMS)
	field("delay_ms", number(want.DelayMS), number(got.DelayMS))
	field("error", want.Error, got.Error)
	if want.Rules == nil {
		return failures
	}
	field("rules", len(want.Rules), len(got.Rules))
	for i := range min(len(want.Rules), len(got.Rules)) {
		w, g := want.Rules[i], got.Rules[i]
		at := fmt.Sprintf("rules[%d].", i)
		field(at+"name", w.Name, g.Name)
		field(at+"allowed", w.Allowed, g.Allowed)
		field(at+"remaining", w.Remaining, g.Remaining)
		field(at+"retry_after_ms", number(w.RetryAfterMS), number(g.RetryAfterMS))
		field(at+"reset_ms", w.ResetMS, g.ResetMS)
	}
	return failures
}

func number(n *int64) string {
	if n == nil {
		return "null"
	}
	return fmt.Sprint(*n)
}

// combine returns the combined answer of several rules, as defined for the files.
func combine(call *engine.Call, rules []Rule) Answer {
	out := call.Outcome
	all := Answer{Allowed: out.Allowed, ResetMS: out.NowMS, RetryAfterMS: new(int64)}
	for i, v := range out.Verdicts {
		one := RuleAnswer{Name: rules[i].Name, Allowed: v.Allowed, Remaining: v.Remaining, ResetMS: v.ResetMS}
		if v.RetryAfterMS != limit.NeverMS {
			one.RetryAfterMS = &v.RetryAfterMS
		}
		all.Rules = append(all.Rules, one)
		if i == 0 || v.Remaining < all.Remaining {
			all.Remaining = v.Remaining
		}
		all.ResetMS = max(all.ResetMS, v.ResetMS)
		switch {
		case v.CostExceeds:
			all.Error, all.RetryAfterMS = "cost_exceeds_limit", nil
		case all.RetryAfterMS != nil && v.RetryAfterMS > *all.RetryAfterMS:
			all.RetryAfterMS = &v.RetryAfterMS
		}
		if call.Counters[i].Numbers.Algorithm == limit.LeakyBucketQueue && out.Allowed &&
			(all.DelayMS == nil || v.DelayMS > *all.DelayMS) {
			all.DelayMS = &v.DelayMS
		}
	}
	return all
}
