package browser

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// An owner connects Stripe on a page that waits for the first event, and shows it when it arrives.
func TestBilling(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	_, err := w.store.CreatePlan(t.Context(), w.actor, tenants.Plan{Slug: "pro", Name: "Pro"})
	require.NoError(t, err)
	p := w.as(tenants.Owner).open("/billing").sees("No provider connected").click("Connect a provider").check()
	p.fill("Signing secret", "whsec_browser").click("Create endpoint").sees("Endpoint created.").sees("Waiting for the first event…")
	p.inspect("billing-waiting")
	endpoints, _, err := w.store.BillingEndpoints(t.Context(), w.actor, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, endpoints, 1)

	w.subscribes(endpoints[0], "evt_browser", "ada", "price_pro")
	p.sees("Latest event").inspect("billing-endpoint")
}

// subscribes sends a signed event of Stripe: a subject subscribes to a price.
func (w *world) subscribes(e tenants.BillingEndpoint, id, subject, price string) {
	w.t.Helper()
	w.sends(e, id, "customer.subscription.created", "active", subject, price)
}

// sends sends a signed event of Stripe about the subscription of a subject.
func (w *world) sends(e tenants.BillingEndpoint, id, kind, status, subject, price string) {
	t := w.t
	t.Helper()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	body := `{"object":"event","id":"` + id + `","type":"` + kind + `","created":` + now + `,"livemode":false,"data":{"object":{"id":"sub_` + subject + `",
		"customer":"cus_` + subject + `","status":"` + status + `","metadata":{"user_id":"` + subject + `"},"items":{"data":[{"quantity":1,"price":{"id":"` + price + `"}}]}}}}`
	mac := hmac.New(sha256.New, []byte("whsec_browser"))
	mac.Write([]byte(now + "." + body))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.env["WEIR_URL"]+"/v1/webhooks/stripe/"+e.ID.String(), strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Stripe-Signature", "t="+now+",v1="+hex.EncodeToString(mac.Sum(nil)))
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// An admin maps prices, is not surprised by a mapping that exists, dismisses an event that can
// never be applied, grants credits, and migrates a subject to a new version of its plan. The
// customer sees the result.
func TestBillingInUse(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	ctx := t.Context()
	for _, plan := range []tenants.Plan{{Slug: "pro", Name: "Pro"}, {Slug: "scale", Name: "Scale"}} {
		_, err := w.store.CreatePlan(ctx, w.actor, plan)
		require.NoError(t, err)
	}
	status, answer := w.post(w.key(), "/v1/rules", map[string]any{
		"slug": "reports", "name": "Reports", "resource": "reports:*", "algorithm": "fixed_window", "limit": 1000, "window": "month", "metering": "units",
	})
	require.Equal(t, http.StatusCreated, status, "%s", answer)
	_, _, err := w.store.PutPlanLimit(ctx, w.actor, "scale", "reports", limit.Limit{Limit: 9000}, tenants.Match{})
	require.NoError(t, err)
	e, err := w.store.CreateBillingEndpoint(ctx, w.actor, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, Name: "Stripe, test mode",
		SubjectFrom: tenants.FromMetadata + "user_id", GraceDays: 7,
	}, tenants.BillingSecrets{Signing: []string{"whsec_browser"}})
	require.NoError(t, err)
	_, _, err = w.store.PutBillingPrice(ctx, w.actor, tenants.BillingPrice{Price: "price_1PGx3uLkdIwHu7ixRtPl7Wxq", Endpoint: e.ID, Plan: "pro", Multiply: true}, tenants.Match{})
	require.NoError(t, err)
	w.subscribes(e, "evt_1PGx5aLkdIwHu7ix0pYcQ1a2", "ada", "price_1PGx3uLkdIwHu7ixRtPl7Wxq")
	w.subscribes(e, "evt_1PGx9bLkdIwHu7ixZ83nBd7q", "bob", "price_of_an_old_offer")

	p := w.as(tenants.Owner).openUntil("/billing", "1 event is parked. 1 waits for a mapped price")
	p.click("Map price").fill("Price or product ID", "price_1PGx3uLkdIwHu7ixRtPl7Wxq").choose("Plan", "Pro").shot("billing-map")
	p.allow(422).click("Map price").sees("Stands for the plan Pro already").shot("billing-mapped")
	p.open("/billing").click("Sell credits").inspect("billing-sell")
	p.open("/billing").inspect("billing-prices")
	p.open("/billing/events?outcome=parked").sees("price_of_an_old_offer").inspect("billing-parked")
	p.open(w.eventPage("evt_1PGx9bLkdIwHu7ixZ83nBd7q")).sees("\"id\": \"price_of_an_old_offer\"").inspect("billing-event")
	p.click("Dismiss").sees("no longer counted").shot("billing-dismiss")
	p.click("Dismiss event").sees("Dismissed evt_1PGx9bLkdIwHu7ixZ83nBd7q").sees("ignored").shot("billing-dismissed")
	p.open(w.eventPage("evt_1PGx5aLkdIwHu7ix0pYcQ1a2")).click("Replay").click("Replay event").sees("Replayed evt_1PGx5aLkdIwHu7ix0pYcQ1a2: applied.").shot("billing-replayed")
	p.open("/billing").seesNot("event is parked")
	w.sends(e, "evt_1PGxTz3LkdIwHu7ixpastdue", "customer.subscription.updated", "past_due", "ada", "price_1PGx3uLkdIwHu7ixRtPl7Wxq")
	own, err := w.store.CreateBillingEndpoint(ctx, w.actor, tenants.BillingEndpoint{
		Provider: tenants.GenericProvider, Name: "Our shop", SubjectFrom: tenants.FromCustomer,
	}, tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	p.openUntil("/billing", "Failed payments").inspect("billing-grace")
	p.open("/billing/endpoints/" + own.ID.String()).sees("named by each event").inspect("billing-signed")
	p.open("/audit?kind=billing_event").sees("dismissed the billing event").sees("evt_1PGx9bLkdIwHu7ixZ83nBd7q")

	p.open("/subjects/ada").click("Grant credits").fill("Units", "5 000").fill("Reference", "in_1PGx/il_1PGx").fill("Reason", "They paid by bank transfer").inspect("billing-grant")
	p.click("Grant credits").sees("5,000 credits for Reports granted to ada.")
	p.openUntil("/subjects/ada", "5,000 credits left").inspect("billing-subject")
	p.open("/rules/reports").click("Delete rule").sees("1 subject has unspent credits").shot("billing-rule-kept")
	require.True(t, w.ask(w.key(), "ada", "reports:create"))
	p.openUntil("/metered", "ada").inspect("billing-metered")

	p.open("/plans/pro/versions").click("Publish version").click("Publish version 2").sees("Version 2 newest").inspect("plan-versions-two")
	p.click("Preview migration").sees("gets version 2 now").inspect("plan-migration")
	p.click("Migrate 1 subject")
	p.openUntil("/plans/pro/versions", "1 of 1 moved").inspect("plan-migrated")
	p.click("Publish version").click("Publish version 3").sees("Version 3 newest").choose("When", "At the end of each subject's cycle").click("Preview migration")
	p.sees("Migrate 1 subject").click("Migrate 1 subject")
	p.openUntil("/plans/pro/versions", "1 scheduled").inspect("plan-migration-scheduled")
	p.open("/plans").sees("Pro, newest version").inspect("plans-scheduled")
	p.open("/plans/pro/versions").click("Cancel migration").sees("canceled")

	p.open("/settings/customer-page").choose("Plan 1", "Pro").choose("Plan 2", "Pro")
	p.allow(422).click("Save changes").sees("Plan 2 is a duplicate").shot("customer-page-settings-wrong")
	p.choose("Plan 2", "Scale").click("Save changes").sees("Saved.").inspect("customer-page-settings-plans")
	w.customer("ada").sees("5,000 credits left").sees("Metered usage this month").sees("What plan Scale gives").inspect("customer-page-billing")
}

// eventPage returns the page with the details of an event.
func (w *world) eventPage(providerID string) string {
	w.t.Helper()
	events, _, err := w.store.BillingEvents(w.t.Context(), w.actor, tenants.BillingEventFilter{}, tenants.Page{})
	require.NoError(w.t, err)
	for i := range events {
		if events[i].ProviderID == providerID && events[i].DuplicateOf == nil {
			return "/billing/events?pick=" + events[i].ID.String()
		}
	}
	require.Fail(w.t, "there is no event "+providerID)
	return ""
}

// The list of events shows a new event without a reload, and keeps its filters.
func TestBillingEventsLive(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	e, err := w.store.CreateBillingEndpoint(t.Context(), w.actor, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, Name: "Stripe, test mode", SubjectFrom: tenants.FromMetadata + "user_id", GraceDays: 7,
	}, tenants.BillingSecrets{Signing: []string{"whsec_browser"}})
	require.NoError(t, err)
	all := w.as(tenants.Viewer).open("/billing/events").sees("Events appear here")
	filtered := w.as(tenants.Viewer).open("/billing/events?type=customer.subscription.created&subject=bob").sees("No events match")
	w.subscribes(e, "evt_first", "ada", "price_pro")
	all.sees("ada").sees("parked")
	w.subscribes(e, "evt_second", "bob", "price_pro")
	all.sees("bob")
	filtered.sees("bob").seesNot("ada")
	filtered.choose("Provider", "Stripe, test mode").sees("bob")
	require.Contains(t, mustEval[string](filtered, "location.search"), "endpoint="+e.ID.String())
}

// The pages of billing are usable with the data of the demo: connected systems, events of each
// outcome, a customer whose payment failed, credits, and customers who move to another version.
func TestBillingLooks(t *testing.T) {
	t.Parallel()
	w := demo(t)
	endpoints, _, err := w.store.BillingEndpoints(t.Context(), w.actor, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, endpoints, 2)
	for _, outcome := range tenants.EventOutcomes {
		events, _, err := w.store.BillingEvents(t.Context(), w.actor, tenants.BillingEventFilter{Outcome: outcome}, tenants.Page{})
		require.NoError(t, err)
		require.NotEmpty(t, events, "the demo has an event that is %s", outcome)
	}
	p := w.as(tenants.Admin)
	for _, l := range []struct{ name, path, says string }{
		{"billing-demo-endpoint", "/billing/endpoints/" + endpoints[0].ID.String(), "Latest event"},
		{"billing-demo-event", w.eventPage("evt_1SXa6vPiedPiperCreated"), "pied-piper"},
		{"billing-demo-credits", "/subjects/globex", "credits left"},
		{"billing-demo-grace", "/subjects/soylent", "keeps the plan until"},
		{"billing-demo-quota", "/subjects/initech", "Next plan"},
		{"billing-demo-overage", "/subjects/user_7", "1,240 of 1,000"},
	} {
		p.open(l.path).sees(l.says).inspect(l.name)
	}
	customer := w.customer("globex").sees("Messages per month")
	customer.shot("billing-demo-customer-light").theme("dark").shot("billing-demo-customer-dark").theme("light").phone().shot("billing-demo-customer-phone").check()
}
