package api

import (
	"fmt"
	"testing"

	"weir/internal/check"
	"weir/internal/limit"
)

// BenchmarkAnswer measures encoding: JSON and headers of one check.
func BenchmarkAnswer(b *testing.B) {
	for _, rules := range []int{1, 3, 10} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			d := check.Decision{Allowed: true, Subject: "user_42", Resource: "orders:create", Cost: 1, NowMS: 1_795_280_660_123}
			for i := range rules {
				d.Rules = append(d.Rules, check.RuleDecision{
					Rule: &limit.Rule{Slug: fmt.Sprintf("requests-%d", i), Algorithm: limit.SlidingWindowCounter}, Mode: limit.Enforce, Source: "rule",
					Allowed: true, Limit: 100_000_000, Quota: 100_000_000, WindowMS: 60_000, Remaining: 99_999_123, ResetAfterMS: 74_123, NextAfterMS: 14_123,
				})
			}
			var h headerWriter
			var out []byte
			b.ReportAllocs()
			for b.Loop() {
				out = appendDecision(out[:0], &d)
				h.build(bothStyles, &d)
			}
		})
	}
}
