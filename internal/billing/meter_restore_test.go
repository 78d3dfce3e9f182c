package billing_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// restored says that the database is a backup, as docs/operations.md tells operators to.
func (r *pushRig) restored() {
	r.t.Helper()
	const statement = "UPDATE config_version SET epoch = gen_random_uuid()"
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(r.t, err)
	require.Contains(r.t, string(text), "\n"+statement+";\n")
	r.db.Exec(statement)
}

// What was sent after the backup of a restored database may be there in the backup as not sent. It
// is sent again only as long as the provider certainly recognises it.
func TestPushAfterARestore(t *testing.T) {
	const all = 200*201/2 - 6 - 8 // s005 has no customer, s007 is refused
	backups := map[string]func(r *pushRig){
		"before the push was created": func(r *pushRig) {
			r.db.Exec("DELETE FROM metered_pushes")
			r.db.Exec("UPDATE metering_state SET sealed_until = $1, pushes_until = $1, pushes_rule = ''", r.start)
		},
		"before it was sent": func(r *pushRig) {
			r.db.Exec("DELETE FROM metered_push_problems")
			r.db.Exec("UPDATE metered_pushes SET after_subject = '', pushed = 0, pushed_units = 0, complete = false, due_at = now()")
		},
		"after a part of it was sent": func(r *pushRig) {
			r.db.Exec("DELETE FROM metered_push_problems WHERE subject > 's003'")
			r.db.Exec("UPDATE metered_pushes SET after_subject = 's003', pushed = 4, pushed_units = 10, complete = false, due_at = now()")
		},
	}
	for name, backup := range backups {
		for _, hours := range []int{1, 25} {
			t.Run(name, func(t *testing.T) {
				r := newPushRig(t)
				r.seal()
				r.again()
				require.EqualValues(t, all, r.sum())
				backup(r)
				r.restored()
				if r.pushes() == 0 {
					r.seal()
				}
				r.pastHours(hours)
				if hours > 23 {
					r.forget()
				}
				r.again()
				require.EqualValues(t, all, r.sum(), "counted twice")
				push := r.only()
				if hours < 23 {
					require.EqualValues(t, 198, push.Pushed, "the provider recognises them")
					return
				}
				require.EqualValues(t, 200, push.Pushed+push.Failed)
				require.Contains(t, push.Problems[0].Why, "compare with the provider")
			})
		}
	}
}

func (r *pushRig) pushes() int {
	r.t.Helper()
	pushes, _, err := r.store.MeterPushes(r.t.Context(), r.a, "", tenants.Page{})
	require.NoError(r.t, err)
	return len(pushes)
}

// The same with subjects that were parked in the backup, and hours that end after the restore are
// sent as usual.
func TestParkedSubjectsAfterARestore(t *testing.T) {
	r := newParkedRig(t)
	r.restored()
	require.Nil(t, r.unanswered(), "everything else was sent")
	r.customer("s003", "cus_s003")
	before := r.sum()
	r.pastHours(20)
	r.again()
	require.EqualValues(t, before+4, r.sum(), "the provider would recognise it")
	r.customer("s100", "cus_s100")
	r.pastHours(5)
	r.again()
	require.EqualValues(t, before+4, r.sum(), "s100 may have been counted before")
	require.Contains(t, r.only().Problems[0].Why, "compare with the provider")
}

// The hour that is not over at the restore was certainly not sent.
func TestHourOfTheRestore(t *testing.T) {
	r := newPushRig(t)
	r.restored()
	r.db.Exec("UPDATE restores SET restored_at = $1::timestamptz + interval '59 minutes'", r.start)
	r.seal()
	require.Nil(t, r.unanswered())
}

// An instance that has claimed a part before the restore is noted does not erase the note.
func TestPushClaimedBeforeTheRestore(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	tasks, err := r.store.DueMeterPushes(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	for _, result := range []tenants.PushResult{{}, {Why: "refused"}} {
		work, err := r.store.ClaimMeterPush(t.Context(), tasks[0], takesAll)
		require.NoError(t, err)
		require.NotNil(t, work)
		r.restored()
		require.NoError(t, r.store.SettleMeterPush(t.Context(), work, result))
		noted := r.unanswered()
		require.NotNil(t, noted)
		require.Equal(t, r.start.Add(time.Hour), noted.UTC())
	}
}

// The statement that notes a restore locks pushes and then subjects that were not sent. So does the
// outcome of a part, or each of them could wait for the other.
func TestOutcomeLocksItsPushFirst(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	tasks, err := r.store.DueMeterPushes(t.Context(), 1)
	require.NoError(t, err)
	work, err := r.store.ClaimMeterPush(t.Context(), tasks[0], takesAll)
	require.NoError(t, err)
	item := &work.Items[0]
	item.Outcome, item.Why = tenants.PushParked, tenants.PushNoCustomer
	r.db.Exec(`INSERT INTO metered_push_problems (tenant_id, push_id, subject, units, outcome, why) VALUES ($1, $2, $3, $4, 'parked', 'before')`,
		work.Tenant, work.ID, item.Subject, item.Units)
	done := make(chan error, 1)
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "UPDATE metered_pushes SET due_at = due_at")
		require.NoError(t, err)
		go func() { done <- r.store.SettleMeterPush(t.Context(), work, tenants.PushResult{Done: 1}) }()
		r.blocked("metered_pushes")
		_, err = tx.Exec(ctx, "SELECT FROM metered_push_problems FOR UPDATE NOWAIT")
		require.NoError(t, err)
	})
	require.NoError(t, <-done)
	require.Equal(t, tenants.PushNoCustomer, r.only().Problems[0].Why)
}
