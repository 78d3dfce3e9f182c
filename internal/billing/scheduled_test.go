package billing_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// scheduled stores an event of the generic webhook that takes effect later, and copies of it.
func (s *stack) scheduled(copies int) {
	s.t.Helper()
	e := s.send([]byte(`{"type":"subject.plan","subject":"ada","plan":"pro","effective_at":"2027-01-01T00:00:00Z"}`))
	s.outcome(tenants.EventParked, e)
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, subject, outcome, why, settled_at, waits_for, due_at)
		SELECT tenant_id, gen_random_uuid(), endpoint_id, 'evt_copy_' || n, type, provider_at, received_at, body, subject, outcome, why, settled_at, waits_for, due_at
		FROM billing_events, generate_series(1, $1::int) AS n WHERE subject = 'ada'`, copies)
}

// Scheduled events are not read to find those that wait or have failed, of an endpoint or of all.
// Those of a tenant are counted.
func TestScheduledEventsAreNoBacklog(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	s.outcome(tenants.EventFailed, s.send([]byte(`{"type":"subject.plan","subject":"bob","plan":"none"}`)))
	s.scheduled(20_000)
	s.pass(time.Minute)
	instant := quoted(s.now().Format(time.RFC3339)) + "::timestamptz"
	const first, last = "'00000000-0000-0000-0000-000000000000'::uuid", "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid"
	for _, statistics := range []bool{false, true} {
		if statistics {
			s.db.Exec("ANALYZE billing_events")
		}
		got, text := s.explain("weir_system", "DueBillingNotices", "@after_tenant", first, "@after_id", first, "@last_tenant", last, "@last_id", last,
			"@before", instant, "@repeat_before", instant, "@again_before", instant, "@count_most", "10000")
		require.Equal(t, 1.0, got.Rows, text)
		require.Less(t, got.eventsRead(), 1000.0, text)
		got, text = s.explain("weir_system", "CountAllUnappliedEvents", "@most", "100000")
		require.Less(t, got.eventsRead(), 1000.0, text)
	}
	sent, err := s.store.RecordBillingNotices(t.Context(), 200)
	require.NoError(t, err)
	require.Len(t, sent, 1)
	require.Equal(t, [2]int64{0, 1}, [2]int64{sent[0].Parked, sent[0].Failed})
	all, err := s.store.AllUnappliedEvents(t.Context())
	require.NoError(t, err)
	require.Equal(t, tenants.UnappliedEvents{Failed: 1}, all)
	own, err := s.store.UnappliedEvents(t.Context(), s.a)
	require.NoError(t, err)
	require.Equal(t, int64(tenants.MostUnapplied), own.Parked+own.Failed)
	require.Equal(t, own.Parked, own.Scheduled)
	list, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Outcome: tenants.EventParked}, tenants.Page{Limit: 50})
	require.NoError(t, err)
	require.Len(t, list, 50)
}

// If the notices of some endpoints cannot be determined in one statement, those of each one are
// determined alone: only an endpoint for which that fails has none.
func TestNoticesOfAnEndpointThatFails(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	_, _ = s.db.Tenant("tenant-b")
	s.db.Exec(`INSERT INTO billing_endpoints (tenant_id, id, provider, signing_secrets, signing_secret_hints, subject_from, grace_days, created_at, updated_at, version)
		SELECT id, gen_random_uuid(), 'generic', '', '{}', 'x', 1, $1, $1, 1 FROM tenants, generate_series(1, 5)`, s.now())
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, outcome, settled_at)
		SELECT tenant_id, gen_random_uuid(), id, 'evt', 'x', $1, $1, '', 'failed', $1 FROM billing_endpoints`, s.now())
	s.db.Exec(`CREATE FUNCTION readable(endpoint uuid) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
		IF endpoint = '` + s.endpoint.ID.String() + `' THEN RAISE 'unreadable'; END IF; RETURN true; END $$`)
	s.db.Exec("ALTER POLICY read_all ON billing_events USING (readable(endpoint_id))")
	// Else the few rows are read in the order of the table.
	s.db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$`)
	store := s.db.Open(tenants.Config{Now: s.now})
	s.pass(time.Minute)
	sent, err := store.RecordBillingNotices(t.Context(), 200)
	require.ErrorContains(t, err, "unreadable")
	require.Len(t, sent, 10)
	for _, n := range sent {
		require.NotEqual(t, s.endpoint.ID, n.Endpoint)
	}
}

// A scheduled event is kept until its time. One whose time is later than a stored event is kept,
// which an earlier release accepted, is deleted as the others that were not applied.
func TestPurgeScheduledEvents(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{Provider: tenants.GenericProvider}, nil)
	s.scheduled(2)
	s.db.Exec("UPDATE billing_events SET due_at = '9999-01-01T00:00:00Z' WHERE provider_id = 'evt_copy_1'")
	s.db.Exec("UPDATE billing_events SET due_at = $1 WHERE provider_id = 'evt_copy_2'", s.now().Add(tenants.UnappliedEventRetention))
	left := func() (ids []string) {
		require.NoError(t, s.store.Purge(t.Context()))
		list, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{Limit: 10})
		require.NoError(t, err)
		for _, e := range list {
			ids = append(ids, e.ProviderID)
		}
		return ids
	}
	s.pass(tenants.UnappliedEventRetention)
	require.ElementsMatch(t, []string{"msg_1", "evt_copy_1", "evt_copy_2"}, left())
	s.db.Exec("UPDATE billing_events SET due_at = $1 WHERE provider_id = 'evt_copy_2'", s.now().Add(100*24*time.Hour))
	s.pass(time.Second)
	require.ElementsMatch(t, []string{"msg_1", "evt_copy_2"}, left(), "its time will come")
}
