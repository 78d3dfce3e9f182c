package tenants_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// answersLong returns a request that changes something and has a long answer.
func answersLong(do func(ctx context.Context) error) serving {
	return func(ctx context.Context) (tenants.Answer, error) {
		answer, err := answers(200, do)(ctx)
		answer.Body = []byte(strings.Repeat("x", 100_000))
		return answer, err
	}
}

// Long answers that are kept for repeats use up the bytes of the day, and the next change is
// refused before it is made. What removes access is possible in any case, and others are not
// affected.
func TestStoredAnswersOfADay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return at }, AuditDay: 1_000_000})
	s, ctx := d.Store, t.Context()
	_, key := d.Tenant("tenant-a")
	_, otherKey := d.Tenant("tenant-b")
	a, other := d.Actor(key), d.Actor(otherKey)
	keys := 0
	send := func(by tenants.Actor, serve serving) error {
		keys++
		return second(s.Idempotent(ctx, by, fmt.Sprint("key-", keys), [32]byte{1}, serve))
	}
	create := func(by tenants.Actor, slug string) serving {
		return answersLong(func(ctx context.Context) error { return second(s.CreateRule(ctx, by, rule(slug))) })
	}
	var refused error
	made := 0
	for ; refused == nil && made < 30; made++ {
		refused = send(a, create(a, fmt.Sprint("rule-", made)))
	}
	var often *tenants.TooOftenError
	require.ErrorAs(t, refused, &often)
	require.Equal(t, time.Hour, often.RetryAfter)
	require.Less(t, made, 13)
	_, err := s.RuleBySlug(ctx, a, fmt.Sprint("rule-", made-1))
	require.ErrorIs(t, err, tenants.ErrNotFound)

	// An answer to a request that changes nothing is given, and kept only if it is short.
	for _, test := range []struct {
		key   string
		serve serving
		kept  bool
	}{{"long", answersLong(nil), false}, {"short", answers(200, nil), true}} {
		for i := range 2 {
			replay, err := s.Idempotent(ctx, a, test.key, [32]byte{1}, test.serve)
			require.NoError(t, err)
			require.Equal(t, i == 1 && test.kept, replay != nil, test.key)
		}
	}
	require.NoError(t, send(a, answers(200, func(ctx context.Context) error { return s.DeleteRule(ctx, a, "rule-0", tenants.Match{}) })))
	require.NoError(t, send(other, create(other, "r")))
	require.True(t, trailIsIntact(t, s, a).Complete)

	at = at.Add(time.Hour)
	require.NoError(t, send(a, create(a, "tomorrow")))
}
