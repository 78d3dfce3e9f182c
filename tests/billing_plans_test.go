package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/tests/harness"
)

// One customer for each on_change: quota used up, upgrade, a downgrade at the end of the cycle,
// cancellation. And two customers who do not pay: one within the grace period, and one after it.
// One instance gets the events, and another one decides.
func TestBillingStoryOfEachOnChange(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey()})
	first, second := start(t, s).AwaitReady(), start(t, s).AwaitReady()
	tenant := newTenant(t, s, first)
	tenant.putRule("api", `{"resource":"api","algorithm":"fixed_window","limit":2,"window":"1d"}`, first, second)
	tenant.do(http.MethodPut, first.URL()+"/v1/plans/free", `{"default":true,"limits":{"api":{"limit":2}}}`, http.StatusCreated)
	got := tenant.do(http.MethodPost, first.URL()+"/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["whsec_story"],
		"subject_from":"metadata.user","grace_days":7,"fallback_plan":"free"}`, http.StatusCreated)
	var endpoint struct{ ID, URL string }
	require.NoError(t, json.Unmarshal(got.body, &endpoint))

	events := 0
	send := func(age time.Duration, typ, object string) {
		t.Helper()
		events++
		at := time.Now().Add(time.Duration(events)*time.Second - age).Unix()
		body := fmt.Sprintf(`{"object":"event","id":"evt_%d","type":%q,"created":%d,"livemode":false,"data":{"object":%s}}`, events, typ, at, object)
		now := strconv.FormatInt(time.Now().Unix(), 10)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint.URL, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Stripe-Signature", "t="+now+",v1="+stripeSignature("whsec_story", now, body))
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	subscribed := func(subject, status, price string) string {
		return fmt.Sprintf(`{"id":"sub_%[1]s","customer":"cus_%[1]s","status":%[2]q,"metadata":{"user":%[1]q},"items":{"data":[{"quantity":1,"price":{"id":%[3]q}}]}}`,
			subject, status, price)
	}
	check := func(subject string, cost int) (int, decision) {
		t.Helper()
		answer, d, err := tenant.check(second.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"api","cost":%d}`, subject, cost))
		require.NoError(t, err)
		return answer.status, d
	}
	// becomes waits until a subject has a limit, and so much of it left.
	becomes := func(subject string, limit, remaining int64, why string) {
		t.Helper()
		var last decision
		require.Eventually(t, func() bool {
			_, last = check(subject, 0)
			return last.Limit == limit && last.Remaining != nil && *last.Remaining == remaining
		}, patience, tick, "%s", why)
	}

	for onChange, left := range map[string]int64{"carry": 3, "reset": 5, "scale": 0} {
		t.Run(onChange, func(t *testing.T) {
			subject, plan := "customer-"+onChange, "pro-"+onChange
			tenant.do(http.MethodPut, first.URL()+"/v1/plans/"+plan, `{"on_change":"`+onChange+`","limits":{"api":{"limit":5}}}`, http.StatusCreated)
			tenant.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_"+onChange, `{"plan":"`+plan+`"}`, http.StatusCreated)
			status, _ := check(subject, 2)
			require.Equal(t, http.StatusOK, status)
			status, _ = check(subject, 1)
			require.Equal(t, http.StatusTooManyRequests, status, "the free quota is used up")
			send(0, "customer.subscription.created", subscribed(subject, "active", "price_"+onChange))
			becomes(subject, 5, left, "the upgrade, with its counters")

			// The downgrade is scheduled, changes nothing yet, and happens when the cycle ends.
			tenant.do(http.MethodPatch, first.URL()+"/v1/subjects/"+subject, `{"next_plan":"free","next_plan_at":"cycle_end"}`, http.StatusOK)
			changes := tenant.do(http.MethodGet, first.URL()+"/v1/plan-changes", "", http.StatusOK)
			require.Contains(t, string(changes.body), `"`+subject+`"`)
			becomes(subject, 5, left, "the cycle has not ended")
			harness.Exec(t, s["WEIR_DATABASE_URL"], "UPDATE subjects SET next_plan_at = now() WHERE subject = '"+subject+"'")
			becomes(subject, 2, max(0, left-3), "the plan free carries the usage")

			send(0, "customer.subscription.deleted", subscribed(subject, "canceled", "price_"+onChange))
			require.Eventually(t, func() bool {
				of := tenant.do(http.MethodGet, first.URL()+"/v1/subjects/"+subject, "", http.StatusOK)
				return strings.Contains(string(of.body), `"plan":"free"`)
			}, patience, tick)
		})
	}

	tenant.do(http.MethodPut, first.URL()+"/v1/plans/pro", `{"limits":{"api":{"limit":5}}}`, http.StatusCreated)
	tenant.do(http.MethodPut, first.URL()+"/v1/billing/prices/price_pro", `{"plan":"pro"}`, http.StatusCreated)
	const day = 24 * time.Hour
	for subject, failed := range map[string]time.Duration{"patient": 6 * day, "overdue": 8 * day} {
		send(30*day, "customer.subscription.created", subscribed(subject, "active", "price_pro"))
		becomes(subject, 5, 5, "subscribed")
		send(failed, "customer.subscription.updated", subscribed(subject, "past_due", "price_pro"))
	}
	becomes("overdue", 2, 2, "the grace period is over")
	becomes("patient", 5, 5, "the grace period has a day left")
	send(0, "customer.subscription.updated", subscribed("overdue", "active", "price_pro"))
	becomes("overdue", 5, 5, "paid")
}
