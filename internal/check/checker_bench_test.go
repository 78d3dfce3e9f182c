package check

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/peers"
)

// BenchmarkCheck measures a check inside the process: policy, keys, an engine in memory, the
// decision. It does not include HTTP and the round trip to Redis.
func BenchmarkCheck(b *testing.B) {
	for _, rules := range []int{1, 3, 10} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			var data PolicyData
			for i := range rules {
				data.Rules = append(data.Rules, minute(fmt.Sprintf("rule-%d", i), limit.MaxFixedLimit))
			}
			policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), data)
			if err != nil {
				b.Fatal(err)
			}
			c := benchChecker(b)
			reqs := []Request{{Subject: "user_42", Resource: "orders:create", Cost: 1}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Check(context.Background(), policy, reqs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCheckByCalendar measures a check by a fixed window, by a month in a zone, and by a month
// from the subject's cycle anchor. The bounds of windows are computed once and then need no
// allocation.
func BenchmarkCheckByCalendar(b *testing.B) {
	fixed := minute("quota", limit.MaxFixedLimit)
	fixed.Algorithm = limit.FixedWindow
	month := fixed
	month.Window, month.Zone = limit.Window{Calendar: limit.CalendarMonth, Duration: limit.Duration{Text: "month"}}, "Europe/Berlin"
	anchored := month
	anchored.Anchor = limit.AnchorSubject
	anchor := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name string
		rule limit.Rule
	}{{"window=1m", fixed}, {"window=month", month}, {"window=month,anchor=subject", anchored}} {
		b.Run(c.name, func(b *testing.B) {
			policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Rules: []limit.Rule{c.rule}})
			if err != nil {
				b.Fatal(err)
			}
			policy.AddSubject(SubjectData{Subject: "user_42", CycleAnchor: &anchor})
			checker := benchChecker(b)
			reqs := []Request{{Subject: "user_42", Resource: "orders:create", Cost: 1}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := checker.Check(context.Background(), policy, reqs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDenialInProcess measures repeated checks of a subject that is over its limit.
func BenchmarkDenialInProcess(b *testing.B) {
	policy, err := CompilePolicy(NewKeys([16]byte{1}), uuid.New(), PolicyData{Rules: []limit.Rule{minute("api", 1)}})
	if err != nil {
		b.Fatal(err)
	}
	c := benchChecker(b)
	reqs := []Request{{Subject: "user_42", Resource: "orders:create", Cost: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Check(context.Background(), policy, reqs); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPolicyGet measures how a check finds its tenant's policy.
func BenchmarkPolicyGet(b *testing.B) {
	tenant := uuid.New()
	p := NewPolicies(&fakeSource{data: map[limit.TenantID]PolicyData{tenant: {}}}, NewKeys([16]byte{1}),
		slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Get(context.Background(), tenant); err != nil {
			b.Fatal(err)
		}
	}
}

func benchChecker(b *testing.B) *Checker {
	registry := prometheus.NewRegistry()
	stack := engine.NewStack(engine.StackOptions{
		Shared: engine.NewMemory(engine.MemoryOptions{}), Local: engine.NewMemory(engine.MemoryOptions{}),
		Share: peers.New(1, nil, registry).Share, Metrics: engine.NewMetrics(registry),
	})
	b.Cleanup(stack.Close)
	return NewChecker(CheckerOptions{Keys: NewKeys([16]byte{1}), Engine: stack, Metrics: NewMetrics(registry)})
}
