package billing_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/billing"
)

// A push that failed is tried again a minute later, while a part of another tenant is on its way
// all the time, and the log says which it was.
func TestFailedPushIsTriedAgainDuringOthers(t *testing.T) {
	r := newPushRig(t)
	r.otherTenant(1)
	r.seal()
	r.db.Exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$`)
	r.db.Exec(`CREATE TRIGGER fail BEFORE UPDATE ON metered_pushes FOR EACH ROW WHEN (NEW.tenant_id = '` + r.a.TenantID().String() + `') EXECUTE FUNCTION fail()`)
	slow := slowFor{"cus_b", make(chan struct{})}
	var log logged
	runner := billing.New(billing.Options{
		Store: r.store, StripeURL: r.stripe.url, HTTP: &http.Client{Transport: slow}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ended := make(chan error, 1)
	go func() { ended <- runner.Push(t.Context()) }()
	failed := "tenant_id=" + r.a.TenantID().String() + " push=" + r.only().ID.String()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), failed) }, time.Minute, 10*time.Millisecond)
	r.db.Exec("DROP TRIGGER fail ON metered_pushes")
	r.pass(time.Minute)
	require.Eventually(t, func() bool { return r.sum() == allUnits-6-8 }, time.Minute, 10*time.Millisecond)
	close(slow.wait)
	require.ErrorContains(t, <-ended, "not now")
}

// The log has one failure of a tenant in a minute, with its push, and those of others.
func TestFailedPushesAreLogged(t *testing.T) {
	r := newPushRig(t)
	r.otherTenant(1)
	r.seal()
	r.db.Exec("UPDATE metered_usage SET subject = 'x' WHERE subject = 'b000'")
	r.db.Exec("UPDATE metered_pushes SET start = start - interval '10 hours' WHERE tenant_id <> $1", r.a.TenantID())
	r.db.Exec("UPDATE metered_usage SET start = start - interval '10 hours' WHERE tenant_id <> $1", r.a.TenantID())
	r.unreadableHours(3)
	var log logged
	runner := billing.New(billing.Options{Store: r.store, StripeURL: r.stripe.url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	count := func() int { return strings.Count(log.String(), "cannot push metered usage") }
	require.Error(t, runner.Push(t.Context()))
	require.EqualValues(t, allUnits-6-8, r.sum())
	require.Equal(t, 2, count(), log.String())
	r.pass(time.Minute)
	r.db.Exec("UPDATE metered_pushes SET due_at = now() WHERE due_at IS NOT NULL")
	require.Error(t, runner.Push(t.Context()))
	require.Equal(t, 4, count(), log.String())
}
