package check

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// Among many overrides, the one of a rule that applies at an instant is found: the first of those
// that were given.
func TestOverrideOfARule(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const rules = 100
	at := func(n int) time.Time { return time.UnixMilli(int64(1000 + n)) }
	d := SubjectData{Subject: "s"}
	for n := range 3 * rules {
		o := OverrideData{Rule: fmt.Sprint("rule-", random.IntN(rules)), Limit: limit.Limit{Limit: int64(n + 1)}}
		if random.IntN(2) == 0 {
			o.StartsAt = at(random.IntN(10))
		}
		if random.IntN(2) == 0 {
			o.ExpiresAt = at(random.IntN(10))
		}
		d.Overrides = append(d.Overrides, o)
	}
	e := newSubjectEntry(d, "")
	found := 0
	for n := range rules + 1 {
		for ms := range 10 {
			rule, now := fmt.Sprint("rule-", n), at(ms)
			var want int64
			for _, o := range d.Overrides {
				if o.Rule == rule && !o.StartsAt.After(now) && (o.ExpiresAt.IsZero() || now.Before(o.ExpiresAt)) {
					want = o.Limit.Limit
					break
				}
			}
			got := e.override(rule, now.UnixMilli())
			require.Equal(t, want > 0, got != nil)
			if got != nil {
				require.Equal(t, want, got.limit.Limit)
				found++
			}
		}
	}
	require.Greater(t, found, rules)
	require.Nil(t, (*subjectEntry)(nil).override("rule-1", 0))
}
