package recent

import (
	"context"
	"errors"
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

// follow returns a follower of a tenant.
func (r *rig) follow(t *testing.T, tenant limit.TenantID) *Follower {
	t.Helper()
	f, err := r.log.Follow(t.Context(), tenant)
	require.NoError(t, err)
	return f
}

func (r *rig) refused(t *testing.T, tenant limit.TenantID) {
	t.Helper()
	_, err := r.log.Follow(t.Context(), tenant)
	require.ErrorIs(t, err, ErrFollowers)
}

// ends waits until a follower ends for one of another tenant, and closes it.
func (r *rig) ends(t *testing.T, f *Follower) {
	t.Helper()
	for err := error(nil); err == nil; { // a tick may be due, too
		_, err = f.Next(t.Context())
		require.True(t, err == nil || errors.Is(err, ErrFollowers))
	}
	f.Close()
}

func ended(all []*Follower) (n int) {
	for _, f := range all {
		select {
		case <-f.over:
			n++
		default:
		}
	}
	return n
}

// Followers are limited, for each tenant and in all, and a closed one makes room. When all are
// connected, a tenant without any gets the place of a tenant with two or more.
func TestFollowersAreLimited(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	var open []*Follower
	for range MaxFollowers / MaxTenantFollowers {
		tenant := uuid.New()
		for range MaxTenantFollowers {
			open = append(open, r.follow(t, tenant))
		}
		r.refused(t, tenant)
	}
	last := uuid.New()
	mine := []*Follower{r.follow(t, last)}
	r.ends(t, open[0]) // the oldest one of the tenant that was the first with four
	r.refused(t, open[0].tenant)
	open = open[1:]
	for range 2 {
		mine = append(mine, r.follow(t, last))
		r.ends(t, open[MaxTenantFollowers*len(mine)-MaxTenantFollowers-1])
	}
	r.refused(t, last)
	require.Equal(t, 2, ended(open), "nobody else")
	require.Zero(t, ended(mine))
	for _, f := range append(open, mine...) {
		if ended([]*Follower{f}) == 0 {
			f.Close()
		}
	}
	require.Zero(t, r.log.following.all)
	require.Empty(t, r.log.following.of)
	require.Zero(t, r.log.following.crowd.Waiting())

	f := r.follow(t, last)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for err := error(nil); err == nil; { // a tick may be due, too
		_, err = f.Next(ctx)
	}
}

// As many tenants as there are places, each with one, do not keep others out: they take turns. One
// that asks very often gets no more turns than one that asks rarely.
func TestFollowersTakeTurns(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	open := []*Follower{r.follow(t, uuid.New())}
	r.Move(time.Second)
	for len(open) < MaxFollowers {
		open = append(open, r.follow(t, uuid.New()))
	}
	rare, often := uuid.New(), uuid.New()
	r.refused(t, rare)
	for range 3 {
		r.refused(t, often)
		r.Move(15 * time.Second)
		r.refused(t, often)
		r.refused(t, rare)
	}
	r.refused(t, open[0].tenant) // it has one
	r.Move(followTurn - 46*time.Second)
	require.Zero(t, ended(open), "each has its place for a minute")
	r.refused(t, often)
	defer r.follow(t, rare).Close()
	r.ends(t, open[0])
	r.refused(t, often)
	r.Move(time.Second)
	defer r.follow(t, often).Close()
	r.ends(t, open[1])
	require.Zero(t, ended(open[2:]))
	for _, f := range open[2:] {
		f.Close()
	}
}

// A tenant whose follower does not end yet, because its client does not read, gets no further ones.
func TestEndingFollowersCount(t *testing.T) {
	r := newRig(t, check.PolicyData{Rules: []limit.Rule{checktest.Minute("api", 2)}})
	var open []*Follower
	for range MaxFollowers {
		open = append(open, r.follow(t, uuid.New()))
	}
	for range MaxFollowers {
		r.Move(followTurn)
		open = append(open, r.follow(t, uuid.New()))
	}
	r.Move(followTurn)
	r.refused(t, uuid.New())
	open[0].Close()
	r.follow(t, uuid.New()).Close()
	for _, f := range open[1:] {
		f.Close()
	}
}
