package tenants_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/subscription"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// volumeStack is two tenants with an endpoint each, on a clock of the test.
type volumeStack struct {
	t     *testing.T
	db    *tenantstest.Database
	at    time.Time
	a     tenants.Actor
	hooks [2]tenants.Webhook
	n     int
}

func newVolumeStack(t *testing.T, volume tenants.BillingVolume) *volumeStack {
	t.Helper()
	s := &volumeStack{t: t, at: time.Date(2026, 3, 4, 22, 0, 0, 0, time.UTC)}
	s.db = tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return s.at }, Volume: volume})
	for i, slug := range []string{"tenant-a", "tenant-b"} {
		a, _ := s.db.Tenant(slug)
		e, err := s.db.Store.CreateBillingEndpoint(t.Context(), a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromCustomer},
			tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
		require.NoError(t, err)
		s.hooks[i] = tenants.Webhook{Tenant: a.TenantID(), Endpoint: e.ID, Provider: tenants.GenericProvider}
		if i == 0 {
			s.a = a
		}
	}
	return s
}

// store stores an event with an id and a body of so many bytes.
func (s *volumeStack) store(hook tenants.Webhook, id, typ string, size int) (first bool, err error) {
	body := `{"type":"` + typ + `","subject":"ada","plan":"pro"}`
	body += strings.Repeat(" ", max(0, size-len(body)))
	e, err := subscription.ParseGeneric([]byte(body), id, s.at, s.at)
	require.NoError(s.t, err)
	return s.db.Store.StoreBillingEvent(s.t.Context(), hook, e, []byte(body))
}

func (s *volumeStack) stored(hook tenants.Webhook) (rows, bytes int) {
	s.t.Helper()
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(s.t, conn.QueryRow(ctx, "SELECT count(*), coalesce(sum(octet_length(body)), 0) FROM billing_events WHERE tenant_id = $1 AND duplicate_of IS NULL",
			hook.Tenant).Scan(&rows, &bytes))
	})
	return rows, bytes
}

// A tenant's billing systems store up to a number of events a day, of all endpoints together. What
// was refused is stored the next day, what was received before is still answered, and other tenants
// are not affected.
func TestBillingEventsOfADay(t *testing.T) {
	t.Parallel()
	s := newVolumeStack(t, tenants.BillingVolume{Events: 5})
	s.at = s.at.AddDate(1, 0, 0) // once, a server's clock was ahead
	_, err := s.store(s.hooks[0], "msg_ahead", "subject.plan", 0)
	require.NoError(t, err)
	s.at = s.at.AddDate(-1, 0, 0)
	for i := range 5 {
		first, err := s.store(s.hooks[0], "msg_"+strconv.Itoa(i), "subject.plan", 0)
		require.NoError(t, err)
		require.True(t, first)
	}
	_, err = s.store(s.hooks[0], "msg_5", "subject.plan", 0)
	var full *tenants.BillingVolumeError
	require.ErrorAs(t, err, &full)
	require.Equal(t, 2*time.Hour, full.RetryAfter, "until the day ends in UTC")
	first, err := s.store(s.hooks[0], "msg_0", "subject.plan", 0)
	require.NoError(t, err, "it was received before, so the sender must not send it again")
	require.False(t, first)
	first, err = s.store(s.hooks[1], "msg_5", "subject.plan", 0)
	require.NoError(t, err)
	require.True(t, first)
	rows, _ := s.stored(s.hooks[0])
	require.Equal(t, 6, rows)

	s.at = s.at.Add(2 * time.Hour)
	first, err = s.store(s.hooks[0], "msg_5", "subject.plan", 0)
	require.NoError(t, err)
	require.True(t, first, "the sender has sent it again")
}

// The bytes of a tenant's events are bounded in the same way. An event that fits is stored after
// one that did not.
func TestBillingBytesOfADay(t *testing.T) {
	t.Parallel()
	s := newVolumeStack(t, tenants.BillingVolume{Bytes: 10_000})
	for i := range 2 {
		_, err := s.store(s.hooks[0], "msg_"+strconv.Itoa(i), "subject.plan", 4000)
		require.NoError(t, err)
	}
	_, err := s.store(s.hooks[0], "msg_2", "subject.plan", 4000)
	require.ErrorAs(t, err, new(*tenants.BillingVolumeError))
	_, err = s.store(s.hooks[0], "msg_3", "subject.plan", 1000)
	require.NoError(t, err)
	_, bytes := s.stored(s.hooks[0])
	require.Equal(t, 9000, bytes)
	_, err = s.store(s.hooks[1], "msg_2", "subject.plan", 4000)
	require.NoError(t, err)
}

// An event from which nothing follows is decided when it is received, once, and only its content is
// not kept. A replay decides the same.
func TestIgnoredEventsHaveNoBody(t *testing.T) {
	t.Parallel()
	s := newVolumeStack(t, tenants.BillingVolume{})
	first, err := s.store(s.hooks[0], "msg_1", "invoice.drawn", 100_000)
	require.NoError(t, err)
	require.True(t, first)
	rows, bytes := s.stored(s.hooks[0])
	require.Equal(t, []int{1, 0}, []int{rows, bytes})
	events, _, err := s.db.Store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, tenants.EventIgnored, events[0].Outcome)
	require.Contains(t, events[0].Why, "invoice.drawn")
	due, err := s.db.Store.DueBilling(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, due.Events)
	first, err = s.store(s.hooks[0], "msg_1", "invoice.drawn", 100_000)
	require.NoError(t, err)
	require.False(t, first)

	work, err := s.db.Store.BillingWork(t.Context(), s.hooks[0].Tenant, events[0].ID)
	require.NoError(t, err)
	again, err := s.db.Store.SettleBillingEvent(t.Context(), work, s.hooks[0].Tenant, nil, "Ada")
	require.NoError(t, err)
	require.Equal(t, []string{tenants.EventIgnored, events[0].Why}, []string{again.Outcome, again.Why})
}

// Parked and failed events are deleted after 400 days, unless they wait for a time.
func TestPurgeUnappliedEvents(t *testing.T) {
	t.Parallel()
	s := newVolumeStack(t, tenants.BillingVolume{})
	for _, id := range []string{"parked", "failed", "waits"} {
		_, err := s.store(s.hooks[0], id, "subject.plan", 0)
		require.NoError(t, err)
	}
	s.db.Exec("UPDATE billing_events SET outcome = CASE provider_id WHEN 'waits' THEN 'parked' ELSE provider_id END, settled_at = $1, due_at = CASE provider_id WHEN 'waits' THEN $1::timestamptz + interval '9 years' END", s.at)
	s.at = s.at.Add(tenants.UnappliedEventRetention)
	require.NoError(t, s.db.Store.Purge(t.Context()))
	rows, _ := s.stored(s.hooks[0])
	require.Equal(t, 3, rows)
	s.at = s.at.Add(time.Second)
	require.NoError(t, s.db.Store.Purge(t.Context()))
	rows, _ = s.stored(s.hooks[0])
	require.Equal(t, 1, rows)
}
