package tenants_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// expired insert $1 rows that have expired into each table, without the rows to which they refer.
var expired = map[string]string{
	"idempotency_keys": `INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
		SELECT t.id, 'k' || n, sha256(''), 'in_progress', t.id, now(), now() - interval '1 s' FROM tenants t, generate_series(1, $1::int) n`,
	"subject_tombstones": `INSERT INTO subject_tombstones (tenant_id, subject, deleted_at, version)
		SELECT t.id, 's' || n, now() - interval '2 days', n FROM tenants t, generate_series(1, $1::int) n`,
	"sessions": `INSERT INTO sessions (token_hash, id, person_id, created_at, seen_at)
		SELECT sha256(n::text::bytea), gen_random_uuid(), gen_random_uuid(), now() - interval '1 year', now() FROM generate_series(1, $1::int) n`,
	"portal_sessions": `INSERT INTO portal_sessions (tenant_id, id, link_id, token_hash, created_at, expires_at)
		SELECT t.id, gen_random_uuid(), t.id, sha256(n::text::bytea), now(), now() - interval '1 s' FROM tenants t, generate_series(1, $1::int) n`,
	"portal_links": `INSERT INTO portal_links (tenant_id, id, subject, token_hash, single_use, created_by, created_at, expires_at)
		SELECT t.id, gen_random_uuid(), 's', sha256(n::text::bytea), false, '', now(), now() - interval '1 year' FROM tenants t, generate_series(1, $1::int) n`,
	"limit_requests": `INSERT INTO limit_requests (tenant_id, id, subject, rule_id, had, asked, note, state, settled_at, created_at)
		SELECT t.id, gen_random_uuid(), 's', t.id, 1, 2, '', 'refused', now() - interval '5 years', now() FROM tenants t, generate_series(1, $1::int) n`,
	"person_addresses": `INSERT INTO person_addresses (person_id, address, seen_at)
		SELECT gen_random_uuid(), 'a', now() - interval '5 years' FROM generate_series(1, $1::int) n`,
	"notifications": `INSERT INTO notifications (tenant_id, id, type, body, created_at)
		SELECT t.id, gen_random_uuid(), 'test', '{}', now() - interval '5 years' FROM tenants t, generate_series(1, $1::int) n`,
	"quota_notices": `INSERT INTO quota_notices (tenant_id, rule, window_end, percent, used, quota)
		SELECT t.id, 'r' || n, now() - interval '2 days', 80, 1, 1 FROM tenants t, generate_series(1, $1::int) n`,
	"device_logins": `INSERT INTO device_logins (id, device_hash, user_hash, machine, address, scopes, state, interval_s, created_at, expires_at)
		SELECT gen_random_uuid(), sha256(n::text::bytea), sha256(n::text::bytea), 'm', '', '{check}', 'denied', 5, now(), now() - interval '1 s' FROM generate_series(1, $1::int) n`,
	"account_links": `INSERT INTO account_links (token_hash, purpose, email, created_at, expires_at)
		SELECT sha256(n::text::bytea), 'signup', 'ada@example.com', now(), now() - interval '1 s' FROM generate_series(1, $1::int) n`,
	"billing_events": `INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, outcome, settled_at)
		SELECT t.id, gen_random_uuid(), t.id, 'evt' || n, 'x', now(), now(), '', 'applied', now() - interval '91 days' FROM tenants t, generate_series(1, $1::int) n`,
}

// No statement of Purge deletes more than 1000 rows, and all of them delete what has expired.
func TestPurgeInBatches(t *testing.T) {
	t.Parallel()
	const rows = 1001
	d := tenantstest.New(t)
	d.Tenant("tenant-a")
	d.Exec("CREATE TABLE deleted_rows (of text, n bigint)")
	d.Exec(`CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN INSERT INTO deleted_rows SELECT TG_TABLE_NAME, count(*) FROM gone; RETURN NULL; END $$`)
	for table, insert := range expired {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "SET session_replication_role = replica")
			require.NoError(t, err)
			_, err = conn.Exec(ctx, insert, rows)
			require.NoError(t, err)
		})
		d.Exec(fmt.Sprintf("CREATE TRIGGER count_deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_deleted()", table))
	}
	require.NoError(t, d.Store.Purge(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for table := range expired {
			found, err := conn.Query(ctx, "SELECT n FROM deleted_rows WHERE of = $1 AND n > 0", table)
			require.NoError(t, err)
			batches, err := pgx.CollectRows(found, pgx.RowTo[int64])
			require.NoError(t, err)
			require.Equal(t, []int64{1000, 1}, batches, table)
		}
	})
}

// What cannot be deleted does not keep the rest, and is reported.
func TestPurgeDespiteAnError(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	d.Tenant("tenant-a")
	for _, table := range []string{"idempotency_keys", "account_links"} {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, expired[table], 10)
			require.NoError(t, err)
		})
	}
	d.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$`)
	d.Exec("CREATE TRIGGER refuse BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION refuse()")
	require.ErrorContains(t, d.Store.Purge(t.Context()), "answers to idempotent requests")
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var left int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM account_links").Scan(&left))
		require.Zero(t, left)
	})
}

// Events of billing systems are deleted 90 days after they were decided. Those that wait, or have
// failed, are kept.
func TestPurgeBillingEvents(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	e, err := d.Store.CreateBillingEndpoint(t.Context(), a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	day := 24 * time.Hour
	add := func(name, outcome string, age time.Duration, due bool) {
		at := time.Now().Add(-age)
		var dueAt *time.Time
		if due {
			dueAt = &at
		}
		d.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, outcome, settled_at, due_at)
			VALUES ($1, gen_random_uuid(), $2, $3, 'x', $4, $4, '', nullif($5, ''), $4, $6)`, a.TenantID(), e.ID, name, at, outcome, dueAt)
	}
	for _, outcome := range tenants.EventOutcomes {
		add("old "+outcome, outcome, 91*day, false)
		add("young "+outcome, outcome, 89*day, false)
	}
	add("old due again", tenants.EventApplied, 91*day, true)
	add("old undecided", "", 91*day, true)
	require.NoError(t, d.Store.Purge(t.Context()))
	events, _, err := d.Store.BillingEvents(t.Context(), a, tenants.BillingEventFilter{}, tenants.Page{Limit: 100})
	require.NoError(t, err)
	var left []string
	for _, e := range events {
		if old, ok := strings.CutPrefix(e.ProviderID, "old "); ok {
			left = append(left, old)
		}
	}
	slices.Sort(left)
	require.Equal(t, []string{"due again", tenants.EventFailed, tenants.EventParked, "undecided"}, left)
	require.Len(t, events, len(left)+len(tenants.EventOutcomes))
}
