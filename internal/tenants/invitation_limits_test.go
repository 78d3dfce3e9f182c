package tenants_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/throttle"
)

// Invitations are limited by tenant, by the address of the client and by the invited person, on all
// instances together, whatever path they take. An invitation that is not created does not count.
func TestInvitationLimits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	clock := func() time.Time { return now }
	d := tenantstest.NewWith(t, tenants.Config{Now: clock})
	other := d.Open(tenants.Config{Now: clock})
	counters, keys := throttle.Memory(clock), check.NewKeys([16]byte{1})
	for _, s := range []*tenants.Store{d.Store, other} {
		s.LimitInvitations(counters, keys.Private)
	}
	at := func(address string) context.Context {
		return tenants.WithOrigin(t.Context(), tenants.Origin{Address: address})
	}
	n := 0
	invite := func(s *tenants.Store, ctx context.Context, a tenants.Actor) error {
		n++
		_, err := s.InviteMember(ctx, a, "p"+strconv.Itoa(n)+"@example.com", tenants.Viewer)
		return err
	}
	refused := func(err error, wait time.Duration) { // at most wait
		t.Helper()
		var often *tenants.InvitationsError
		require.ErrorAs(t, err, &often)
		require.Positive(t, often.RetryAfter)
		require.LessOrEqual(t, often.RetryAfter, wait)
	}
	a, _ := d.Tenant("acme")
	b, _ := d.Tenant("bell")
	network := []string{"2001:db8::1", "2001:db8::2"} // one network of 64 bits
	for i := range 100 {
		require.NoError(t, invite([]*tenants.Store{d.Store, other}[i%2], at(network[i%2]), a))
	}
	refused(invite(other, at(network[0]), a), 2*time.Hour)
	refused(invite(other, at(network[1]), b), 2*time.Hour) // another tenant, from the same address
	for range 100 {
		require.NoError(t, invite(d.Store, t.Context(), a))
	}
	refused(invite(d.Store, t.Context(), a), 24*time.Hour/200)
	require.NoError(t, invite(d.Store, at("192.0.2.1"), b))

	// One person, by new and by repeated invitations.
	ben := func(s *tenants.Store, a tenants.Actor) error {
		m, err := s.InviteMember(t.Context(), a, "Ben@example.com", tenants.Viewer)
		if err != nil {
			return err
		}
		_, err = s.InviteMember(t.Context(), a, "ben@example.com", tenants.Viewer)
		var exists *tenants.ConflictError
		require.ErrorAs(t, err, &exists, "not counted")
		_, err = s.ResendInvitation(t.Context(), a, m.ID)
		require.NoError(t, s.RemoveMember(t.Context(), a, m.ID, tenants.Match{}))
		return err
	}
	for range 5 {
		require.NoError(t, ben(other, b))
	}
	refused(ben(d.Store, b), 24*time.Hour)
	now = now.Add(24 * time.Hour)
	require.NoError(t, ben(d.Store, b))
}

// However often other tenants invite a person, a tenant can send the person a first invitation.
// Repeats of all tenants share a limit, and so do first invitations, so a mailbox cannot be filled.
func TestInvitationsOfOthersLeaveAFirstOne(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return now }})
	invite := func(a tenants.Actor) error {
		m, err := d.Store.InviteMember(t.Context(), a, "ben@example.com", tenants.Viewer)
		if err == nil {
			require.NoError(t, d.Store.RemoveMember(t.Context(), a, m.ID, tenants.Match{}))
		}
		return err
	}
	refused := func(a tenants.Actor) time.Duration {
		t.Helper()
		var often *tenants.InvitationsError
		require.ErrorAs(t, invite(a), &often)
		return often.RetryAfter
	}
	actor := func(n int) tenants.Actor {
		a, _ := d.Tenant("tenant-" + strconv.Itoa(n))
		return a
	}
	var others []tenants.Actor
	sent := 0
	for n := range 4 {
		others = append(others, actor(n))
		for range 10 {
			if invite(others[n]) == nil {
				sent++
			}
		}
	}
	require.Equal(t, 4+20, sent, "first invitations and repeats")
	require.Equal(t, 24*time.Hour/20, refused(others[3]), "a repeat, when one more of all tenants is free")
	for n := 4; n < 100; n++ {
		require.NoError(t, invite(actor(n)), "the first one of tenant %d", n)
	}
	require.Equal(t, 24*time.Hour/100, refused(actor(100)), "first ones are limited, too")
	now = now.Add(24 * time.Hour / 100)
	require.NoError(t, invite(actor(101)))
	refused(actor(102))
}
