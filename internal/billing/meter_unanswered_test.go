package billing_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// pastHours makes every attempt of the pushes so many hours older, as if that time had passed.
func (r *pushRig) pastHours(hours int) {
	r.t.Helper()
	for _, table := range []string{"metered_pushes", "metered_push_problems"} {
		r.db.Exec("UPDATE "+table+" SET unanswered_at = unanswered_at - $1 * interval '1 hour'", hours)
	}
}

// customer gives a subject a customer of the provider, or none.
func (r *pushRig) customer(subject, customer string) {
	r.t.Helper()
	_, _, err := r.store.PutSubject(r.t.Context(), r.a, tenants.Subject{Subject: subject, BillingRef: customer}, tenants.Match{})
	require.NoError(r.t, err)
}

// forget makes the provider count again what it counted before, as it does after a day.
func (r *pushRig) forget() {
	r.stripe.set(func(f *fakeStripe) { f.meter.seen = map[string]bool{} })
}

// lose is an attempt whose first events are taken without an answer.
func (r *pushRig) lose(events int) {
	r.t.Helper()
	r.stripe.set(func(f *fakeStripe) { f.meter.lose = events })
	// The transport would repeat a request on a connection that was used before.
	once := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.NoError(r.t, billing.New(billing.Options{Store: r.store, StripeURL: r.stripe.url, HTTP: once}).Push(r.t.Context()))
}

// loseFirst is an attempt whose first events, of s000 to s015, are taken without an answer. It
// returns their units.
func (r *pushRig) loseFirst() int64 {
	r.t.Helper()
	for _, subject := range []string{"s005", "s007"} {
		r.customer(subject, "cus_"+subject)
	}
	r.lose(16)
	sum := r.sum()
	require.EqualValues(r.t, 16*17/2, sum, "the first group is taken")
	require.Zero(r.t, r.only().Pushed, "and has no answer")
	return sum
}

func (r *pushRig) unanswered() (at *time.Time) {
	r.t.Helper()
	r.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(r.t, conn.QueryRow(ctx, "SELECT unanswered_at FROM metered_pushes").Scan(&at))
	})
	return at
}

// Events that the provider may have taken stay unsure however later attempts fail: they are not
// sent again when it has forgotten their identifiers.
func TestPushRemembersTheFirstAttempt(t *testing.T) {
	ends := map[string]func(r *pushRig){
		"refused connection": func(r *pushRig) {
			runner := billing.New(billing.Options{Store: r.store, StripeURL: "http://127.0.0.1:1"})
			require.NoError(r.t, runner.Push(r.t.Context()))
		},
		"revoked key": func(r *pushRig) {
			r.stripe.set(func(f *fakeStripe) { f.key = "rk_test_revoked" })
			require.NoError(r.t, r.runner.Push(r.t.Context()))
			r.stripe.set(func(f *fakeStripe) { f.key = "rk_test_abcdefgh" })
		},
	}
	for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		ends[fmt.Sprint(status)] = func(r *pushRig) {
			r.refuseFrom(0, status)
			require.NoError(r.t, r.runner.Push(r.t.Context()))
			r.refuseFrom(0, 0)
		}
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r := newPushRig(t)
			r.seal()
			first := r.loseFirst()
			since := r.unanswered()
			require.NotNil(t, since)

			r.db.Exec("UPDATE metered_pushes SET due_at = now()")
			end(r)
			require.Equal(t, 2, r.only().Attempts)
			require.Equal(t, since, r.unanswered(), "the first attempt has no answer yet")

			r.pastHours(25)
			r.forget()
			r.again()
			require.EqualValues(t, 16, r.only().Failed, "later ones were not sent")
			require.Contains(t, r.only().Problems[0].Why, "compare with the provider")
			const others = 200*201/2 - 16*17/2
			require.Equal(t, first+others, r.sum(), "no event counts twice, and later ones are sent")
			require.Nil(t, r.unanswered(), "everything is settled")
		})
	}
}

// An event that may have been taken stays as old as it is while its subject has no customer.
// Subjects that had none at that attempt are sent whenever they get one.
func TestParkedEventThatMayHaveBeenTaken(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.customer("s100", "")
	r.customer("s120", "")
	r.loseFirst()
	r.customer("s003", "")
	r.customer("s120", "cus_s120")
	r.again()
	require.EqualValues(t, 2, r.only().Parked, "s003 and s100")
	require.EqualValues(t, 198, r.only().Pushed)
	const all = 200 * 201 / 2
	require.EqualValues(t, all-101, r.sum(), "the first attempt took s003")

	r.pastHours(25)
	r.forget()
	r.customer("s003", "cus_s003")
	r.customer("s100", "cus_s100")
	r.again()
	push := r.only()
	require.EqualValues(t, 1, push.Failed)
	require.Equal(t, "s003", push.Problems[0].Subject)
	require.Contains(t, push.Problems[0].Why, "compare with the provider")
	require.EqualValues(t, all, r.sum(), "no event counts twice, and s100 is sent")
}

// newParkedRig returns a pushRig in which s003, s005 and s100 are parked, and all others were sent.
func newParkedRig(t *testing.T) *pushRig {
	t.Helper()
	r := newPushRig(t)
	r.seal()
	for _, subject := range []string{"s003", "s005", "s100"} {
		r.customer(subject, "")
	}
	r.again()
	require.EqualValues(t, 3, r.only().Parked)
	return r
}

// The same with an attempt for subjects that were parked.
func TestParkedEventThatMayHaveBeenTakenLater(t *testing.T) {
	r := newParkedRig(t)
	r.customer("s003", "cus_s003")
	r.db.Exec("UPDATE metered_pushes SET due_at = now()")
	r.lose(1)
	const all = 200*201/2 - 8 // s007 is refused
	require.EqualValues(t, all-6-101, r.sum(), "s003 is taken, without an answer")
	r.customer("s003", "")
	r.again()
	require.EqualValues(t, 3, r.only().Parked)

	r.pastHours(25)
	r.forget()
	r.customer("s003", "cus_s003")
	r.customer("s100", "cus_s100")
	r.again()
	require.EqualValues(t, 1, r.only().Parked, "s005")
	require.EqualValues(t, all-6, r.sum(), "no event counts twice, and s100 is sent")
}

// An instance is killed after the provider has taken the event of a subject that was parked, and
// the subject has no customer at the next attempt.
func TestKilledWhileAParkedSubjectIsSent(t *testing.T) {
	r := newParkedRig(t)
	before := r.sum()
	r.customer("s003", "cus_s003")
	r.db.Exec("UPDATE metered_pushes SET due_at = now()")
	due, err := r.store.DueMeterPushes(t.Context(), 10)
	require.NoError(t, err)
	work, err := r.store.ClaimMeterPush(t.Context(), due[0], takesAll)
	require.NoError(t, err)
	require.Len(t, work.Items, 1, "s003: the others still have no customer")
	item := &work.Items[0]
	require.NotNil(t, item.Endpoint)
	key, err := r.store.BillingAPIKey(*item.Endpoint, work.Tenant)
	require.NoError(t, err)
	failed := subscription.NewClient(key, r.stripe.url, nil).SendMeterEvent(t.Context(), subscription.MeterEvent{
		Name: work.MeterEvent, Customer: item.Customer, Value: item.Units, Identifier: work.Identifier(item), At: work.Start.Add(time.Hour - time.Second),
	})
	require.Nil(t, failed)
	require.EqualValues(t, before+4, r.sum())
	// It is killed here, before it has settled the attempt. The next one finds no customer.
	r.customer("s003", "")
	r.again()
	require.EqualValues(t, 3, r.only().Parked)
	r.pastHours(25)
	r.forget()
	r.customer("s003", "cus_s003")
	r.again()
	require.EqualValues(t, before+4, r.sum(), "counted twice")
}

// What was certainly not taken is sent whenever it can be.
func TestParkedSubjectAfterALongRefusal(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.customer("s003", "")
	r.again()
	require.EqualValues(t, 2, r.only().Parked, "s003 and s005")
	before := r.sum()
	r.customer("s003", "cus_s003")
	r.refuseFrom(0, http.StatusTooManyRequests)
	r.again()
	push := r.only()
	require.Equal(t, "retrying", push.State())
	r.customer("s003", "")
	r.refuseFrom(0, 0)
	r.again()
	r.pastHours(25)
	r.customer("s003", "cus_s003")
	r.again()
	require.EqualValues(t, before+4, r.sum())
}

// refuseFrom makes the provider answer the events of subjects from the first on with a status.
func (r *pushRig) refuseFrom(first, status int) {
	r.stripe.set(func(f *fakeStripe) {
		f.meter.refuse = map[string]int{}
		for i := first; i < 200; i++ {
			f.meter.refuse[fmt.Sprintf("cus_s%03d", i)] = status
		}
	})
}

// An attempt that settles some events leaves the others as old as they were, whether it may have
// sent them again or not.
func TestPushRemembersThroughProgress(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			r := newPushRig(t)
			r.seal()
			first := r.loseFirst()
			r.pastHours(12)
			since := r.unanswered()

			r.refuseFrom(3, status)
			r.again()
			require.EqualValues(t, 3, r.only().Pushed, "s000 to s002 are settled")
			require.Equal(t, since, r.unanswered(), "the others were sent by the first attempt")

			r.pastHours(12)
			r.forget()
			r.refuseFrom(0, 0)
			r.again()
			require.EqualValues(t, 13, r.only().Failed, "s003 to s015: later ones were not sent")
			const others = 200*201/2 - 16*17/2
			require.Equal(t, first+others, r.sum(), "no event counts twice")
		})
	}
}

// Events that the provider certainly did not take are not unsure, whichever others of their group
// have no customer, or are refused: they are sent after an outage of any length.
func TestPushAfterALongRefusal(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.refuseFrom(0, http.StatusTooManyRequests)
	for range 2 {
		r.again()
		push := r.only()
		require.Equal(t, "retrying", push.State())
		require.Nil(t, r.unanswered())
	}
	r.refuseFrom(0, 0)
	r.again()
	require.EqualValues(t, 198, r.only().Pushed)
}
