package once

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
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
				got, err := r.readRecord(b.Context(), claim, r.answerRecord(claim, []byte(answer)))
				if err != nil {
					b.Fatal(err)
				}
				require.Len(b, got, len(answer))
			}
		})
	}
}

// BenchmarkBegin measures a first request with Redis, at once by many callers.
func BenchmarkBegin(b *testing.B) {
	r := New(Options{Client: testenv.RedisClient(b), Timeout: testenv.RedisTimeout})
	answer := []byte(strings.Repeat("x", 400))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			claim, _, err := r.Begin(ctx, tenant, uuid.NewString(), print1, 0)
			if err != nil {
				b.Error(err)
				return
			}
			r.Finish(claim, answer)
		}
	})
}
