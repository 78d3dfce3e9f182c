package tenants_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func mustNotified(t *testing.T, s *tenants.Store, a tenants.Actor) (tenants.NotificationEndpoint, string) {
	t.Helper()
	e, secret, err := s.CreateNotificationEndpoint(t.Context(), a, tenants.NotificationEndpoint{URL: "https://example.com/weir", Enabled: true})
	require.NoError(t, err)
	return e, secret
}

// bodies returns what an endpoint is sent, the oldest first.
func bodies(t *testing.T, s *tenants.Store, a tenants.Actor) (out []string) {
	t.Helper()
	list, _, err := s.NotificationDeliveries(t.Context(), a, tenants.DeliveryFilter{}, tenants.Page{})
	require.NoError(t, err)
	for i := len(list) - 1; i >= 0; i-- {
		d, err := s.NotificationDelivery(t.Context(), a, list[i].ID)
		require.NoError(t, err)
		out = append(out, d.Body)
	}
	return out
}

// dataOf returns the data of a body, and requires its type.
func dataOf(t *testing.T, kind, body string) map[string]any {
	t.Helper()
	var n struct {
		Type      string
		Timestamp time.Time
		Data      map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(body), &n))
	require.Equal(t, kind, n.Type)
	require.False(t, n.Timestamp.IsZero())
	return n.Data
}

func TestNotificationEndpointFields(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for url, field := range map[string]string{
		"https://example.com": "", "https://example.com:8443/a?b=c": "", "http://127.0.0.1:9": "", "http://localhost/x": "", "http://[::1]:1/": "",
		"http://example.com": "url", "ftp://example.com": "url", "example.com": "url", "": "url", "https://": "url", "https:///x": "url", "https://:443": "url",
		"https://u:p@example.com": "url", "https://example.com/#x": "url", "https://exämple.com": "url", "https://example.com/a b": "url",
		"https://example.com/" + strings.Repeat("x", 2048): "url", "https://example.com\n": "url", "http://127.0.0.1.example.com": "url",
	} {
		_, _, err := s.CreateNotificationEndpoint(t.Context(), b, tenants.NotificationEndpoint{URL: url})
		if field == "" {
			require.NoError(t, err, url)
		} else {
			requireInvalid(t, err, field)
		}
	}
	_, _, err := s.CreateNotificationEndpoint(t.Context(), a, tenants.NotificationEndpoint{
		URL: "https://example.com", Description: strings.Repeat("x", 201), Types: []string{tenants.QuotaReached, "no.such", tenants.QuotaReached, tenants.TestNotification},
	})
	requireInvalid(t, err, "description", "types.1", "types.2", "types.3")

	e, secret := mustNotified(t, s, a)
	require.True(t, strings.HasPrefix(secret, "whsec_"))
	require.Equal(t, secret[len(secret)-4:], e.SecretHint)
	_, err = s.NotificationEndpoint(t.Context(), b, e.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	for range 9 {
		mustNotified(t, s, a)
	}
	_, _, err = s.CreateNotificationEndpoint(t.Context(), a, tenants.NotificationEndpoint{URL: "https://example.com"})
	requireInvalid(t, err, "url")
	_, _, err = s.RotateNotificationSecret(t.Context(), a, e.ID, tenants.MaxSecretOverlap+1)
	requireInvalid(t, err, "overlap")

	first, next, err := s.NotificationEndpoints(t.Context(), a, tenants.Page{Limit: 6})
	require.NoError(t, err)
	rest, end, err := s.NotificationEndpoints(t.Context(), a, tenants.Page{Limit: 6, After: next})
	require.NoError(t, err)
	require.Len(t, append(first, rest...), 10)
	require.Empty(t, end)
	require.Equal(t, e.ID, rest[3].ID, "newest first")
	require.NoError(t, s.DeleteNotificationEndpoint(t.Context(), a, e.ID, at(e.Version)))
}

// The secret is in no row of the database and not in the trail, and follows a new encryption key.
func TestNotificationSecretsAreEncrypted(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	e, secret := mustNotified(t, d.Store, a)
	_, second, err := d.Store.RotateNotificationSecret(t.Context(), a, e.ID, time.Hour)
	require.NoError(t, err)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var row, trail string
		require.NoError(t, conn.QueryRow(ctx, "SELECT encode(secrets, 'escape') || n::text FROM notification_endpoints n").Scan(&row))
		require.NoError(t, conn.QueryRow(ctx, "SELECT string_agg(a::text, ' ') FROM audit a").Scan(&trail))
		for _, text := range []string{secret, second} {
			for _, part := range []string{text, strings.TrimPrefix(text, "whsec_")} {
				require.NotContains(t, row, part)
				require.NotContains(t, trail, part)
			}
		}
	})
	rows, _, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{Kind: "notification_endpoint"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []string{"rotate", "create"}, []string{rows[0].Action, rows[1].Action})

	ring, err := seal.Parse(seal.NewKey())
	require.NoError(t, err)
	_, _, err = d.Open(tenants.Config{Seal: ring}).RotateNotificationSecret(t.Context(), a, e.ID, time.Hour)
	requireConflict(t, err, tenants.CodeNoEncryptionKey)
	require.Equal(t, 1, reencrypted(t, d, a))
}

// reencrypted opens the database with a new key before the present one, and returns how many
// endpoints were encrypted again.
func reencrypted(t *testing.T, d *tenantstest.Database, a tenants.Actor) int {
	t.Helper()
	ring, err := seal.Parse(seal.NewKey() + "," + tenantstest.EncryptionKey)
	require.NoError(t, err)
	s := d.Open(tenants.Config{Seal: ring})
	n, err := s.Reencrypt(t.Context(), a)
	require.NoError(t, err)
	again, err := s.Reencrypt(t.Context(), a)
	require.NoError(t, err)
	require.Zero(t, again)
	require.NoError(t, s.Notify(t.Context(), a.TenantID(), tenants.Notification{Type: tenants.QuotaReached}))
	task, err := s.DueDeliveries(t.Context(), 10)
	require.NoError(t, err)
	work, err := s.ClaimDelivery(t.Context(), task[0])
	require.NoError(t, err, "the secrets can be read with the new key")
	require.Len(t, work.Secrets, 2)
	return n
}

// A share of a quota is notified once, however many instances record it.
func TestQuotaIsNotified(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	mustNotified(t, d.Store, a)
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for range 3 {
		_, err := d.Store.RecordQuota(t.Context(), a.TenantID(), tenants.ChecksPerMonth, end, 96, 100)
		require.NoError(t, err)
		_, err = d.Store.RecordQuota(t.Context(), b.TenantID(), tenants.ChecksPerMonth, end, 100, 100)
		require.NoError(t, err)
	}
	got := bodies(t, d.Store, a)
	require.Len(t, got, 1, "of two new shares, the largest")
	require.Equal(t, map[string]any{
		"rule": tenants.ChecksPerMonth, "percent": 95.0, "used": 96.0, "limit": 100.0, "resets_at": end.Format(time.RFC3339),
	}, dataOf(t, tenants.QuotaReached, got[0]))
	_, err := d.Store.RecordQuota(t.Context(), a.TenantID(), tenants.ChecksPerMonth, end, 100, 100)
	require.NoError(t, err)
	require.Len(t, bodies(t, d.Store, a), 2)
}

// A request of a customer is notified when it is sent and when it is settled, in the transaction of
// each: a change that fails notifies nothing.
func TestLimitRequestsAreNotified(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustNotified(t, s, a)
	mustRule(t, s, a, rule("one"))
	mustRule(t, s, a, rule("two"))
	_, token, err := s.CreatePortalLink(t.Context(), a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	session, secret, err := s.FollowPortalLink(t.Context(), token)
	require.NoError(t, err)
	visit, err := s.PortalVisit(t.Context(), session, secret, nil)
	require.NoError(t, err)
	ask := func(rule string) tenants.LimitRequest {
		q, _, err := s.RequestLimit(t.Context(), &visit, tenants.NewLimitRequest{Rule: rule, Had: limit.Limit{Limit: 100}, Asked: 200, Note: "busy"})
		require.NoError(t, err)
		return q
	}
	one, two := ask("one"), ask("two")
	_, _, err = s.RequestLimit(t.Context(), &visit, tenants.NewLimitRequest{Rule: "one", Had: limit.Limit{Limit: 100}, Asked: 200})
	requireConflict(t, err, tenants.CodeRequestOpen)
	_, err = s.ApproveLimitRequest(t.Context(), a, one.ID, tenants.Approval{For: 24 * time.Hour})
	require.NoError(t, err)
	_, err = s.RefuseLimitRequest(t.Context(), a, two.ID, "No.")
	require.NoError(t, err)

	got := bodies(t, s, a)
	require.Len(t, got, 4)
	created := dataOf(t, tenants.LimitRequestCreated, got[0])
	require.Equal(t, []any{one.ID.String(), "ada", "one", 100.0, 200.0, "busy", "open", nil}, []any{created["id"], created["subject"],
		created["rule"], created["limit"], created["requested"], created["note"], created["state"], created["granted"]})
	dataOf(t, tenants.LimitRequestCreated, got[1])
	approved := dataOf(t, tenants.LimitRequestSettled, got[2])
	require.Equal(t, []any{"approved", 200.0}, []any{approved["state"], approved["granted"]})
	require.Equal(t, "refused", dataOf(t, tenants.LimitRequestSettled, got[3])["state"])
}

// A test and a replay are in the trail with the actor.
func TestSendingIsAudited(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	e, _ := mustNotified(t, d.Store, a)
	sent, err := d.Store.TestNotificationEndpoint(t.Context(), a, e.ID)
	require.NoError(t, err)
	_, err = d.Store.ReplayNotification(t.Context(), b, sent.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = d.Store.NotificationDelivery(t.Context(), b, sent.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = d.Store.TestNotificationEndpoint(t.Context(), b, e.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = d.Store.ReplayNotification(t.Context(), a, uuid.New())
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = d.Store.ReplayNotification(t.Context(), a, sent.ID)
	require.NoError(t, err)
	rows, _, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{Kind: "notification_endpoint"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, []string{"replay", "test", "create"}, []string{rows[0].Action, rows[1].Action, rows[2].Action})
	require.Equal(t, tenants.MaskedURL(e.URL), rows[0].Target)
	require.Contains(t, string(rows[0].After), `"type":"test"`)
}

// The backlog, which each instance counts every second, is counted up to a number.
func TestDeliveryBacklogIsBounded(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	backlog := func() int64 {
		n, err := d.Store.DeliveryBacklog(t.Context())
		require.NoError(t, err)
		return n
	}
	deliver := func(a tenants.Actor, state string, count int) {
		e, _ := mustNotified(t, d.Store, a)
		d.Exec(`WITH sent AS (
				INSERT INTO notifications (tenant_id, id, type, body, created_at)
				VALUES ($1, gen_random_uuid(), 'x', '{}', now()) RETURNING id
			)
			INSERT INTO notification_deliveries (tenant_id, id, endpoint_id, notification_id, state, due_at, settled_at, began_at, created_at)
			SELECT $1, gen_random_uuid(), $2, sent.id, $3, CASE WHEN $3 = 'pending' THEN now() END, CASE WHEN $3 <> 'pending' THEN now() END, now(), now()
			FROM sent, generate_series(1, $4::int)`, a.TenantID(), e.ID, state, count)
	}
	deliver(a, tenants.DeliveryDelivered, 300)
	deliver(a, tenants.DeliveryPending, 6_000)
	require.EqualValues(t, 6_000, backlog())
	deliver(b, tenants.DeliveryPending, 6_000)
	require.EqualValues(t, tenants.MostDeliveryBacklog, backlog())
}

// Members who sign in very often do not keep other notifications of their tenant from being sent.
func TestSecurityEventsLeaveRoomForNotifications(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustNotified(t, d.Store, a)
	stored := func(kind string) (n int) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM notifications WHERE tenant_id = $1 AND type = $2", a.TenantID(), kind).Scan(&n))
		})
		return n
	}
	first := stored(tenants.SecurityEventAdded)
	d.Exec(`INSERT INTO notifications (tenant_id, id, type, body, created_at)
		SELECT $1, gen_random_uuid(), 'security.event', '{}', now() FROM generate_series(1, $2::int)`, a.TenantID(), tenants.MaxSecurityNotifications-first-1)
	for range 3 {
		require.NoError(t, d.Store.Notify(t.Context(), a.TenantID(), tenants.Notification{Type: tenants.SecurityEventAdded}))
	}
	require.Equal(t, tenants.MaxSecurityNotifications, stored(tenants.SecurityEventAdded))
	require.NoError(t, d.Store.Notify(t.Context(), a.TenantID(), tenants.Notification{Type: tenants.QuotaReached}))
	require.Equal(t, 1, stored(tenants.QuotaReached))
}
