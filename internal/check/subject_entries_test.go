package check

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

// occupied computes what the table of subjects takes, from what it has.
func (s *subjects) occupied() int {
	t := s.table.Load()
	entries := *t.entries.Load()
	return subjectsBytes + tableBytes + 8*cap(t.slots) + cap(*t.names.Load()) + 8*cap(entries) + len(entries)*entryBytes +
		4*cap(s.index.slots) + 4*cap(s.index.uses)
}

func requireMeasured(t *testing.T, s *subjects) {
	t.Helper()
	require.GreaterOrEqual(t, s.bytes(), int64(s.occupied()*8/10), "accounted")
}

// Very many combinations of plan, version and multiplier are shared, and those that no subject has
// any more are removed.
func TestSubjectsShareManyCombinations(t *testing.T) {
	const names = 1000
	change := func(t *testing.T, multipliers int) {
		t.Helper()
		s, most := &subjects{}, 0
		for i := range 100_000 {
			n := i * 7919 % multipliers
			s.store(SubjectData{Subject: fmt.Sprint(i % names), Plan: "pro", PlanVersion: 1 + n%2, Multiplier: int64(2 + n)})
			most = max(most, len(*s.table.Load().entries.Load()))
			if i%1000 == 0 {
				requireMeasured(t, s)
			}
		}
		require.Less(t, most, 3000, "entries")
		requireMeasured(t, s)
		for i := 99_000; i < 100_000; i++ {
			got, _ := s.Load(fmt.Sprint(i % names))
			require.EqualValues(t, 2+i*7919%multipliers, got.factor())
		}
	}
	t.Run("1000 multipliers", func(t *testing.T) { change(t, 1000) })
	t.Run("new ones all the time", func(t *testing.T) { change(t, 100_000) })
	t.Run("a load", func(t *testing.T) {
		s := &subjects{}
		for i := range 50_000 {
			s.store(SubjectData{Subject: fmt.Sprint(i), Plan: "pro", Multiplier: int64(2 + i%25_000)})
		}
		require.Len(t, *s.table.Load().entries.Load(), 25_000)
		requireMeasured(t, s)
		s.seal()
		require.Len(t, *s.table.Load().entries.Load(), 25_000)
		requireMeasured(t, s)
	})
}

// A table that was too small for a change is read again as a whole: the changes have left in it
// what no subject has any more.
func TestOverflownSubjectsAreListed(t *testing.T) {
	tenant, ctx := uuid.New(), context.Background()
	source := &fakeSource{
		data:     map[limit.TenantID]PolicyData{tenant: {Version: 1}},
		subjects: []SubjectData{{Subject: "a"}, {Subject: "b"}}, subjAt: 1,
	}
	p, _ := newPolicies(source)
	policy, err := p.Get(ctx, tenant)
	require.NoError(t, err)
	policy.subjects.mu.Lock()
	policy.subjects.overflow = true
	policy.subjects.mu.Unlock()

	// The changes do not name it, so only a list shows that it was deleted.
	source.set(func() { source.subjects, source.subjAt = []SubjectData{{Subject: "b"}}, 2 })
	p.Changed(tenant, 1, 2)
	require.NoError(t, p.Settle(ctx, tenant))
	policy, err = p.Get(ctx, tenant)
	require.NoError(t, err)
	_, there := policy.subjects.Load("a")
	require.False(t, there)
	require.False(t, policy.subjects.overflown())
}
