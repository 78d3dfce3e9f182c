package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// An admin connects a billing system, maps a price to a plan and another one to credits, sees what
// is wrong with a form, and removes a mapping.
func TestPricesOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "pro", Name: "Pro"})
	require.NoError(t, err)
	prepaid := limit.NewRule("prepaid")
	prepaid.Limit, prepaid.Window = 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
	_, err = s.store.CreateRule(t.Context(), s.a, prepaid)
	require.NoError(t, err)
	bucket := limit.NewRule("bucket")
	bucket.Algorithm, bucket.Limit, bucket.Window = limit.TokenBucket, 10, prepaid.Window
	_, err = s.store.CreateRule(t.Context(), s.a, bucket)
	require.NoError(t, err)

	b := s.as("ann@example.com")
	got := b.write("/billing", url.Values{"do": {"connect"}, "provider": {tenants.StripeProvider}, "signing_secret": {"whsec_1234567890"},
		"subject_from": {tenants.FromCustomer}, "grace_days": {"0"}})
	require.Equal(t, http.StatusSeeOther, got.status, "no days of grace are possible: %s", got.body)
	endpoints, _, err := s.store.BillingEndpoints(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, endpoints, 1)
	require.Zero(t, endpoints[0].GraceDays)
	endpoint := endpoints[0].ID.String()
	got = b.get("/billing")
	require.Contains(t, got.body, `<option value="prepaid"`)
	require.NotContains(t, got.body, `<option value="bucket"`, "checks cannot spend credits beyond its limit")

	plan := url.Values{"do": {"map"}, "id": {"price_pro"}, "endpoint": {endpoint}, "plan": {"pro"}, "priority": {"0"}}
	require.Equal(t, http.StatusSeeOther, b.write("/billing", plan).status)
	got = b.write("/billing", plan)
	require.Equal(t, http.StatusUnprocessableEntity, got.status, "a mapping is not replaced without a word")
	require.Contains(t, got.body, "Stands for the plan Pro already")
	taken := url.Values{"do": {"sell"}, "id": {"price_pro"}, "endpoint": {endpoint}, "rule": {"prepaid"}, "units": {"5"}}
	require.Equal(t, http.StatusUnprocessableEntity, b.write("/billing", taken).status)
	credits := url.Values{"do": {"sell"}, "id": {"price_pack"}, "endpoint": {endpoint}, "rule": {"prepaid"}, "units": {"5 000"}, "expires_after_days": {"30"}}
	require.Equal(t, http.StatusSeeOther, b.write("/billing", credits).status)
	page := b.get("/billing").body
	for _, text := range []string{
		"Each purchase of price_pack grants 5,000 credits for prepaid.", "5,000 credits for <a href=\"/rules/prepaid\">prepaid</a>, for 30 days",
		"multiplies the credits", `plan <a href="/plans#pro">`,
	} {
		require.Contains(t, page, text)
	}
	for field, wrong := range map[string]string{"units": "0", "expires_after_days": "4000", "rule": "no-such-rule", "id": "price pack"} {
		form := url.Values{}
		for name, values := range credits {
			form[name] = values
		}
		form.Set(field, wrong)
		got := b.write("/billing", form)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, field)
		require.Contains(t, got.body, `aria-invalid="true"`, field)
	}
	edit := url.Values{"do": {"edit"}, "id": {"price_pack"}, "endpoint": {endpoint}, "credits": {"true"}, "rule": {"prepaid"}, "units": {"0"}}
	refused := b.write("/billing", edit)
	require.Equal(t, http.StatusUnprocessableEntity, refused.status)
	require.Contains(t, refused.body, `id="units-price_pack"`)
	edit.Set("units", "7000")
	require.Equal(t, http.StatusSeeOther, b.write("/billing", edit).status)
	edit = url.Values{"do": {"edit"}, "id": {"price_pro"}, "endpoint": {endpoint}, "plan": {"pro"}, "multiply": {"on"}, "priority": {"3"}, "version": {"1"}}
	require.Equal(t, http.StatusPreconditionFailed, b.write("/billing", edit).status, "somebody else changed it")
	edit.Del("version")
	require.Equal(t, http.StatusSeeOther, b.write("/billing", edit).status)
	pro, err := s.store.BillingPriceByID(t.Context(), s.a, "price_pro")
	require.NoError(t, err)
	require.True(t, pro.Multiply)
	require.Equal(t, 3, pro.Priority)
	require.Contains(t, b.get("/billing").body, "7,000 credits for")
	require.Contains(t, b.get("/audit?kind=price").body, "price_pack")
	require.Equal(t, http.StatusForbidden, s.as("editor@example.com").write("/billing", credits).status)
	require.Equal(t, http.StatusSeeOther, b.write("/billing", url.Values{"do": {"unmap"}, "id": {"price_pack"}}).status)
	require.NotContains(t, b.get("/billing").body, "multiplies the credits")
}

// The pages of billing and of a subject say until when a customer whose payment failed keeps the
// plan. The page of a signed webhook has no settings that would have no effect.
func TestGracePeriodsOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	for slug, name := range map[string]string{"pro": "Professional", "basic": "Basic"} {
		_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: slug, Name: name})
		require.NoError(t, err)
	}
	secrets := tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}
	stripe, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user", GraceDays: 7, FallbackPlan: "basic",
	}, secrets)
	require.NoError(t, err)
	_, _, err = s.store.PutBillingPrice(t.Context(), s.a, tenants.BillingPrice{Price: "price_pro", Plan: "pro"}, tenants.Match{})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	require.NotContains(t, b.get("/billing").body, "Failed payments")

	failed := s.clock.Now().UTC().Add(-time.Hour).Truncate(time.Second)
	body := fmt.Appendf(nil, `{"object":"event","id":"evt_1","type":"customer.subscription.updated","created":%d,"livemode":false,"data":{"object":{
		"id":"sub_1","object":"subscription","customer":"cus_1","status":"past_due","created":1,"metadata":{"user":"ada"},"items":{"data":[{"quantity":1,"price":{"id":"price_pro"}}]}}}}`, failed.Unix())
	e, err := subscription.ParseStripe(body)
	require.NoError(t, err)
	_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: stripe.ID}, e, body)
	require.NoError(t, err)
	require.NoError(t, billing.New(billing.Options{Store: s.store}).Once(t.Context()))
	ends := failed.AddDate(0, 0, 7).Format("2 Jan 2006, 15:04 UTC")
	page := b.get("/billing").body
	for _, text := range []string{"Failed payments", `<a href="/subjects/ada">ada</a>`, "sub_1", ends, "Basic"} {
		require.Contains(t, page, text)
	}
	require.Regexp(t, "keeps the plan until <time[^>]*>"+ends+"</time>, then Basic", b.get("/subjects/ada").body)
	require.NotContains(t, b.get("/subjects/bob").body, "Payment failed")

	own, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, Name: "Own", SubjectFrom: tenants.FromCustomer, GraceDays: 3}, secrets)
	require.NoError(t, err)
	path := "/billing/endpoints/" + own.ID.String()
	require.Contains(t, b.get("/billing").body, "Its events name the plan")
	page = b.get(path).body
	require.Contains(t, page, "named by each event")
	require.NotContains(t, page, "Grace period")
	require.NotContains(t, page, "In Stripe")
	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"edit"}, "name": {"Our shop"}}).status)
	renamed, err := s.store.BillingEndpointByID(t.Context(), s.a, own.ID)
	require.NoError(t, err)
	require.Equal(t, []any{"Our shop", tenants.FromCustomer, 3}, []any{renamed.Name, renamed.SubjectFrom, renamed.GraceDays})
	page = b.get("/billing/endpoints/" + stripe.ID.String()).body
	require.Contains(t, page, "Grace period")
	require.NotContains(t, page, "Compare with Stripe now", "there is no API key")
	path = "/billing/endpoints/" + stripe.ID.String()
	require.Equal(t, http.StatusConflict, b.write(path, url.Values{"do": {"compare"}}).status)
	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"key"}, "api_key": {"rk_test_1"}}).status)
	require.Contains(t, b.get(path).body, "Compare with Stripe now")
	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"compare"}}).status)
	require.Contains(t, b.get(path).body, "Comparing all subscriptions with Stripe")
	require.Contains(t, b.get("/audit?kind=endpoint").body, "requested a comparison of the billing endpoint")

	require.NotContains(t, b.get(path).body, "comparison with Stripe failed")
	require.NoError(t, s.store.RecordReconcileFailure(t.Context(), s.a.TenantID(), stripe.ID, "list subscriptions: Stripe answered 500 api_error"))
	page = b.get(path).body
	require.Contains(t, page, "The last comparison with Stripe failed")
	require.Contains(t, page, ": list subscriptions: Stripe answered 500 api_error. It is repeated within an hour.")
	require.NoError(t, s.store.RecordReconcile(t.Context(), s.a.TenantID(), stripe.ID, s.store.Now(), "2 of 9 were not compared", true))
	require.Contains(t, b.get(path).body, ": 2 of 9 were not compared. It is repeated within a day.")
}

// The page of billing says how many events were not applied, and links to them.
func TestUnappliedEventsOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	endpoint, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, SubjectFrom: tenants.FromCustomer},
		tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	none := b.get("/billing").body
	require.NotContains(t, none, "?outcome=")

	now := time.Now()
	for id, body := range map[string]string{
		"msg_1": `{"type":"subject.plan","subject":"ada","plan":"no-such-plan"}`,
		"msg_2": `{"type":"subject.plan","subject":"ada","plan":"pro","effective_at":"2099-01-01T00:00:00Z"}`,
	} {
		e, err := subscription.ParseGeneric([]byte(body), id, now, now)
		require.NoError(t, err)
		_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: endpoint.ID}, e, []byte(body))
		require.NoError(t, err)
	}
	require.NoError(t, billing.New(billing.Options{Store: s.store}).Once(t.Context()))
	page := b.get("/billing").body
	require.Contains(t, page, `<a href="/billing/events?outcome=failed">1 event failed</a>`)
	require.Contains(t, page, `<a href="/billing/events?outcome=parked">1 event is parked</a>`)
	require.Contains(t, page, "1 takes effect at a later time.")
	require.NotContains(t, page, "mapped price or a known customer", "it waits for neither")
	failed := b.get("/billing/events?outcome=failed").body
	require.Contains(t, failed, "msg_1")
	require.NotContains(t, failed, "msg_2")

	events, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Outcome: tenants.EventFailed}, tenants.Page{})
	require.NoError(t, err)
	path := "/billing/events/" + events[0].ID.String()
	pick := "/billing/events?pick=" + events[0].ID.String()
	require.Contains(t, b.get(pick).body, `action="`+path+`/dismiss"`)
	require.Equal(t, http.StatusForbidden, s.as("editor@example.com").write(path+"/dismiss", url.Values{}).status)
	require.NotContains(t, s.as("editor@example.com").get(pick).body, "/dismiss")
	require.Equal(t, http.StatusNotFound, b.write("/billing/events/"+endpoint.ID.String()+"/dismiss", url.Values{}).status)
	require.Equal(t, http.StatusSeeOther, b.write(path+"/dismiss", url.Values{}).status)
	page = b.get(pick).body
	require.Contains(t, page, "Dismissed msg_1.")
	require.Contains(t, page, "Dismissed by ann@example.com; it was failed")
	require.NotContains(t, page, `action="`+path+`/dismiss"`)
	require.NotContains(t, b.get("/billing").body, "event failed")
	require.Contains(t, b.get("/audit?kind=billing_event").body, "dismissed the billing event")
	require.Equal(t, http.StatusSeeOther, b.write(path+"/dismiss", url.Values{}).status)
	require.Contains(t, b.get("/billing/events").body, "Only an event that is parked or has failed can be dismissed")
	require.Equal(t, http.StatusSeeOther, b.write(path+"/replay", url.Values{}).status)
	require.Contains(t, b.get("/billing").body, "event failed")
	require.Contains(t, b.get("/audit?kind=billing_event").body, "replayed the billing event")
}

// The events of a tenant are found by outcome, type, endpoint and subject. Those who manage billing
// see the content of an event, without what would grant access.
func TestBillingEventsOnPages(t *testing.T) {
	s := newStack(t)
	s.staff()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	endpoints := map[string]string{}
	for _, name := range []string{"Shop", "Kiosk"} {
		endpoint, err := s.store.CreateBillingEndpoint(t.Context(), s.a, tenants.BillingEndpoint{Provider: tenants.GenericProvider, Name: name, SubjectFrom: tenants.FromCustomer},
			tenants.BillingSecrets{Signing: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}})
		require.NoError(t, err)
		endpoints[name] = endpoint.ID.String()
		body := `{"type":"note.of.` + name + `","client_secret":"pi_1_secret_xyz","nested":{"receipt_url":"https://pay.example/receipt","name":"<Ada> \u0026 co"},"amount":1900}`
		e, err := subscription.ParseGeneric([]byte(body), "msg_"+name, at, at)
		require.NoError(t, err)
		e.Subject = "customer of " + name
		e.Kind = subscription.Unreadable // else nothing can follow from it, and its content is not stored
		_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: endpoint.ID}, e, []byte(body))
		require.NoError(t, err)
	}
	b := s.as("ann@example.com")
	for name, filter := range map[string]string{
		"by endpoint": "endpoint=" + endpoints["Shop"], "by type": "type=note.of.Shop", "by subject": "subject=customer+of+Shop",
	} {
		page := b.get("/billing/events?" + filter).body
		require.Contains(t, page, "details of msg_Shop", name)
		require.NotContains(t, page, "details of msg_Kiosk", name)
	}
	require.Contains(t, b.get("/billing/events?type=note.of.nothing").body, "No events match these filters.")
	for _, query := range []string{"endpoint=shop", "outcome=lost"} {
		require.Equal(t, http.StatusBadRequest, b.get("/billing/events?"+query).status, query)
	}

	events, _, err := s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Type: "note.of.Shop"}, tenants.Page{})
	require.NoError(t, err)
	pick := "/billing/events?pick=" + events[0].ID.String()
	page := b.get(pick).body
	require.Contains(t, page, "&#34;amount&#34;: 1900")
	require.Contains(t, page, "&lt;Ada&gt;")
	require.Contains(t, page, "&#34;client_secret&#34;: &#34;[hidden]&#34;,")
	require.NotContains(t, page, "pi_1_secret_xyz")
	require.NotContains(t, page, "pay.example/receipt")
	editor := s.as("editor@example.com").get(pick).body
	require.Contains(t, editor, "msg_Shop")
	require.NotContains(t, editor, "1900")
	ignored, err := subscription.ParseGeneric([]byte(`{"type":"note.ignored","amount":1900}`), "msg_ignored", at, at)
	require.NoError(t, err)
	_, err = s.store.StoreBillingEvent(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: events[0].Endpoint}, ignored, []byte(`{"type":"note.ignored","amount":1900}`))
	require.NoError(t, err)
	events, _, err = s.store.BillingEvents(t.Context(), s.a, tenants.BillingEventFilter{Type: "note.ignored"}, tenants.Page{})
	require.NoError(t, err)
	page = b.get("/billing/events?pick=" + events[0].ID.String()).body
	require.Contains(t, page, "was not stored, because nothing follows from its type")
	require.NotContains(t, page, "1900")
	require.Equal(t, http.StatusNotFound, b.get("/billing/events?pick="+endpoints["Shop"]).status)
	require.Equal(t, http.StatusNotFound, b.get("/billing/events?pick=1").status)
}

// An admin connects Stripe before Stripe shows the signing secret, and enters it on the page of the
// endpoint. While the page waits for the first event, it says that one was refused.
func TestConnectWithoutSigningSecret(t *testing.T) {
	s := newStack(t)
	s.staff()
	b := s.as("ann@example.com")
	connect := url.Values{"do": {"connect"}, "provider": {tenants.GenericProvider}, "subject_from": {tenants.FromCustomer}, "grace_days": {"7"}}
	got := b.write("/billing", connect)
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Send the secret with which the sender signs its events.")
	connect.Set("provider", tenants.StripeProvider)
	require.Equal(t, http.StatusSeeOther, b.write("/billing", connect).status)
	endpoints, _, err := s.store.BillingEndpoints(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	path := "/billing/endpoints/" + endpoints[0].ID.String()
	page := b.get(path).body
	for _, text := range []string{"The endpoint refuses all events until it has the secret", `id="first-secret"`, "none: all events are refused", "Waiting for the first event"} {
		require.Contains(t, page, text)
	}
	require.NotContains(t, page, "Add signing secret")
	require.NotContains(t, s.as("viewer@example.com").get(path).body, "first-secret")

	require.NoError(t, s.store.RecordBillingRefusal(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: endpoints[0].ID}, tenants.RefusedNoSecret))
	require.Contains(t, b.get(path+"/wait").body, "because the endpoint has no signing secret yet")
	require.Equal(t, http.StatusUnprocessableEntity, b.write(path, url.Values{"do": {"replace"}, "signing_secret": {"short"}}).status)
	require.Equal(t, http.StatusSeeOther, b.write(path, url.Values{"do": {"replace"}, "signing_secret": {"whsec_1234567890"}}).status)
	page = b.get(path).body
	require.NotContains(t, page, "first-secret")
	require.Contains(t, page, "…7890")
	require.NotContains(t, page, "Enter the secret first.")
	require.Contains(t, page, "had no signing secret then")
	require.NoError(t, s.store.RecordBillingRefusal(t.Context(), tenants.Webhook{Tenant: s.a.TenantID(), Endpoint: endpoints[0].ID}, tenants.RefusedBadSignature))
	wait := b.get(path + "/wait").body
	require.Regexp(t, `An event with a wrong signature arrived\s+<time`, wait)
	require.Contains(t, wait, "(just now). Is the signing secret that of this endpoint?")
}
