package check

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/peers"
)

// BenchmarkCheck is the road of a check inside the process: policy, keys, an engine in memory,
// the decision. What it does not hold is HTTP and the round trip to Redis.
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

// BenchmarkDenialInProcess is what a subject that hammers at a closed door costs.
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

// BenchmarkPolicyGet is what every check pays to find its tenant's policy.
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
		Share: peers.New(1, registry).Share, Metrics: engine.NewMetrics(registry),
	})
	b.Cleanup(stack.Close)
	return NewChecker(CheckerOptions{Keys: NewKeys([16]byte{1}), Engine: stack, Metrics: NewMetrics(registry)})
}
