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
	c, _ := d.Tenant("cell")
	e, _ := d.Tenant("east")
	for range 5 {
		require.NoError(t, ben(d.Store, c))
	}
	refused(ben(d.Store, e), 24*time.Hour/20)
	now = now.Add(24 * time.Hour)
	require.NoError(t, ben(d.Store, b))
}
