package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A server whose clock is a day ahead carries out nothing early, and deletes nothing early. One
// that does not know the clock of Postgres does nothing.
func TestClocksAheadOfPostgres(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	at := time.Now().Add(20 * time.Hour)
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", Plan: "pro", NextPlan: "free", NextPlanAt: &at})

	ahead := d.Open(tenants.Config{Now: func() time.Time { return time.Now().AddDate(0, 0, 1) }})
	ahead.FollowsDatabase()
	applied, _, err := ahead.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Zero(t, applied)
	require.WithinDuration(t, time.Now(), ahead.Now(), time.Minute)
	require.NoError(t, ahead.FollowClock(t.Context()), "it was read")

	late := d.Open(tenants.Config{Now: func() time.Time { return time.Now().AddDate(0, 0, 1) }})
	applied, _, err = late.ApplyDuePlans(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, applied, "without it")
	require.WithinDuration(t, time.Now().AddDate(0, 0, 1), late.Now(), time.Minute)

	cut := d.Open(tenants.Config{DatabaseURL: "postgres://127.0.0.1:1/weir?connect_timeout=1"})
	require.ErrorIs(t, cut.FollowClock(t.Context()), tenants.ErrUnavailable)
}

// A clock that differs by little is used itself.
func TestOwnClock(t *testing.T) {
	t.Parallel()
	d, _, _ := two(t)
	own := time.Now().Add(500 * time.Millisecond)
	s := d.Open(tenants.Config{Now: func() time.Time { return own }})
	s.FollowsDatabase()
	require.NoError(t, s.FollowClock(t.Context()))
	require.True(t, s.Now().Equal(own.Truncate(time.Microsecond)))
}
