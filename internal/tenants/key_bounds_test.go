package tenants_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A key works from its networks only, checks its resources only, and grants no more.
func TestKeyBounds(t *testing.T) { // not parallel, because it counts allocations
	d, a, _ := two(t)
	s := d.Store
	create := func(by tenants.Actor, scopes []tenants.Scope, addresses, resources []string) (tenants.APIKey, tenants.Key, error) {
		return s.CreateKey(t.Context(), by, tenants.NewAPIKey{Name: "k", Scopes: scopes, Bounds: tenants.KeyBounds{Addresses: addresses, Resources: resources}})
	}
	checks := []tenants.Scope{tenants.ScopeCheck}
	made, key, err := create(a, checks, []string{"192.0.2.77/24", "2001:db8::1", "::ffff:198.51.100.1"}, []string{"chat.*", "orders"})
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.0/24", "2001:db8::1/128", "198.51.100.1/32"}, made.Bounds.Addresses)
	actor := d.Actor(key)
	for address, want := range map[string]bool{
		"192.0.2.1": true, "::ffff:192.0.2.255": true, "192.0.3.1": false, "2001:db8::1": true, "2001:db8::2": false, "198.51.100.1": true, "127.0.0.1": false,
	} {
		require.Equal(t, want, actor.MayConnect(netip.MustParseAddr(address)), address)
	}
	require.False(t, actor.MayConnect(netip.Addr{}), "an unknown address")
	for resource, want := range map[string]bool{"chat.send": true, "chat.": true, "chat": false, "orders": true, "orders:1": false, "default": false} {
		require.Equal(t, want, actor.MayCheck(resource), resource)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = actor.MayConnect(netip.AddrFrom4([4]byte{192, 0, 2, 1})) && actor.MayCheck("chat.send")
	}), "on the path of a check")

	for name, bad := range map[string]struct {
		scopes               []tenants.Scope
		addresses, resources []string
	}{
		"no network":               {checks, []string{"192.0.2"}, nil},
		"a zone":                   {checks, []string{"fe80::1%eth0"}, nil},
		"twice":                    {checks, []string{"192.0.2.1", "192.0.2.1/32"}, nil},
		"star in the middle":       {checks, nil, []string{"a*b"}},
		"resources and more scope": {tenants.AllScopes, nil, []string{"chat.*"}},
		"too many":                 {checks, nil, make([]string, 21)},
	} {
		_, _, err := create(a, bad.scopes, bad.addresses, bad.resources)
		var invalid *tenants.InvalidError
		require.ErrorAs(t, err, &invalid, name)
	}

	_, key, err = create(a, tenants.AllScopes, []string{"10.0.0.0/8"}, nil)
	require.NoError(t, err)
	manager := d.Actor(key)
	for name, grant := range map[string]struct {
		addresses []string
		may       bool
	}{"all": {nil, false}, "wider": {[]string{"10.0.0.0/7"}, false}, "beside": {[]string{"10.1.0.0/16", "11.0.0.1"}, false}, "within": {[]string{"10.1.0.0/16"}, true}} {
		_, _, err := create(manager, checks, grant.addresses, nil)
		if grant.may {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, tenants.ErrNotPermitted, name)
	}
	_, err = s.EditKey(t.Context(), manager, made.ID, tenants.Match{}, func(k *tenants.APIKey) error {
		k.Bounds = tenants.KeyBounds{}
		return nil
	})
	require.ErrorIs(t, err, tenants.ErrNotPermitted, "nor removes the bounds of another key")
	_, err = s.InviteMember(t.Context(), manager, "eve@example.com", tenants.Viewer)
	require.ErrorIs(t, err, tenants.ErrNotPermitted, "a membership works from every address")
	rotated, _, err := s.RotateKey(t.Context(), a, made.ID, 0)
	require.NoError(t, err)
	require.Equal(t, made.Bounds, rotated.Bounds, "a rotation keeps the bounds")
}
