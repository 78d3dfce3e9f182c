package billing_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// oweNothing adds so many subjects without units to send, before all others.
func (r *pushRig) oweNothing(subjects int) {
	r.t.Helper()
	r.db.Exec(`INSERT INTO metered_usage (tenant_id, start, subject, rule, units, overage_units, checks, late_units, free_units)
		SELECT $1, $2, 'm' || lpad(n::text, 6, '0'), 'api', 1, 0, 1, 0, 1 FROM generate_series(1, $3) AS n`, r.a.TenantID(), r.start, subjects)
}

func (r *pushRig) claim() *tenants.MeterPushWork {
	r.t.Helper()
	due, err := r.store.DueMeterPushes(r.t.Context(), 10)
	require.NoError(r.t, err)
	require.Len(r.t, due, 1)
	work, err := r.store.ClaimMeterPush(r.t.Context(), due[0], takesAll)
	require.NoError(r.t, err)
	return work
}

const allUnits = 200 * 201 / 2 // of the subjects of a pushRig

// A push looks at so many subjects at a time, and continues behind them, so that very many who owe
// nothing neither end it nor make it slow.
func TestPushOfManySubjectsThatOweNothing(t *testing.T) {
	r := newPushRig(t)
	r.oweNothing(45_000)
	r.seal()
	for part := range 2 {
		work := r.claim()
		require.Empty(t, work.Items, "part %d", part)
		require.NoError(t, r.store.SettleMeterPush(t.Context(), work, tenants.PushResult{}))
		push := r.only()
		require.Equal(t, "pending", push.State())
	}
	require.NoError(t, r.runner.Push(t.Context()))
	require.EqualValues(t, allUnits-6-8, r.sum(), "all but a subject without a customer, and one that the provider refuses")
	push := r.only()
	require.Equal(t, []int64{198, 1, 1}, []int64{push.Pushed, push.Parked, push.Failed})
	require.True(t, push.Complete)
}

// A part that may have been sent without an answer stays as it was, however few subjects it has.
// Later ones were not sent.
func TestUnansweredPartOfFewSubjects(t *testing.T) {
	r := newPushRig(t)
	r.oweNothing(19_990)
	r.seal()
	r.customer("s005", "cus_s005")
	r.customer("s007", "cus_s007")
	r.customer("s100", "")
	r.lose(10)
	const first = 10 * 11 / 2
	require.EqualValues(t, first, r.sum(), "s000 to s009 are taken, without an answer")
	r.pastHours(25)
	r.forget()
	r.again()
	push := r.only()
	require.Equal(t, []int64{189, 1, 10}, []int64{push.Pushed, push.Parked, push.Failed})
	require.EqualValues(t, allUnits-101, r.sum(), "no event counts twice, and all others are sent")
	r.customer("s100", "cus_s100")
	r.again()
	require.EqualValues(t, allUnits, r.sum())
}

// The same for a part that an earlier version has claimed, which had always as many subjects.
func TestUnansweredPartOfAnEarlierVersion(t *testing.T) {
	r := newPushRig(t)
	r.oweNothing(39_990)
	r.seal()
	r.db.Exec("UPDATE metered_pushes SET unanswered_at = now() - interval '24 hours'")
	require.NoError(t, r.runner.Push(t.Context()))
	push := r.only()
	require.EqualValues(t, 160, push.Failed, "the part that was under way")
	require.EqualValues(t, 40, push.Pushed)
	require.Nil(t, r.unanswered())
}

// unreadable makes the units of a subject unreadable.
func (r *pushRig) unreadable(subject string) {
	r.t.Helper()
	r.db.Exec("CREATE FUNCTION fail() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this row'; END $$")
	r.db.Exec("CREATE POLICY fail ON metered_usage AS RESTRICTIVE FOR SELECT USING (subject <> '" + subject + "' OR fail())")
}

// unreadableHours adds so many pushes of earlier hours whose units cannot be read. They are due
// before all others.
func (r *pushRig) unreadableHours(hours int) {
	r.t.Helper()
	r.db.Exec(`INSERT INTO metered_usage SELECT (jsonb_populate_record(o, jsonb_build_object('subject', 'x', 'start', o.start - n * interval '1 hour'))).*
		FROM metered_usage o, generate_series(1, $1) n WHERE subject = 's001' AND rule = 'api'`, hours)
	r.db.Exec(`INSERT INTO metered_pushes SELECT (jsonb_populate_record(o, jsonb_build_object('id', gen_random_uuid(), 'start', o.start - n * interval '1 hour',
		'due_at', o.due_at - interval '1 hour'))).* FROM metered_pushes o, generate_series(1, $1) n`, hours)
	r.db.Exec("CREATE FUNCTION fail() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this row'; END $$")
	r.db.Exec("CREATE POLICY fail ON metered_usage AS RESTRICTIVE FOR SELECT USING (subject <> 'x' OR fail())")
}

// Pushes that cannot be read say so and wait, and the tenant's other pushes are sent, however many
// there are. Nothing of them was sent, so nothing of them is too old later.
func TestPushesThatCannotBeReadWait(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	readable := r.only().ID
	r.unreadableHours(210)
	require.Error(t, r.runner.Push(t.Context()))
	require.EqualValues(t, allUnits-6-8, r.sum())

	pushes, _, err := r.store.MeterPushes(t.Context(), r.a, "", tenants.Page{Limit: 100})
	require.NoError(t, err)
	for _, push := range pushes {
		if push.ID == readable {
			continue
		}
		require.Equal(t, "retrying", push.State())
		require.Contains(t, push.Why, "the units cannot be read")
		require.Positive(t, push.Attempts)
		require.True(t, push.DueAt.After(push.UpdatedAt))
	}
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var unanswered int
		require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM metered_pushes WHERE unanswered_at IS NOT NULL").Scan(&unanswered))
		require.Zero(t, unanswered)
	})
}

// Units are read after the claim has ended: a read that takes long keeps none of the connections
// for the tasks of all tenants.
func TestUnitsAreReadAfterTheClaim(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	due, err := r.store.DueMeterPushes(t.Context(), 10)
	require.NoError(t, err)
	ended := make(chan error, 1)
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "LOCK TABLE metered_usage IN ACCESS EXCLUSIVE MODE")
		require.NoError(t, err)
		go func() {
			_, err := r.store.ClaimMeterPush(t.Context(), due[0], takesAll)
			ended <- err
		}()
		var writes bool
		require.Eventually(t, func() bool {
			err := tx.QueryRow(ctx, `SELECT a.backend_xid IS NOT NULL FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE l.relation = 'metered_usage'::regclass AND NOT l.granted`).Scan(&writes)
			return err == nil
		}, time.Minute, time.Millisecond)
		require.NoError(t, tx.Rollback(ctx))
		require.False(t, writes, "it has a claim that is not stored yet")
	})
	require.NoError(t, <-ended)
}

// Only what is sent counts as sent: not a part without customers, and not one that a server could
// not read. A server that took too long changes nothing of the part that another one has now.
func TestClaimIsNoAttempt(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.db.Exec("UPDATE subjects SET billing_ref = ''")
	require.Len(t, r.claim().Items, 160)
	require.Nil(t, r.unanswered(), "nobody has a customer")

	r.customer("s001", "cus_s001")
	r.db.Exec("UPDATE metered_pushes SET due_at = now()")
	late := r.claim()
	require.Equal(t, late.Now, r.unanswered().UTC())
	require.NoError(t, r.store.PostponeMeterPush(t.Context(), late, "why", time.Hour))
	push := r.only()
	require.Equal(t, []any{"why", 1}, []any{push.Why, push.Attempts})
	require.Nil(t, r.unanswered())

	r.db.Exec("UPDATE metered_pushes SET due_at = now()")
	mine := r.claim()
	require.NoError(t, r.store.PostponeMeterPush(t.Context(), late, "why", time.Hour))
	require.Equal(t, mine.Now, r.unanswered().UTC())
	require.Equal(t, 1, r.only().Attempts)
}
