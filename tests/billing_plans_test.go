package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
)

const (
	paidWithin = time.Second // as docs/billing.md says
	fewestPaid = 5
	mostPaid   = 60
)

// paying is a tenant of two processes: one gets the events, and the other one decides.
type paying struct {
	*client
	hook   string
	second *instance
	events int
}

// pay sends the event of a new subscription to a price.
func (p *paying) pay(subject, price string) {
	p.t.Helper()
	p.events++
	now := strconv.FormatInt(time.Now().Unix(), 10)
	body := fmt.Sprintf(`{"object":"event","id":"evt_%d","type":"customer.subscription.created","created":%s,"livemode":false,"data":{"object":{
		"id":"sub_%[3]s","customer":"cus_%[3]s","status":"active","metadata":{"user":%[3]q},"items":{"data":[{"quantity":1,"price":{"id":%[4]q}}]}}}}`, p.events, now, subject, price)
	got, err := p.tryWith(http.MethodPost, p.hook, body, http.Header{"Stripe-Signature": {"t=" + now + ",v1=" + stripeSignature("whsec_story", now, body)}})
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, got.status, "%s", got.body)
}

// ask sends a check to the other instance.
func (p *paying) ask(subject string, cost int) (status int, d decision) {
	p.t.Helper()
	answer, d, err := p.check(p.second.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"api","cost":%d}`, subject, cost))
	require.NoError(p.t, err)
	return answer.status, d
}

// usesUp spends two units of the plan free, so that another three are denied.
func (p *paying) usesUp(subject string) {
	p.t.Helper()
	status, _ := p.ask(subject, 2)
	require.Equal(p.t, http.StatusOK, status)
	status, _ = p.ask(subject, 3)
	require.Equal(p.t, http.StatusTooManyRequests, status)
}

// A customer whose quota is used up pays. Another instance than the one that got the event admits
// the customer, within a second unless the machine has no time for it, and the counters in Redis
// are those of the plan's on_change. The other steps of a customer's life, by a clock, are in
// cmd/server.
func TestPaidWithinASecond(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey()})
	first, second := start(t, s).AwaitReady(), start(t, s).AwaitReady()
	p := &paying{client: newTenant(t, s, first), second: second}
	p.putRule("api", `{"resource":"api","algorithm":"fixed_window_first_hit","limit":1,"window":"1d"}`, first, second)
	p.do(http.MethodPut, first.URL()+"/v1/plans/free", `{"default":true,"limits":{"api":{"limit":4}}}`, http.StatusCreated)
	var endpoint struct{ URL string }
	got := p.do(http.MethodPost, first.URL()+"/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["whsec_story"],
		"subject_from":"metadata.user"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &endpoint))
	p.hook = endpoint.URL
	left := map[string]int64{"carry": 8, "reset": 10, "scale": 5}
	for onChange := range left {
		p.do(http.MethodPut, first.URL()+"/v1/plans/"+onChange, `{"on_change":"`+onChange+`","limits":{"api":{"limit":10}}}`, http.StatusCreated)
		p.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_"+onChange, `{"plan":"`+onChange+`"}`, http.StatusCreated)
	}
	require.Eventually(t, func() bool { _, d := p.ask("peek", 0); return d.Limit == 4 }, patience, tick)

	var took []time.Duration
	for len(took) < fewestPaid || len(took) < mostPaid && slices.Min(took) >= paidWithin {
		subject := "customer-" + strconv.Itoa(len(took))
		p.usesUp(subject)
		began := time.Now()
		p.pay(subject, "price_carry")
		require.Eventually(t, func() bool { status, _ := p.ask(subject, 3); return status == http.StatusOK }, patience, tick)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("from the event to the first admitted check on the other instance: least %s, median %s, most %s of %d",
		took[0].Round(time.Millisecond), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), len(took))
	require.Less(t, took[0], paidWithin, "not once, of %d customers", len(took))

	for onChange, remaining := range left {
		p.usesUp(onChange)
		p.pay(onChange, "price_"+onChange)
		require.Eventually(t, func() bool {
			_, d := p.ask(onChange, 0)
			return d.Limit == 10 && d.Remaining != nil && *d.Remaining == remaining
		}, patience, tick, onChange)
	}
}

// An operator compares an endpoint with Stripe: a dry run changes nothing, and the command moves
// subjects and says what it did.
func TestReconcileCommand(t *testing.T) {
	t.Parallel()
	stripe := newStripeList(t, `{"id":"sub_1","object":"subscription","status":"active","created":1690000000,"customer":{"id":"cus_1","object":"customer"},
		"metadata":{"user":"ada"},"items":{"object":"list","data":[{"id":"si_1","quantity":1,"price":{"id":"price_pro"}}]}}`,
		`{"id":"sub_2","object":"subscription","status":"active","created":1690000000,"customer":{"id":"cus_2","object":"customer"},
		"metadata":{"user":"bob"},"items":{"object":"list","data":[{"id":"si_2","quantity":1,"price":{"id":"price_other"}}]}}`)
	s := newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_STRIPE_URL": "http://127.0.0.1:1"}) // the server itself cannot compare
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	for _, plan := range []string{"free", "pro"} {
		tenant.do(http.MethodPut, i.URL()+"/v1/plans/"+plan, `{}`, http.StatusCreated)
	}
	var endpoint struct{ ID string }
	got := tenant.do(http.MethodPost, i.URL()+"/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["whsec_story"],
		"api_key":"rk_test_reconciled","subject_from":"metadata.user"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &endpoint))
	tenant.do(http.MethodPut, i.URL()+"/v1/billing/prices/price_pro", `{"plan":"pro"}`, http.StatusCreated)

	operator := s.With(settings{"WEIR_STRIPE_URL": stripe})
	name := "acme " + endpoint.ID + ": "
	reconcile := func(args ...string) string {
		t.Helper()
		stdout, stderr, code := runServer(t, operator, append([]string{"billing", "reconcile"}, args...)...)
		require.Zero(t, code, stderr)
		return stdout
	}
	problem := name + "not settled sub_2: no price of the subscription is mapped to a plan: price_other; map the price, or its product\n"
	moved := ` sub_1: subject "ada" moved from the default plan to pro` + "\n"
	require.Equal(t, name+"would change"+moved+problem+name+"2 subscriptions compared, 1 would change, 1 not settled\n", reconcile("--dry-run"))
	tenant.do(http.MethodGet, i.URL()+"/v1/subjects/ada", "", http.StatusNotFound)
	require.Equal(t, "no billing endpoint has an API key: nothing to compare\n", reconcile("--endpoint", "2f1b3a52-7a3f-4c6e-9d56-0a5f6c1e7b11"))
	require.Equal(t, name+"changed"+moved+problem+name+"2 subscriptions compared, 1 changed, 1 not settled\n", reconcile("--tenant", "acme", "--endpoint", endpoint.ID))
	require.Contains(t, string(tenant.do(http.MethodGet, i.URL()+"/v1/subjects/ada", "", http.StatusOK).body), `"plan":"pro"`)
	require.Equal(t, problem+name+"2 subscriptions compared, 0 changed, 1 not settled\n", reconcile())
}

// newStripeList serves Stripe's list of subscriptions, and returns its URL.
func newStripeList(t *testing.T, subscriptions ...string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/subscriptions" || r.Header.Get("Authorization") != "Bearer rk_test_reconciled" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"object":"list","url":"/v1/subscriptions","has_more":false,"data":[%s]}`, strings.Join(subscriptions, ","))
	}))
	t.Cleanup(server.Close)
	return server.URL
}
