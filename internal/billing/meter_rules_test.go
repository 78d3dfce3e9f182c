package billing_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// The units of an hour are sent to the meter that their rule had when the hour began, also if the
// rule loses its meter, or is deleted, before the hour is sealed.
func TestPushOfARuleThatLosesItsMeter(t *testing.T) {
	r := newPushRig(t)
	batch := &usage.MeterBatch{Writer: uuid.New(), Sequence: 1, CompleteUntil: time.Now(), Last: true}
	rule := func(slug string, metering limit.Metering, meter string) limit.Rule {
		out := limit.NewRule(slug)
		out.Limit, out.Metering, out.MeterEvent = 100, metering, meter
		out.Window, _ = limit.ParseWindow("1m")
		return out
	}
	names := []string{"again", "deleted", "earlier", "kind", "none", "other", "silent"}
	for _, name := range names {
		_, err := r.store.CreateRule(t.Context(), r.a, rule(name, limit.MeterUnits, "first"))
		require.NoError(t, err)
		batch.Rows = append(batch.Rows, usage.MeterRow{
			MeterKey: usage.MeterKey{Tenant: r.a.TenantID(), StartMS: r.start.UnixMilli(), Subject: "s001", Rule: name},
			Metered:  usage.Metered{Units: 10, Overage: 5, Checks: 1},
		})
	}
	r.metersBefore()
	require.NoError(t, r.store.WriteMetered(t.Context(), batch))
	put := func(name string, metering limit.Metering, meter string) {
		t.Helper()
		_, _, err := r.store.PutRule(t.Context(), r.a, rule(name, metering, meter), tenants.Match{})
		require.NoError(t, err)
	}
	for _, name := range []string{"again", "deleted", "earlier", "unsent"} {
		require.NoError(t, r.store.DeleteRule(t.Context(), r.a, name, tenants.Match{}))
	}
	put("again", limit.MeterOverage, "second")
	put("kind", limit.MeterOverage, "first")
	put("none", limit.MeterNone, "")
	put("other", limit.MeterUnits, "second")
	put("other", limit.MeterUnits, "third")
	put("silent", limit.MeterUnits, "")
	// As if it had been deleted before that hour, in which a server may still have counted for it.
	r.db.Exec("UPDATE ended_meters SET until = $1 WHERE rule = 'earlier'", r.start)
	r.seal()

	list, _, err := r.store.MeterPushes(t.Context(), r.a, "", tenants.Page{})
	require.NoError(t, err)
	got := map[string]string{}
	for _, push := range list {
		got[push.Rule] = push.MeterEvent + " " + push.Kind
	}
	require.Equal(t, map[string]string{
		"api": "api_requests units", "again": "first units", "deleted": "first units", "kind": "first units", "none": "first units",
		"other": "first units", "silent": "first units",
	}, got)
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, _ := conn.Query(ctx, "SELECT rule FROM ended_meters")
		kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotContains(t, kept, "earlier", "the pushes of its hours are created")
		require.NotContains(t, kept, "unsent", "it had no meter")
	})
}
