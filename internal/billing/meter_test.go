package billing_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// meterEvents is the part of the fake that takes meter events, as Stripe does: an identifier counts
// once, and a customer must exist.
type meterEvents struct {
	name      string           // of the meter; others are refused
	customers map[string]bool  // those that exist
	seen      map[string]bool  // identifiers
	values    map[string]int64 // by customer
	stamps    map[int64]bool
	lose      int // this many events are taken without an answer
	// refuse answers events of some customers with this status, without taking them.
	refuse map[string]int
}

func (f *fakeStripe) takeMeterEvent(w http.ResponseWriter, r *http.Request) {
	value, err := strconv.ParseInt(r.FormValue("payload[value]"), 10, 64)
	customer, identifier := r.FormValue("payload[stripe_customer_id]"), r.FormValue("identifier")
	switch {
	case err != nil || identifier == "" || len(identifier) > 100:
		f.fail(w, http.StatusBadRequest, "parameter_invalid")
		return
	case r.FormValue("event_name") != f.meter.name:
		f.fail(w, http.StatusBadRequest, "")
		return
	case !f.meter.customers[customer]:
		f.fail(w, http.StatusBadRequest, "resource_missing")
		return
	case f.meter.refuse[customer] != 0:
		f.fail(w, f.meter.refuse[customer], "")
		return
	case f.meter.seen[identifier]:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error": {"type": "invalid_request_error", "message": "An event already exists with identifier %s."}}`, identifier)
		return
	}
	f.meter.seen[identifier] = true
	f.meter.values[customer] += value
	stamp, _ := strconv.ParseInt(r.FormValue("timestamp"), 10, 64)
	f.meter.stamps[stamp] = true
	if f.meter.lose > 0 {
		f.meter.lose--
		panic(http.ErrAbortHandler)
	}
	f.answer(w, obj{
		"object": "billing.meter_event", "identifier": identifier, "event_name": f.meter.name, "created": time.Now().Unix(), "livemode": false,
		"payload": obj{"stripe_customer_id": customer, "value": r.FormValue("payload[value]")}, "timestamp": stamp,
	})
}

type pushRig struct {
	*stack
	stripe *fakeStripe
	start  time.Time // of the hour with usage
}

// newPushRig returns a rig with a rule whose usage goes to the meter api_requests, and with usage
// of 200 subjects in the last hour but one, which is not sealed yet.
func newPushRig(t *testing.T) *pushRig {
	t.Helper()
	fake := newFakeStripe(t)
	r := &pushRig{stack: newStack(t, tenants.BillingEndpoint{}, fake), stripe: fake}
	r.pass(time.Since(r.now())) // hours are sealed by the clock of the database
	r.start = time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	r.db.Exec("UPDATE metering_state SET sealed_until = $1, pushes_until = $1, looked_at = now(), waits_from = now()", r.start)
	rule := limit.NewRule("api")
	rule.Limit, rule.Metering, rule.MeterEvent = 100, limit.MeterUnits, "api_requests"
	rule.Window, _ = limit.ParseWindow("1m")
	_, err := r.store.CreateRule(t.Context(), r.a, rule)
	require.NoError(t, err)
	r.metersBefore()
	rule.Slug, rule.MeterEvent = "unsent", ""
	_, err = r.store.CreateRule(t.Context(), r.a, rule)
	require.NoError(t, err)
	batch := &usage.MeterBatch{Writer: uuid.New(), Sequence: 1, CompleteUntil: time.Now(), Last: true}
	for i := range 200 {
		subject := fmt.Sprintf("s%03d", i)
		customer := "cus_" + subject
		if i == 7 {
			customer = "cus_deleted"
		}
		if i != 5 {
			_, _, err := r.store.PutSubject(t.Context(), r.a, tenants.Subject{Subject: subject, BillingRef: customer}, tenants.Match{})
			require.NoError(t, err)
		}
		r.stripe.meter.customers["cus_"+subject] = true
		for _, rule := range []string{"api", "unsent"} {
			batch.Rows = append(batch.Rows, usage.MeterRow{
				MeterKey: usage.MeterKey{Tenant: r.a.TenantID(), StartMS: r.start.UnixMilli(), Subject: subject, Rule: rule},
				Metered:  usage.Metered{Units: int64(i + 1), Checks: 1},
			})
		}
	}
	require.NoError(t, r.store.WriteMetered(t.Context(), batch))
	return r
}

// metersBefore makes all rules have their meter as if they had it before the hour with usage.
func (r *pushRig) metersBefore() { r.db.Exec("DELETE FROM ended_meters") }

// takesAll is for claims while no endpoint is known to reject events.
func takesAll(tenants.MeterAt) bool { return false }

// seal seals the hour with usage, and creates its pushes.
func (r *pushRig) seal() {
	r.t.Helper()
	sealed, err := r.store.SealMetering(r.t.Context())
	require.NoError(r.t, err)
	require.NotNil(r.t, sealed)
	for more := true; more; {
		more, err = r.store.CreateMeterPushes(r.t.Context(), tenants.MeterPushPage)
		require.NoError(r.t, err)
	}
}

// again makes everything due that is to be tried later, as if that time had come.
func (r *pushRig) again() {
	r.t.Helper()
	r.db.Exec("UPDATE metered_pushes SET due_at = now() WHERE due_at IS NOT NULL")
	require.NoError(r.t, r.runner.Push(r.t.Context()))
}

func (r *pushRig) only() tenants.MeterPush {
	r.t.Helper()
	pushes, next, err := r.store.MeterPushes(r.t.Context(), r.a, "", tenants.Page{})
	require.NoError(r.t, err)
	require.Empty(r.t, next)
	require.Len(r.t, pushes, 1)
	return pushes[0]
}

func (r *pushRig) sum() (sum int64) {
	r.stripe.mu.Lock()
	defer r.stripe.mu.Unlock()
	for _, n := range r.stripe.meter.values {
		sum += n
	}
	return sum
}

// Each subject's units of an hour reach the meter once, after the hour is sealed, however often
// answers are lost. A subject without a customer is parked until it has one.
func TestPushMeteredUsage(t *testing.T) {
	r := newPushRig(t)
	require.NoError(t, r.runner.Push(t.Context()))
	require.Zero(t, r.sum(), "the hour is not sealed")
	r.seal()

	const all = 200 * 201 / 2
	r.stripe.set(func(f *fakeStripe) { f.meter.lose = 20 })
	for range 12 {
		require.NoError(t, r.runner.Push(t.Context()))
		r.again()
	}
	require.EqualValues(t, all-6-8, r.sum(), "all but a subject without a customer, and one that the provider refuses")
	r.stripe.set(func(f *fakeStripe) {
		require.Equal(t, map[int64]bool{r.start.Add(time.Hour).Unix() - 1: true}, f.meter.stamps)
	})
	push := r.only()
	require.Equal(t, "failed", push.State())
	require.Equal(t, tenants.MeterPush{
		ID: push.ID, Start: r.start, Rule: "api", MeterEvent: "api_requests", Kind: "units", Pushed: 198, PushedUnits: all - 6 - 8, Parked: 1, Failed: 1,
		Complete: true, DueAt: push.DueAt, UpdatedAt: push.UpdatedAt, Problems: []tenants.MeterPushProblem{
			{Subject: "s005", Units: 6, Outcome: "parked", Why: "the subject has no customer at a Stripe endpoint with an API key"},
			{Subject: "s007", Units: 8, Outcome: "failed", Why: "the provider answered 400 resource_missing"},
		},
	}, push)

	_, _, err := r.store.PutSubject(t.Context(), r.a, tenants.Subject{Subject: "s005", BillingRef: "cus_s005"}, tenants.Match{})
	require.NoError(t, err)
	r.again()
	require.EqualValues(t, all-8, r.sum())
	push = r.only()
	require.EqualValues(t, 199, push.Pushed)
	require.Nil(t, push.DueAt, "nothing is left to do")
	r.again()
	require.EqualValues(t, all-8, r.sum())
}

// While the provider refuses everything, a push waits longer after each attempt, and says why.
func TestPushBacksOff(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.stripe.set(func(f *fakeStripe) { f.meter.name = "another_meter" })
	for _, most := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second} {
		r.again()
		push := r.only()
		require.Equal(t, "retrying", push.State())
		require.Equal(t, "the provider answered 400 invalid_request_error", push.Why)
		wait := push.DueAt.Sub(push.UpdatedAt) // without what the attempt took
		require.LessOrEqual(t, wait, most)
		require.Greater(t, wait, most/2)
	}
	require.NoError(t, r.runner.Push(t.Context()))
	require.Equal(t, 3, r.only().Attempts, "it is not due")
	r.stripe.set(func(f *fakeStripe) { f.meter.name = "api_requests" })
	r.again()
	require.Zero(t, r.only().Attempts)
	require.EqualValues(t, 198, r.only().Pushed)
}

// What may have been sent longer ago than the provider remembers is not sent again.
func TestPushDoesNotGuess(t *testing.T) {
	r := newPushRig(t)
	r.seal()
	r.db.Exec("UPDATE metered_pushes SET unanswered_at = now() - interval '24 hours'")
	require.NoError(t, r.runner.Push(t.Context()))
	push := r.only()
	require.EqualValues(t, 160, push.Failed, "the part that was under way")
	require.EqualValues(t, 40, push.Pushed)
	require.Contains(t, push.Problems[0].Why, "compare with the provider")
}

// A plan that invoices only overage sends nothing of the units within the limit, one that invoices
// all units sends them under a rule that invoices overage, and a free subject is not sent.
func TestPushByPlan(t *testing.T) {
	r := newPushRig(t)
	row := func(subject string, m usage.Metered) usage.MeterRow {
		r.stripe.meter.customers["cus_"+subject] = true
		_, _, err := r.store.PutSubject(t.Context(), r.a, tenants.Subject{Subject: subject, BillingRef: "cus_" + subject}, tenants.Match{})
		require.NoError(t, err)
		return usage.MeterRow{MeterKey: usage.MeterKey{Tenant: r.a.TenantID(), StartMS: r.start.UnixMilli(), Subject: subject, Rule: "api"}, Metered: m}
	}
	require.NoError(t, r.store.WriteMetered(t.Context(), &usage.MeterBatch{
		Writer: uuid.New(), Sequence: 1, CompleteUntil: time.Now(), Last: true, Rows: []usage.MeterRow{
			row("beyond", usage.Metered{Units: 100, Overage: 30, Free: 70, Checks: 1}), row("within", usage.Metered{Units: 50, Free: 50, Checks: 1}),
			row("all", usage.Metered{Units: 100, Overage: 30, Billed: 70, Checks: 1}),
		},
	}))
	r.seal()
	require.NoError(t, r.runner.Push(t.Context()))
	sent := r.stripe.meter.values
	require.Equal(t, []int64{30, 0, 100, 1}, []int64{sent["cus_beyond"], sent["cus_within"], sent["cus_all"], sent["cus_s000"]})
}

// slowFor is a connection to the provider on which requests that name some text wait.
type slowFor struct {
	text string
	wait chan struct{}
}

func (s slowFor) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte(s.text)) {
		select {
		case <-s.wait:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return http.DefaultTransport.RoundTrip(r)
}

// otherTenant creates a tenant with so many subjects with a customer, each with one unit.
func (r *pushRig) otherTenant(subjects int) {
	r.t.Helper()
	other, _ := r.db.Tenant("tenant-b")
	_, err := r.store.CreateBillingEndpoint(r.t.Context(), other, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, APIKey: &r.stripe.key})
	require.NoError(r.t, err)
	rule := limit.NewRule("api")
	rule.Limit, rule.Metering, rule.MeterEvent = 100, limit.MeterUnits, "api_requests"
	rule.Window, _ = limit.ParseWindow("1m")
	_, err = r.store.CreateRule(r.t.Context(), other, rule)
	require.NoError(r.t, err)
	r.metersBefore()
	batch := &usage.MeterBatch{Writer: uuid.New(), Sequence: 1, CompleteUntil: time.Now(), Last: true}
	var lines []tenants.SubjectLine
	for i := range subjects {
		subject := fmt.Sprintf("b%03d", i)
		customer := "cus_" + subject
		r.stripe.meter.customers[customer] = true
		lines = append(lines, tenants.SubjectLine{Line: i + 1, Subject: subject, BillingRef: &customer})
		batch.Rows = append(batch.Rows, usage.MeterRow{
			MeterKey: usage.MeterKey{Tenant: other.TenantID(), StartMS: r.start.UnixMilli(), Subject: subject, Rule: "api"}, Metered: usage.Metered{Units: 1, Checks: 1},
		})
	}
	_, err = r.store.ImportSubjects(r.t.Context(), other, lines, tenants.ImportMode{})
	require.NoError(r.t, err)
	require.NoError(r.t, r.store.WriteMetered(r.t.Context(), batch))
}

// A tenant for which the provider is slow, with hundreds of pushes that were due before, delays the
// pushes of nobody else.
func TestPushesOfASlowTenant(t *testing.T) {
	r := newPushRig(t)
	r.otherTenant(200)
	r.seal()
	r.db.Exec("UPDATE metered_pushes SET due_at = now() - interval '1 hour' WHERE tenant_id = $1", r.a.TenantID())
	const before = " SELECT (jsonb_populate_record(o, jsonb_build_object('id', gen_random_uuid(), 'start', o.start - n * interval '1 hour'))).*"
	r.db.Exec("INSERT INTO metered_pushes"+before+" FROM metered_pushes o, generate_series(1, 300) n WHERE tenant_id = $1", r.a.TenantID())
	r.db.Exec("INSERT INTO metered_usage"+before+" FROM metered_usage o, generate_series(1, 300) n WHERE tenant_id = $1 AND subject = 's001'", r.a.TenantID())

	slow := slowFor{"cus_s", make(chan struct{})}
	runner := billing.New(billing.Options{Store: r.store, StripeURL: r.stripe.url, HTTP: &http.Client{Transport: slow}})
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- runner.Push(ctx) }()
	require.Eventually(t, func() bool { return r.sum() == 200 }, time.Minute, 10*time.Millisecond, "all of the other tenant, none of the slow one")
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A tenant whose data cannot be read, or takes long to read, delays the pushes of nobody else.
func TestPushesOfATenantThatCannotBeRead(t *testing.T) {
	r := newPushRig(t)
	r.otherTenant(1)
	r.seal()
	r.db.Exec(`INSERT INTO billing_subscriptions (tenant_id, endpoint_id, subscription, customer, subject, state, updated_at)
		VALUES ($1, $2, 'sub_1', 'cus_s001', 's001', '{"newest": {"created": "never"}}', now())`, r.a.TenantID(), r.endpoint.ID)
	r.db.Exec("UPDATE metered_pushes SET due_at = now() - interval '1 hour' WHERE tenant_id = $1", r.a.TenantID())
	require.Error(t, r.runner.Push(t.Context()))
	require.EqualValues(t, 1, r.sum(), "of the other tenant")

	r.db.Exec("DELETE FROM billing_subscriptions")
	r.again()
	require.Greater(t, r.sum(), int64(1))
}
