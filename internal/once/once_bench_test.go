package once

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRecord measures what a first request and a repeat do to a record, without Redis.
func BenchmarkRecord(b *testing.B) {
	r := New(Options{})
	for name, answer := range map[string]string{
		"check": strings.Repeat("x", 400),
		"batch": strings.Repeat(`{"allowed":true,"rule":"per-subject"},`, 1300),
	} {
		b.Run(name, func(b *testing.B) {
			claim := &Claim{name: r.name(tenant, "order-7")}
			b.ReportAllocs()
			for b.Loop() {
				claim.print = r.keyed(claim.name, print1)
				claim.pending = pendingRecord(claim.print)
				_, got, err := r.readRecord(claim.name, r.answerRecord(claim, []byte(answer)))
				if err != nil {
					b.Fatal(err)
				}
				require.Len(b, got, len(answer))
			}
		})
	}
}
