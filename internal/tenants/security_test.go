package tenants_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Events are deleted when they are older than their tenant keeps them.
func TestSecurityEventRetention(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return now }})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	_, err := d.Store.EditSecuritySettings(t.Context(), a, tenants.Match{}, func(s *tenants.SecuritySettings) error {
		s.EventRetention.Text = "30d"
		return nil
	})
	require.NoError(t, err)
	for _, actor := range []tenants.Actor{a, b} {
		require.NoError(t, d.Store.RecordExport(t.Context(), actor, "subjects", "csv"))
	}
	count := func(a tenants.Actor) int {
		events, _, err := d.Store.SecurityEvents(t.Context(), a, tenants.EventFilter{Kind: tenants.EventExported}, tenants.Page{Limit: 10})
		require.NoError(t, err)
		return len(events)
	}
	now = now.Add(30*24*time.Hour - time.Minute)
	_, err = d.Store.PurgeSecurityEvents(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, count(a))
	now = now.Add(time.Hour)
	_, err = d.Store.PurgeSecurityEvents(t.Context())
	require.NoError(t, err)
	require.Zero(t, count(a))
	require.Equal(t, 1, count(b), "another tenant keeps them for a year")
	now = now.Add(366 * 24 * time.Hour)
	_, err = d.Store.PurgeSecurityEvents(t.Context())
	require.NoError(t, err)
	require.Zero(t, count(b))
}

// To delete old events, only those are read, however many others there are.
func TestSecurityEventPurgeReadsFew(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	for _, actor := range []tenants.Actor{a, b} {
		d.Exec(`INSERT INTO security_events (tenant_id, id, at, kind, actor_kind, actor_name, address, user_agent, request_id, target)
			SELECT $1, gen_random_uuid(), now() - CASE WHEN n > 10 THEN 1 ELSE 366 END * interval '1 day', 'login', 'member', 'ada', '', '', '', ''
			FROM generate_series(1, 15000) n`, actor.TenantID())
	}
	for _, statistics := range []string{"old", "ANALYZE security_events, tenants"} {
		if statistics != "old" {
			d.Exec(statistics)
		}
		read, err := tenants.EventsReadForPurge(t.Context(), d.Store)
		require.NoError(t, err)
		require.LessOrEqual(t, read, int64(200), statistics)
		d.Exec(`UPDATE security_events SET at = now() - interval '366 days' WHERE id IN (SELECT id FROM security_events ORDER BY id LIMIT 20)`)
	}
	removed, err := d.Store.PurgeSecurityEvents(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 20, removed)
}

// A key that exports in a loop adds one event a minute, and not one for each export. Another kind
// of data, another actor and another tenant have events of their own.
func TestRepeatedExportsAreOneEvent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return now }})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	other := tenants.AsSystem(a.TenantID(), "another program")
	for range 3 {
		for _, actor := range []tenants.Actor{a, b, other} {
			require.NoError(t, d.Store.RecordExport(t.Context(), actor, "subjects", "csv"))
		}
	}
	require.NoError(t, d.Store.RecordExport(t.Context(), a, "audit trail", "csv"))
	count := func(a tenants.Actor) int {
		events, _, err := d.Store.SecurityEvents(t.Context(), a, tenants.EventFilter{Kind: tenants.EventExported}, tenants.Page{Limit: 10})
		require.NoError(t, err)
		return len(events)
	}
	require.Equal(t, 3, count(a))
	require.Equal(t, 1, count(b))
	now = now.Add(time.Minute)
	require.NoError(t, d.Store.RecordExport(t.Context(), a, "subjects", "csv"))
	require.Equal(t, 4, count(a))
}

// Nor does a key whose client has a new address for each export.
func TestExportsFromManyAddresses(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for n := range 20 {
		from := tenants.WithOrigin(t.Context(), tenants.Origin{Address: fmt.Sprintf("2001:db8::%x", n/2)})
		require.NoError(t, d.Store.RecordExport(from, a, "subjects", "csv"))
	}
	events, _, err := d.Store.SecurityEvents(t.Context(), a, tenants.EventFilter{Kind: tenants.EventExported}, tenants.Page{Limit: 20})
	require.NoError(t, err)
	require.Len(t, events, 5)
}
