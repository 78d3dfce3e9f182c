package tenants_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// A tenant uses at most half of the connections at once, whatever its requests wait for. Before, it
// could use all of them, and the requests of all other tenants failed.
func TestConnectionsOfATenant(t *testing.T) {
	t.Parallel()
	d := tenantstest.NewWith(t, tenants.Config{MaxConns: 4})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 4)
	stop := sync.OnceFunc(func() { close(end) })
	defer stop()
	hold := func(ctx context.Context) {
		ended <- d.Store.HoldConnection(ctx, a, func() { begun <- struct{}{}; <-end })
	}
	for range 2 {
		go hold(t.Context())
		<-begun
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		go hold(ctx)
		select {
		case <-begun:
			require.Fail(t, "the tenant uses more than half of the connections")
		case err := <-ended:
			require.ErrorIs(t, err, tenants.ErrUnavailable)
		}
		cancel()
	}
	_, err := d.Store.Tenant(t.Context(), b)
	require.NoError(t, err)
	_, err = d.Store.EditTenant(t.Context(), b, tenants.Match{}, func(in *tenants.Tenant) error { in.Name = "B"; return nil })
	require.NoError(t, err)
	stop()
	for range 2 {
		require.NoError(t, <-ended)
	}
	_, err = d.Store.Tenant(t.Context(), a)
	require.NoError(t, err, "its places are free again")
}

// Exports that clients read slowly use at most three of eight connections, and those of a tenant
// two.
func TestUnreadExports(t *testing.T) {
	t.Parallel()
	d := tenantstest.NewWith(t, tenants.Config{MaxConns: 8})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 4)
	stop := sync.OnceFunc(func() { close(end) })
	defer stop()
	read := func(a tenants.Actor) {
		ended <- d.Store.ExportMetered(t.Context(), a, tenants.MeteredQuery{}, func(tenants.MeteredReport) error {
			begun <- struct{}{}
			<-end
			return nil
		}, func([]tenants.MeteredItem) error { return nil })
	}
	for _, actor := range []tenants.Actor{a, a, b} {
		go read(actor)
		<-begun
	}
	patience := func() (within time.Duration) {
		require.NoError(t, d.Store.ExportPace(io.Discard).Next(func(d time.Duration) { within = d }))
		return within
	}
	long := patience()
	for _, actor := range []tenants.Actor{a, b} {
		require.ErrorIs(t, d.Store.ExportSubjects(t.Context(), actor, tenants.SubjectFilter{}, false, nil), tenants.ErrTooManyExports)
	}
	require.Equal(t, long, patience(), "they have exports themselves")
	c, _ := d.Tenant("tenant-c")
	require.ErrorIs(t, d.Store.ExportSubjects(t.Context(), c, tenants.SubjectFilter{}, false, nil), tenants.ErrTooManyExports)
	require.Less(t, patience(), long, "slow clients keep out another tenant")
	_, err := d.Store.Tenant(t.Context(), a)
	require.NoError(t, err, "other requests have connections")
	stop()
	for range 3 {
		require.NoError(t, <-ended)
	}
	require.NoError(t, d.Store.ExportSubjects(t.Context(), a, tenants.SubjectFilter{}, false, nil), "the places are free again")
}

// A request with an Idempotency-Key keeps its connection until it is answered. What it reads in the
// meantime does not wait for that connection.
func TestConnectionsOfOneRequest(t *testing.T) {
	t.Parallel()
	d := tenantstest.NewWith(t, tenants.Config{MaxConns: 2})
	a, _ := d.Tenant("tenant-a")
	var found []tenants.Rule
	replay, err := d.Store.Idempotent(t.Context(), a, "key", [32]byte{1}, func(ctx context.Context) (tenants.Answer, error) {
		if _, err := d.Store.CreateRule(ctx, a, rule("r")); err != nil {
			return tenants.Answer{}, err
		}
		var err error
		found, _, err = d.Store.Rules(ctx, a, tenants.RuleFilter{}, tenants.Page{})
		return tenants.Answer{Status: 201, Body: []byte("{}")}, err
	})
	require.NoError(t, err)
	require.Nil(t, replay)
	require.Empty(t, found, "reads see what was committed")
	_, err = d.Store.RuleBySlug(t.Context(), a, "r")
	require.NoError(t, err)
}

// Two tenants with as many long operations as they can have leave a connection to a third one.
func TestConnectionsOfTwoTenants(t *testing.T) {
	t.Parallel()
	d := tenantstest.NewWith(t, tenants.Config{MaxConns: 8})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	c, _ := d.Tenant("tenant-c")
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 8)
	stop := sync.OnceFunc(func() { close(end) })
	defer stop()
	running := 0
	for _, actor := range []tenants.Actor{a, b} {
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			go func() {
				ended <- d.Store.HoldConnection(ctx, actor, func() { begun <- struct{}{}; <-end })
			}()
			select {
			case <-begun:
				running++
			case err := <-ended:
				require.ErrorIs(t, err, tenants.ErrUnavailable)
			}
		}
	}
	require.Equal(t, 5, running, "half for the first one, and what is left beside the reserve")
	_, err := d.Store.EditTenant(t.Context(), c, tenants.Match{}, func(in *tenants.Tenant) error { in.Name = "C"; return nil })
	require.NoError(t, err)
	stop()
	for range running {
		<-ended
	}
}
