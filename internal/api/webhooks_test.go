package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85/webhook"

	"weir/internal/billing"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/tenants"
)

const stripeSecret = "whsec_test_secret"

func subscriptionEvent(id, user, price string, at time.Time) string {
	return `{"object":"event","id":"` + id + `","type":"customer.subscription.updated","created":` + strconv.FormatInt(at.Unix(), 10) + `,"livemode":true,
		"data":{"object":{"id":"sub_` + user + `","customer":"cus_` + user + `","status":"active","metadata":{"user":"` + user + `"},
		"items":{"data":[{"quantity":1,"price":{"id":"` + price + `"}}]}}}}`
}

func stripeSignature(body, secret string, at time.Time) header {
	return header{"Stripe-Signature", webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret, Timestamp: at}).Header}
}

// billingStack has an endpoint that maps price_pro to pro.
func billingStack(t *testing.T) (s *adminStack, endpoint map[string]any) {
	t.Helper()
	s = newAdminStack(t)
	for _, plan := range []string{"free", "pro"} {
		s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": plan}).ok(201)
	}
	endpoint = s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{
		"provider": "stripe", "name": "Stripe", "signing_secrets": []string{stripeSecret, "whsec_old_secret"}, "subject_from": "metadata.user", "fallback_plan": "free",
	}).ok(201).json()
	s.call(s.key, http.MethodPut, "/v1/billing/prices/price_pro", obj{"plan": "pro"}).ok(201)
	return s, endpoint
}

func (s *adminStack) settle() {
	s.t.Helper()
	require.NoError(s.t, billing.New(billing.Options{Store: s.store}).Once(s.t.Context()))
}

func (s *adminStack) planOf(subject string) any {
	s.t.Helper()
	return s.call(s.key, http.MethodGet, "/v1/subjects/"+subject, nil).ok(200).json()["plan"]
}

// counted returns how many webhooks of a provider were counted, by their results.
func (s *adminStack) counted(provider string) map[string]int {
	out := map[string]int{}
	for _, result := range webhookResults {
		if n := testutil.ToFloat64(s.metrics.webhooks.WithLabelValues(provider, result)); n > 0 {
			out[result] = int(n)
		}
	}
	return out
}

func hookOf(t *testing.T, endpoint map[string]any) string {
	t.Helper()
	_, path, found := strings.Cut(endpoint["url"].(string), "/v1/")
	require.True(t, found)
	return "/v1/" + path
}

// After a customer pays, the subject has the plan. Events without a valid signature, old ones and
// those of another endpoint change nothing, and each is counted.
func TestStripeWebhook(t *testing.T) {
	s, endpoint := billingStack(t)
	hook := hookOf(t, endpoint)
	now := time.Now()
	body := subscriptionEvent("evt_1", "ada", "price_pro", now)

	for name, c := range map[string]struct {
		path   string
		body   string
		header header
		status int
		code   string
	}{
		"no signature":                {hook, body, header{"X-None", "x"}, 400, codeInvalidSignature},
		"a forged one":                {hook, body, stripeSignature(body, "whsec_guess", now), 400, codeInvalidSignature},
		"an old one":                  {hook, body, stripeSignature(body, stripeSecret, now.Add(-6*time.Minute)), 400, codeInvalidSignature},
		"one of the future":           {hook, body, stripeSignature(body, stripeSecret, now.Add(6*time.Minute)), 400, codeInvalidSignature},
		"another body":                {hook, body + "\n", stripeSignature(body, stripeSecret, now), 400, codeInvalidSignature},
		"signed, and no event":        {hook, "[]", stripeSignature("[]", stripeSecret, now), 400, codeMalformedEvent},
		"an endpoint that is nowhere": {"/v1/webhooks/stripe/2f1b3a52-7a3f-4c6e-9d56-0a5f6c1e7b11", body, stripeSignature(body, stripeSecret, now), 404, codeNotFound},
		"no id":                       {"/v1/webhooks/stripe/1", body, stripeSignature(body, stripeSecret, now), 404, codeNotFound},
		"the other provider's path":   {strings.Replace(hook, "stripe", "generic", 1), body, stripeSignature(body, stripeSecret, now), 404, codeNotFound},
		"too large":                   {hook, strings.Repeat(" ", maxWebhookBody+1), header{"X-None", "x"}, 413, codeBodyTooLarge},
	} {
		s.call("", http.MethodPost, c.path, c.body, c.header).problem(c.status, c.code)
		require.Empty(t, s.call(s.key, http.MethodGet, "/v1/billing/events", nil).ok(200).json()["items"], name)
	}

	refused := map[string]int{webhookNoSignature: 1, webhookBadSignature: 2, webhookOldSignature: 2, webhookMalformed: 1, webhookNoEndpoint: 2, webhookBadBody: 1}
	require.Equal(t, refused, s.counted("stripe"))
	require.Equal(t, map[string]int{webhookNoEndpoint: 1}, s.counted("generic"))

	// Another tenant: its secret is not valid for this endpoint, and its events are separate.
	other := s.call(s.other, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{"whsec_of_b"}}).ok(201).json()
	s.call("", http.MethodPost, hook, body, stripeSignature(body, "whsec_of_b", now)).problem(400, codeInvalidSignature)
	s.call("", http.MethodPost, hookOf(t, other), body, stripeSignature(body, "whsec_of_b", now)).ok(200)
	s.settle()
	s.call(s.key, http.MethodGet, "/v1/subjects/ada", nil).problem(404, codeNotFound)

	require.Equal(t, "{\"received\":true}\n", string(s.call("", http.MethodPost, hook, body, stripeSignature(body, stripeSecret, now)).ok(200).body))
	s.settle()
	require.Equal(t, "pro", s.planOf("ada"))
	again := subscriptionEvent("evt_2", "bob", "price_pro", now)
	s.call("", http.MethodPost, hook, again, stripeSignature(again, "whsec_old_secret", now)).ok(200)
	s.call("", http.MethodPost, hook, again, stripeSignature(again, stripeSecret, now)).ok(200)
	s.settle()
	require.Equal(t, "pro", s.planOf("bob"), "a secret that is being rotated out counts")

	items := s.call(s.key, http.MethodGet, "/v1/billing/events?endpoint="+endpoint["id"].(string), nil).ok(200).json()["items"].([]any)
	require.Len(t, items, 3)
	require.Equal(t, "duplicate", items[0].(map[string]any)["outcome"])
	applied := items[1].(map[string]any)
	require.Equal(t, "applied", applied["outcome"])
	require.Equal(t, "bob", applied["subject"])
	require.Equal(t, "evt_2", applied["event_id"])

	// Test mode is separate from live mode, although the endpoint is cached for a moment.
	test := strings.Replace(subscriptionEvent("evt_3", "eve", "price_pro", now), `"livemode":true`, `"livemode":false`, 1)
	wrong := s.call("", http.MethodPost, hook, test, stripeSignature(test, stripeSecret, now)).problem(400, codeWrongMode)
	require.Equal(t, "The event is of test mode, and the endpoint takes events of live mode. Create an endpoint for each mode. To change the mode of this one, replace its signing secrets.", wrong.Detail)
	require.Len(t, s.call(s.key, http.MethodGet, "/v1/billing/events?endpoint="+endpoint["id"].(string), nil).ok(200).json()["items"], 3)
	refused[webhookBadSignature]++
	refused[webhookStored], refused[webhookDuplicate], refused[webhookWrongMode] = 3, 1, 1
	require.Equal(t, refused, s.counted("stripe"))
}

func TestGenericWebhook(t *testing.T) {
	s, _ := billingStack(t)
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	endpoint := s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "generic", "signing_secrets": []string{secret}}).ok(201).json()
	// Its events name plans, so no price can be mapped to it, and it is never the default.
	price := s.call(s.key, http.MethodPut, "/v1/billing/prices/price_1", obj{"plan": "pro", "endpoint": endpoint["id"]}).problem(422, codeInvalidRequest)
	require.Equal(t, "/endpoint", price.Errors[0].Pointer)
	mapped := s.call(s.key, http.MethodPut, "/v1/billing/prices/price_1", obj{"plan": "pro"}).ok(201).json()
	require.NotEqual(t, endpoint["id"], mapped["endpoint"])

	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	body := `{"type":"subject.plan","subject":"ada","plan":"pro"}`
	now := time.Now()
	signature, err := hook.Sign("msg_1", now, []byte(body))
	require.NoError(t, err)
	headers := []header{{"webhook-id", "msg_1"}, {"webhook-timestamp", strconv.FormatInt(now.Unix(), 10)}, {"webhook-signature", signature}}
	s.call("", http.MethodPost, hookOf(t, endpoint), body, headers[:2]...).problem(400, codeInvalidSignature)
	s.call("", http.MethodPost, hookOf(t, endpoint), body, headers...).ok(200)
	s.settle()
	require.Equal(t, "pro", s.planOf("ada"))

	send := func(id, body string) answer {
		signature, err := hook.Sign(id, now, []byte(body))
		require.NoError(t, err)
		return s.call("", http.MethodPost, hookOf(t, endpoint), body, header{"webhook-id", id}, headers[1], header{"webhook-signature", signature})
	}
	refused := send("msg_2", `{"type":"subject.plan","subject":"ada","plan":"pro","quantity":0,"seats":2}`)
	require.Equal(t, []string{"/quantity", "/seats"}, refused.pointers(422, codeInvalidRequest))
	require.Contains(t, send("msg_3", `{"subject":"ada"}`).problem(400, codeMalformedEvent).Detail, "one JSON object with a type")
	events := func() []map[string]any {
		return items(s.call(s.key, http.MethodGet, "/v1/billing/events", nil).ok(200))
	}
	require.Len(t, events(), 1)
	old := now.Add(-6 * time.Minute)
	signature, err = hook.Sign("msg_1", old, []byte(body))
	require.NoError(t, err)
	s.call("", http.MethodPost, hookOf(t, endpoint), body, header{"webhook-id", "msg_1"},
		header{"webhook-timestamp", strconv.FormatInt(old.Unix(), 10)}, header{"webhook-signature", signature}).problem(400, codeInvalidSignature)
	require.Equal(t, map[string]int{webhookStored: 1, webhookNoSignature: 1, webhookOldSignature: 1, webhookMalformed: 2}, s.counted("generic"))
	require.Equal(t, `the newest event names plan pro; subject "ada" moved from the default plan to pro`, events()[0]["why"])
	send("msg_1", body).ok(200)
	require.Equal(t, 1, s.counted("generic")[webhookDuplicate])

	// What does not exist is named in the outcome, because the sender gets no other answer.
	send("msg_4", `{"type":"subject.plan","subject":"ada","plan":"gone"}`).ok(200)
	send("msg_5", `{"type":"subject.credits","subject":"ada","rule":"gone","units":5}`).ok(200)
	s.settle()
	require.Equal(t, `there is no rule "gone"`, events()[0]["why"])
	require.Equal(t, `there is no plan "gone"`, events()[1]["why"])
}

// A signing secret that is added works for the next event, although the endpoint is cached.
func TestNewSigningSecretWorksAtOnce(t *testing.T) {
	s, endpoint := billingStack(t)
	path, hook := "/v1/billing/endpoints/"+endpoint["id"].(string), hookOf(t, endpoint)
	body := subscriptionEvent("evt_1", "ada", "price_pro", time.Now())
	s.call("", http.MethodPost, hook, body, stripeSignature(body, stripeSecret, time.Now())).ok(200)
	s.call(s.key, http.MethodPatch, path, obj{"add_signing_secret": "whsec_brand_new"}).ok(200)
	s.call("", http.MethodPost, hook, body, stripeSignature(body, "whsec_brand_new", time.Now())).ok(200)
	s.call("", http.MethodPost, hook, body, stripeSignature(body, "whsec_guess", time.Now())).problem(400, codeInvalidSignature)
}

// Customers pay and cancel while the tenant is suspended, so its events are stored and applied.
func TestSuspendedTenantFollowsPayments(t *testing.T) {
	s, endpoint := billingStack(t)
	s.call(s.operator, http.MethodPatch, "/v1/tenants/tenant-a", obj{"state": "suspended"}).ok(200)
	body := subscriptionEvent("evt_1", "ada", "price_pro", time.Now())
	s.call("", http.MethodPost, hookOf(t, endpoint), body, stripeSignature(body, stripeSecret, time.Now())).ok(200)
	s.settle()
	s.call(s.operator, http.MethodPatch, "/v1/tenants/tenant-a", obj{"state": "active"}).ok(200)
	require.Equal(t, "pro", s.planOf("ada"))
}

// A deleted endpoint is gone at once, although it is cached.
func TestDeletedEndpointIsGone(t *testing.T) {
	s, endpoint := billingStack(t)
	hook := hookOf(t, endpoint)
	send := func(id string) answer {
		body := subscriptionEvent(id, "ada", "price_pro", time.Now())
		return s.call("", http.MethodPost, hook, body, stripeSignature(body, stripeSecret, time.Now()))
	}
	send("evt_1").ok(200)
	s.call(s.key, http.MethodDelete, "/v1/billing/endpoints/"+endpoint["id"].(string), nil).ok(204)
	for _, id := range []string{"evt_2", "evt_1"} { // a new event, and a repetition
		send(id).problem(404, codeNotFound)
	}
	require.Equal(t, map[string]int{webhookStored: 1, webhookNoEndpoint: 2}, s.counted("stripe"))
}

// Secrets are never returned: not in an answer, the trail, the log or the database.
func TestBillingSecretsStaySecret(t *testing.T) {
	s, endpoint := billingStack(t)
	id := endpoint["id"].(string)
	const key = "rk_test_very_secret_key"
	patched := s.call(s.key, http.MethodPatch, "/v1/billing/endpoints/"+id, obj{"api_key": key, "add_signing_secret": "whsec_newest_one"}).ok(200)
	require.Equal(t, []any{"_one", "cret", "cret"}, patched.json()["signing_secret_last4"])
	require.Equal(t, "_key", patched.json()["api_key_last4"])
	require.Equal(t, false, patched.json()["live"], "by the key")
	shown := bytes.Join([][]byte{
		patched.body, s.call(s.key, http.MethodGet, "/v1/billing/endpoints", nil).ok(200).body, s.call(s.key, http.MethodGet, "/v1/audit", nil).ok(200).body,
		s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).body, []byte(s.log.String()),
	}, nil)
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var stored []byte
		require.NoError(t, conn.QueryRow(ctx, "SELECT signing_secrets || api_key FROM billing_endpoints WHERE id = $1", id).Scan(&stored))
		shown = append(shown, stored...)
	})
	for _, secret := range []string{stripeSecret, "whsec_old_secret", "whsec_newest_one", key} {
		require.NotContains(t, string(shown), secret)
	}

	// Without an encryption key nothing can be stored, and the answer says what to do.
	store, err := tenants.Open(t.Context(), tenants.Config{DatabaseURL: s.db.URL})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	without := s.in(t)
	without.url = s.serve(store)
	p := without.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{"whsec_abcdef"}}).
		problem(http.StatusConflict, codeEncryptionKeyMissing)
	require.Contains(t, p.Detail, "WEIR_ENCRYPTION_KEY")
}

// The rate of one endpoint is limited, and does not affect other endpoints.
func TestWebhookRate(t *testing.T) {
	t.Parallel()
	w := &webhooks{rates: engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return 1_700_000_000_000 }})}
	one, other := tenants.Webhook{Tenant: uuid.New(), Endpoint: uuid.New()}, tenants.Webhook{Tenant: uuid.New(), Endpoint: uuid.New()}
	for range webhookBurst {
		require.Zero(t, w.overRate(t.Context(), one))
	}
	require.Equal(t, time.Second/webhookRate, w.overRate(t.Context(), one))
	require.Zero(t, w.overRate(t.Context(), other))
}

// However many events of one tenant wait to be written, those of another one have their turn: of
// one tenant, one is written at a time.
func TestWritesOfWebhooksByTenant(t *testing.T) {
	t.Parallel()
	w := newWebhooks(&server{capacity: &capacity{}})
	now, end := context.WithCancel(t.Context())
	end()
	one, others := limit.TenantID{1}, []limit.TenantID{{2}, {3}}
	done, err := w.writes.TakeWithin(t.Context(), one, webhookWait)
	require.NoError(t, err)
	_, err = w.writes.TakeWithin(now, one, webhookWait)
	require.Error(t, err, "it would wait for the same row in Postgres")
	for _, other := range others {
		leave, err := w.writes.TakeWithin(t.Context(), other, webhookWait)
		require.NoError(t, err)
		defer leave()
	}
	done()
	done, err = w.writes.TakeWithin(t.Context(), one, webhookWait)
	require.NoError(t, err)
	done()
}

// An event may have 256 KiB, and a tenant's events of a day are bounded: the sender is told when to
// send again, the endpoint shows it, and the next day the event is stored.
func TestVolumeOfWebhooks(t *testing.T) {
	s := newAdminStackWith(t, tenants.Config{Volume: tenants.BillingVolume{Events: 2}})
	at := time.Now()
	endpoint := s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{stripeSecret}}).ok(201).json()
	hook := hookOf(t, endpoint)
	send := func(id string, size int) answer {
		body := subscriptionEvent(id, "ada", "price_pro", at)
		body += strings.Repeat(" ", max(0, size-len(body)))
		return s.call("", http.MethodPost, hook, body, stripeSignature(body, stripeSecret, at))
	}
	send("evt_large", maxWebhookBody+1).problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge)
	send("evt_1", maxWebhookBody).ok(200)
	send("evt_2", 0).ok(200)
	refused := send("evt_3", 0)
	refused.problem(http.StatusTooManyRequests, codeWebhookVolumeExceeded)
	wait, err := strconv.Atoi(refused.header.Get("Retry-After"))
	require.NoError(t, err)
	require.True(t, 0 < wait && wait <= 24*60*60, wait)
	send("evt_1", maxWebhookBody).ok(200)
	require.Equal(t, map[string]int{webhookBadBody: 1, webhookStored: 2, webhookVolume: 1, webhookDuplicate: 1}, s.counted("stripe"))
	shown := s.call(s.key, http.MethodGet, "/v1/billing/endpoints/"+endpoint["id"].(string), nil).ok(200).json()
	require.Equal(t, tenants.RefusedVolume, shown["refused_reason"])
}

// An event from which nothing follows is counted as decided, and its content is not kept.
func TestIgnoredWebhooks(t *testing.T) {
	s, endpoint := billingStack(t)
	now := time.Now()
	body := strings.Replace(subscriptionEvent("evt_1", "ada", "price_pro", now), "customer.subscription.updated", "product.created", 1)
	s.call("", http.MethodPost, hookOf(t, endpoint), body, stripeSignature(body, stripeSecret, now)).ok(200)
	items := s.call(s.key, http.MethodGet, "/v1/billing/events", nil).ok(200).json()["items"].([]any)
	require.Len(t, items, 1)
	require.Equal(t, tenants.EventIgnored, items[0].(map[string]any)["outcome"])
}

// A tenant's senders that never send a body use no slots of other tenants, however many endpoints
// the tenant has.
func TestSlowWebhooks(t *testing.T) {
	s, endpoint := billingStack(t)
	hook := hookOf(t, endpoint)
	create := func(key string) string {
		return hookOf(t, s.call(key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{stripeSecret}}).ok(201).json())
	}
	second, neighbour := create(s.key), create(s.other)
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	ended := make(chan struct{})
	var slow sync.WaitGroup
	defer slow.Wait()
	defer close(ended)
	for range webhookBodies / 8 {
		slow.Go(func() { occupy(t, u.Host, hook, ended) })
		slow.Go(func() { occupy(t, u.Host, second, ended) })
	}
	now := time.Now()
	body := subscriptionEvent("evt_1", "ada", "price_pro", now)
	require.Eventually(t, func() bool {
		return s.call("", http.MethodPost, hook, "{}", header{"X-None", "x"}).status == http.StatusServiceUnavailable
	}, time.Minute, 10*time.Millisecond)
	require.Positive(t, s.counted("stripe")[webhookBusy])
	s.call("", http.MethodPost, neighbour, body, stripeSignature(body, stripeSecret, now)).ok(200)
}

// However many tenants occupy as many places as they can, another one has a place.
func TestPlacesOfWebhooks(t *testing.T) {
	t.Parallel()
	w := &webhooks{
		server: &server{capacity: newCapacity(NewMetrics(prometheusRegistry()), overload.New(DefaultMaxInFlight, 64, 0), places.NewProcessors(2))},
		bodies: places.New[limit.TenantID](0, 0),
	}
	var first []int
	for tenant := range webhookBodies {
		got := 0
		for {
			if _, ok := w.place(limit.TenantID{byte(tenant)}); !ok {
				break
			}
			got++
		}
		require.Positive(t, got, tenant)
		first = append(first, got)
	}
	require.Equal(t, []int{13, 10, 8}, first[:3])
}

// occupy sends the head of a webhook and no body, again and again when the server gives up, until
// the test has ended it.
func occupy(t *testing.T, host, hook string, ended <-chan struct{}) {
	for {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Error(err)
			return
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_, _ = io.WriteString(conn, "POST "+hook+" HTTP/1.1\r\nHost: weir\r\nContent-Length: 100\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}()
		select {
		case <-ended:
			_ = conn.Close()
			<-closed
			return
		case <-closed:
			_ = conn.Close()
		}
	}
}

// Senders that occupy every place of a tenant's webhooks, and others that send forged events
// without end, take nothing that checks need: each check is decided while they continue.
func TestChecksDuringAFloodOfWebhooks(t *testing.T) {
	s, endpoint := billingStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/flooded", obj{"resource": "flooded", "algorithm": "fixed_window_first_hit", "limit": 100, "window": "1d"}).ok(201)
	more := s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{stripeSecret}}).ok(201).json()
	hooks := []string{hookOf(t, endpoint), hookOf(t, more)}
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	ended := make(chan struct{})
	var flood sync.WaitGroup
	defer flood.Wait()
	defer close(ended)
	for _, hook := range hooks {
		for range webhookBodies / 4 {
			flood.Go(func() { occupy(t, u.Host, hook, ended) })
		}
	}
	for _, hook := range hooks { // all places are taken
		require.Eventually(t, func() bool {
			return s.call("", http.MethodPost, hook, "{}", header{"X-None", "x"}).status == http.StatusServiceUnavailable
		}, time.Minute, 10*time.Millisecond)
	}
	var refused atomic.Int64
	for i := range 8 {
		flood.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				response, err := http.Post(s.url+hooks[i%len(hooks)], "application/json", strings.NewReader(`{"forged":true}`))
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
				if response.StatusCode == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return refused.Load() > 0 }, time.Minute, time.Millisecond)
	before := refused.Load()
	for range 100 {
		s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": "ada", "resource": "flooded"}).ok(200)
	}
	s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": "ada", "resource": "flooded"}).ok(429)
	require.Eventually(t, func() bool { return refused.Load() > before }, time.Minute, time.Millisecond, "the flood continued")
}

// Stripe shows a signing secret only once it has the address of the endpoint. Until the secret
// is known, all events are refused, and the endpoint says so; a flood of forged events is not
// a flood of writes.
func TestEndpointWithoutSigningSecret(t *testing.T) {
	s, _ := billingStack(t)
	s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "generic"}).problem(422, codeInvalidRequest)
	s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe", "signing_secrets": []string{}}).problem(422, codeInvalidRequest)
	endpoint := s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "stripe"}).ok(201).json()
	require.Empty(t, endpoint["signing_secret_last4"])
	require.Nil(t, endpoint["refused_at"])
	path, hook := "/v1/billing/endpoints/"+endpoint["id"].(string), hookOf(t, endpoint)
	body := subscriptionEvent("evt_1", "ada", "price_pro", time.Now())
	for _, secret := range []string{"", "null", stripeSecret} {
		s.call("", http.MethodPost, hook, body, stripeSignature(body, secret, time.Now())).problem(400, codeSigningSecretMissing)
	}
	refused := s.call(s.key, http.MethodGet, path, nil).ok(200).json()
	require.Equal(t, "no_secret", refused["refused_reason"])
	require.NotNil(t, refused["refused_at"])
	require.Equal(t, endpoint["version"], refused["version"])

	s.call(s.key, http.MethodPatch, path, obj{"add_signing_secret": stripeSecret}).ok(200)
	require.Eventually(t, func() bool { // one refusal per second is recorded
		s.call("", http.MethodPost, hook, body, stripeSignature(body, "whsec_guess", time.Now()))
		return s.call(s.key, http.MethodGet, path, nil).ok(200).json()["refused_reason"] == "bad_signature"
	}, 10*time.Second, 10*time.Millisecond)
	s.call("", http.MethodPost, hook, body, stripeSignature(body, stripeSecret, time.Now())).ok(200)
	missing := s.call("", http.MethodPost, hook, body).problem(400, codeInvalidSignature)
	require.Equal(t, "The header Stripe-Signature is missing, so the event is not signed.", missing.Detail)
}

// A signing secret of the generic webhook has the length that Standard Webhooks says.
func TestLengthOfGenericSecrets(t *testing.T) {
	s := newAdminStack(t)
	for secret, status := range map[string]int{
		"whsec_YWJjYWJj":                                 422, // 6 bytes
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa==":         422,
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw":         201,
		"whsec_" + strings.Repeat("MfKQ9r8GKYqrTwjU", 6): 422, // 72 bytes
	} {
		got := s.call(s.key, http.MethodPost, "/v1/billing/endpoints", obj{"provider": "generic", "signing_secrets": []string{secret}})
		require.Equal(t, status, got.status, "%s: %s", secret, got.body)
	}
}

// The brand of the customer page is one visible line.
func TestBrandIsOneLine(t *testing.T) {
	s := newAdminStack(t)
	for _, brand := range []string{"two\nlines", "right\u202eto left"} {
		require.Equal(t, []string{"/brand"}, s.call(s.key, http.MethodPatch, "/v1/portal", obj{"brand": brand}).pointers(422, codeInvalidRequest), "%q", brand)
	}
}
