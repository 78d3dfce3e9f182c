package recent

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
)

func subjects(list []Decision) (out []string) {
	for i := range list {
		out = append(out, list[i].Subject)
	}
	return out
}

// A follower sees each decision once, with its repeats, and none of before.
func TestFollowerReturnsEachDecisionOnce(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	tenant := r.Policy.Tenant()
	ask := func(subject string) { r.Check(check.Request{Subject: subject, Resource: "r", Cost: 1}) }
	ask("before")
	f, err := r.log.Follow(t.Context(), tenant)
	require.NoError(t, err)
	defer f.Close()
	next := func() []Decision { return f.take(r.log.latest(t.Context(), tenant), r.Clock()) }

	ask("ada")
	r.Move(time.Millisecond)
	ask("ada")
	for range 5 {
		r.Move(time.Millisecond)
		ask("ada")
	}
	require.Empty(t, next(), "more repeats may follow")
	r.Move(RepeatsWithin)
	got := next()
	require.Equal(t, []string{"ada", "ada", "ada"}, subjects(got))
	require.Equal(t, []bool{true, true, false}, []bool{got[0].Allowed, got[1].Allowed, got[2].Allowed}, "oldest first")
	require.Equal(t, int64(4), got[2].Repeats)
	require.Empty(t, next())

	// An instance that was silent for a while repeats nothing, and a late one is not lost.
	old := got[:1]
	r.Move(followKeeps / 2)
	require.Empty(t, f.take(nil, r.Clock()))
	require.Empty(t, f.take(old, r.Clock()))
	r.Move(RepeatsWithin)
	require.Empty(t, f.take(old, r.Clock()))
	ask("bob")
	require.Empty(t, next())
	r.Move(RepeatsWithin)
	require.Equal(t, []string{"bob"}, subjects(next()))

	r.Move(2 * followKeeps)
	require.Empty(t, next())
	require.Empty(t, f.known, "nothing is remembered forever")
}

// Another tenant's decisions are not returned.
func TestFollowerOfAnotherTenant(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	other := uuid.New()
	f, err := r.log.Follow(t.Context(), other)
	require.NoError(t, err)
	defer f.Close()
	r.Check(check.Request{Subject: "ada", Cost: 1})
	require.Empty(t, f.take(r.log.latest(t.Context(), other), r.Clock()))
	require.Empty(t, f.known)
}

// Followers are limited, for each tenant and in all, and a closed one makes room. Some tenants
// cannot take those of all others.
func TestFollowersAreLimited(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	follow := func(tenant limit.TenantID) *Follower {
		f, err := r.log.Follow(t.Context(), tenant)
		require.NoError(t, err)
		return f
	}
	refused := func(tenant limit.TenantID) {
		_, err := r.log.Follow(t.Context(), tenant)
		require.ErrorIs(t, err, ErrFollowers)
	}
	var open []*Follower
	tenant := uuid.New()
	for range MaxTenantFollowers {
		open = append(open, follow(tenant))
	}
	refused(tenant)
	for len(open) < MaxFollowers {
		open = append(open, follow(uuid.New()))
	}
	refused(uuid.New())
	last := len(open) - 1
	open[last].Close()
	refused(tenant)
	open[last] = follow(uuid.New())
	for _, f := range open {
		f.Close()
	}
	require.Zero(t, r.log.following.all)
	require.Empty(t, r.log.following.of)

	// However many followers eight tenants want, a ninth gets one, and many more do.
	open = open[:0]
	for range 8 {
		greedy := uuid.New()
		for range MaxTenantFollowers {
			if f, err := r.log.Follow(t.Context(), greedy); err == nil {
				open = append(open, f)
			}
		}
	}
	require.Len(t, open, 4*4+3+3*2, "less of them while others have more")
	for len(open) < MaxFollowers {
		open = append(open, follow(uuid.New()))
	}
	for _, f := range open {
		f.Close()
	}

	f := follow(tenant)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for err := error(nil); err == nil; { // a tick may be due, too
		_, err = f.Next(ctx)
	}
}
