package billing_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// problems returns the version of each row about a subject that was not sent.
func (r *pushRig) problems() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT subject, ctid::text || ' ' || xmin::text FROM metered_push_problems")
		require.NoError(r.t, err)
		var subject, version string
		_, err = pgx.ForEachRow(rows, []any{&subject, &version}, func() error { out[subject] = version; return nil })
		require.NoError(r.t, err)
	})
	return out
}

// Subjects that still have no customer are neither read nor written again, however many there are.
func TestParkedSubjectsAreLeftAlone(t *testing.T) {
	r := newPushRig(t)
	r.db.Exec("UPDATE subjects SET billing_ref = ''")
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	require.EqualValues(t, 200, r.only().Parked)
	r.db.Exec(`INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why)
		SELECT tenant_id, id, 't' || n, 1, 'parked', '' FROM metered_pushes, generate_series(1, 5000) AS n`)
	before := r.problems()
	r.again()
	require.True(t, maps.Equal(before, r.problems()), "rows were written")
	r.db.Exec("UPDATE metered_pushes SET due_at = now()")
	due, err := r.store.DueMeterPushes(t.Context(), 10)
	require.NoError(t, err)
	work, err := r.store.ClaimMeterPush(t.Context(), due[0], takesAll)
	require.NoError(t, err)
	require.Empty(t, work.Items)

	r.customer("s150", "cus_s150")
	r.customer("t999", "cus_s007") // the last one
	r.send(r.event("customer.subscription.created", sub("sub_1", "cus_s008", "active", "t500", "price_pro")))
	r.db.Exec("UPDATE subjects SET billing_ref = '' WHERE subject = 't500'") // it has only the subscription
	r.stripe.set(func(f *fakeStripe) { f.meter.customers["cus_s007"] = true })
	r.again()
	require.EqualValues(t, 151+1+1, r.sum())
	after := r.problems()
	delete(before, "s150")
	delete(before, "t500")
	delete(before, "t999")
	require.True(t, maps.Equal(before, after), "rows were written")

	r.db.Exec("UPDATE metered_pushes SET start = start - interval '35 days'")
	r.again()
	push := r.only()
	require.Zero(t, push.Parked)
	require.EqualValues(t, len(before), push.Failed)
	require.Contains(t, push.Problems[0].Why, "older than the provider takes")
	require.Nil(t, push.DueAt)
}

// Parked subjects are tried again after an hour, then after as long as their hour is over, and at
// least once a day.
func TestParkedSubjectsAreTriedLessOften(t *testing.T) {
	r := newPushRig(t)
	r.db.Exec("UPDATE subjects SET billing_ref = ''")
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	for _, hours := range []int{0, 4, 12, 100} {
		r.db.Exec("UPDATE metered_pushes SET start = $1", r.start.Add(-time.Duration(hours)*time.Hour))
		r.again()
		push := r.only()
		require.EqualValues(t, 200, push.Parked)
		// The hour of r.start was over between one and two hours ago.
		wait, least := push.DueAt.Sub(time.Now()), time.Duration(min(hours+1, 24))*time.Hour
		require.Greater(t, wait, least-10*time.Minute, "%d", hours)
		require.Less(t, wait, least+70*time.Minute, "%d", hours)
	}
}
