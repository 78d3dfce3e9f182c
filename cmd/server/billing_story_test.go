package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85/webhook"

	"weir/internal/api"
	"weir/internal/billing"
	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

const (
	storyPatience = 3 * time.Minute
	storyTick     = 20 * time.Millisecond
	storySecret   = "whsec_story"
)

// story is a tenant of two instances that share Postgres and the counters. Both run all jobs of a
// server, and only the test moves their clock: that of windows, grace periods and scheduled
// changes.
type story struct {
	t        *testing.T
	db       *tenantstest.Database
	actor    tenants.Actor
	key      string
	hook     string    // path of the endpoint
	urls     [2]string // the first gets events and changes, the second decides
	onChange string

	mu     sync.Mutex
	at     time.Time
	events int
}

func (s *story) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// moveTo sets the clock, which never goes back.
func (s *story) moveTo(at string) {
	s.t.Helper()
	to, err := time.Parse(time.RFC3339, at)
	require.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.False(s.t, to.Before(s.at))
	s.at = to
}

// newStory starts two instances at a time, with the plans free, pro and max.
func newStory(t *testing.T, onChange string, began time.Time) *story {
	t.Helper()
	return newStoryWith(t, onChange, began, `{"resource":"api","algorithm":"fixed_window","limit":1,"window":"month"}`, nil)
}

// newStoryWith is newStory for another rule and for counters in another engine; nil: in memory.
func newStoryWith(t *testing.T, onChange string, began time.Time, rule string, counters engine.Engine) *story {
	t.Helper()
	s := &story{t: t, at: began, onChange: onChange}
	s.db = tenantstest.NewWith(t, tenants.Config{Now: s.now})
	platform, err := s.db.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	var key tenants.Key
	s.actor, key = s.db.Tenant("acme")
	s.key = key.Secret()
	if counters == nil {
		counters = engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return s.now().UnixMilli() }})
	}
	for i := range s.urls {
		s.urls[i] = s.instance(platform, counters)
	}
	s.call(http.MethodPut, "/v1/rules/api", rule, 201)
	for plan, limit := range map[string]int{"free": 4, "pro": 10, "max": 25} {
		s.call(http.MethodPut, "/v1/plans/"+plan, fmt.Sprintf(`{"on_change":%q,"limits":{"api":{"limit":%d}}}`, onChange, limit), 201)
	}
	s.call(http.MethodPatch, "/v1/plans/free", `{"default":true}`, 200)
	var endpoint struct{ ID string }
	require.NoError(t, json.Unmarshal(s.call(http.MethodPost, "/v1/billing/endpoints", `{"provider":"stripe","signing_secrets":["`+storySecret+`"],
		"subject_from":"metadata.user","grace_days":7,"fallback_plan":"free"}`, 201), &endpoint))
	s.hook = "/v1/webhooks/stripe/" + endpoint.ID
	for _, plan := range []string{"pro", "max"} {
		s.call(http.MethodPut, "/v1/billing/prices/price_"+plan, `{"plan":"`+plan+`"}`, 201)
	}
	return s
}

// instance starts what a server runs for plans and checks, until the test ends.
func (s *story) instance(platform tenants.Tenant, counters engine.Engine) (url string) {
	s.t.Helper()
	log, keys := slog.New(slog.DiscardHandler), check.NewKeys([16]byte{1})
	store := s.db.Open(tenants.Config{Now: s.now})
	parts := checktest.New(s.t, checktest.Options{Keys: keys, Shared: counters, Clock: s.now, Instances: 2})
	policies := check.NewPolicies(store, keys, log, parts.Metrics)
	authenticator := tenants.NewAuthenticator(store)
	following := newFollower(store, authenticator, policies, platform.ID, log)
	biller := billing.New(billing.Options{Store: store, Logger: log})
	secrets, err := store.Secrets(s.t.Context())
	require.NoError(s.t, err)
	working, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var background sync.WaitGroup
	background.Go(func() { policies.Run(working); policies.Close() })
	background.Go(func() { _ = following.run(working) }) // the end of working
	background.Go(func() { biller.Run(working) })
	background.Go(func() { applyDuePlans(working, store, log) })
	background.Go(func() { changeCounters(working, store, policies, parts.Checker, log) })
	server := httptest.NewServer(api.New(api.Config{}, api.Deps{
		Store: store, Authenticator: authenticator, Policies: policies, Checker: parts.Checker, Instances: parts.Peers.Count,
		Logger: log, Metrics: api.NewMetrics(prometheus.NewRegistry()), Readiness: func() api.Readiness { return api.Readiness{} },
		Follow: following.now, Billing: biller, CursorKey: secrets.CursorKey[:],
	}))
	s.t.Cleanup(func() {
		server.Close()
		stop()
		background.Wait()
	})
	return server.URL
}

// request sends a request to an instance.
func (s *story) request(url, method, path, body string, header http.Header) (status int, answer []byte) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return response.StatusCode, answer
}

func (s *story) asTenant() http.Header {
	return http.Header{"Authorization": {"Bearer " + s.key}, "Content-Type": {"application/json"}}
}

// call sends a request to the first instance.
func (s *story) call(method, path, body string, want int) []byte {
	s.t.Helper()
	status, answer := s.request(s.urls[0], method, path, body, s.asTenant())
	require.Equal(s.t, want, status, "%s %s: %s", method, path, answer)
	return answer
}

// check asks the second instance, and returns the status and what is left of the limit.
func (s *story) check(cost int) (status, limit, remaining int) {
	s.t.Helper()
	status, answer := s.request(s.urls[1], http.MethodPost, "/v1/check", fmt.Sprintf(`{"subject":"ada","resource":"api","cost":%d}`, cost), s.asTenant())
	var d struct{ Limit, Remaining int }
	require.NoError(s.t, json.Unmarshal(answer, &d), "%s", answer)
	return status, d.Limit, d.Remaining
}

// use consumes units, which must be allowed or denied.
func (s *story) use(cost, want int) {
	s.t.Helper()
	status, limit, remaining := s.check(cost)
	require.Equal(s.t, want, status, "%d units of %d, with %d left", cost, limit, remaining)
}

// becomes waits until the second instance applies a limit, of which so much is left with each
// on_change.
func (s *story) becomes(limit int, remaining map[string]int, why string) {
	s.t.Helper()
	var last string
	want := fmt.Sprintf("%d of %d", remaining[s.onChange], limit)
	for end := time.Now().Add(storyPatience); last != want; time.Sleep(storyTick) {
		require.True(s.t, time.Now().Before(end), "%s: %s remain, not %s", why, last, want)
		_, of, left := s.check(0)
		last = fmt.Sprintf("%d of %d", left, of)
	}
}

// stays is becomes for what must not change: before it looks, all jobs that could change it have
// had nothing left to do.
func (s *story) stays(limit int, remaining map[string]int, why string) {
	s.t.Helper()
	require.NoError(s.t, billing.New(billing.Options{Store: s.db.Store}).Once(s.t.Context()))
	applied, _, err := s.db.Store.ApplyDuePlans(s.t.Context())
	require.NoError(s.t, err)
	require.Zero(s.t, applied, why)
	require.Eventually(s.t, func() bool { // an instance has to change these counters
		pending := 0
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(s.t, conn.QueryRow(ctx, "SELECT count(*) FROM counter_changes").Scan(&pending))
		})
		return pending == 0
	}, storyPatience, storyTick)
	_, of, left := s.check(0)
	require.Equal(s.t, fmt.Sprintf("%d of %d", remaining[s.onChange], limit), fmt.Sprintf("%d of %d", left, of), why)
}

// send sends a signed event to the first instance, and waits until it is applied. Signatures have
// the real time, and events that of the story.
func (s *story) send(typ, object string) {
	s.t.Helper()
	s.events++
	id := fmt.Sprintf("evt_%d", s.events)
	body := fmt.Sprintf(`{"object":"event","id":%q,"type":%q,"created":%d,"livemode":false,"data":{"object":%s}}`, id, typ, s.now().Unix(), object)
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: storySecret, Timestamp: time.Now()})
	status, answer := s.request(s.urls[0], http.MethodPost, s.hook, body, http.Header{"Stripe-Signature": {signed.Header}})
	require.Equal(s.t, http.StatusOK, status, "%s", answer)
	require.Eventually(s.t, func() bool {
		var events struct {
			Items []struct {
				Event   string `json:"event_id"`
				Outcome string
			}
		}
		require.NoError(s.t, json.Unmarshal(s.call(http.MethodGet, "/v1/billing/events?limit=1", "", 200), &events))
		return events.Items[0].Event == id && events.Items[0].Outcome == tenants.EventApplied
	}, storyPatience, storyTick, "%s is not applied", id)
}

// adasSubscription returns Ada's subscription in Stripe's form. Its cycle begins on the 10th.
func adasSubscription(status, price string) string {
	return fmt.Sprintf(`{"id":"sub_1","customer":"cus_1","status":%q,"created":1770026400,"billing_cycle_anchor":1770717600,
		"metadata":{"user":"ada"},"items":{"data":[{"quantity":1,"price":{"id":%q}}]}}`, status, price)
}

// subject returns a field of the subject.
func (s *story) subject(field string) any {
	s.t.Helper()
	var fields map[string]any
	require.NoError(s.t, json.Unmarshal(s.call(http.MethodGet, "/v1/subjects/ada", "", 200), &fields))
	return fields[field]
}

// A customer signs up, uses up the quota, pays, upgrades, downgrades at the end of the cycle, does
// not pay, loses the plan after the grace period, pays, and cancels. One instance gets the events,
// and the other one decides. For each on_change, the counters after each step are those that
// docs/admin-api.md states.
func TestBillingStory(t *testing.T) {
	t.Parallel()
	for _, onChange := range []string{"carry", "reset", "scale"} {
		t.Run(onChange, func(t *testing.T) {
			t.Parallel()
			newStory(t, onChange, time.Date(2026, 2, 2, 10, 0, 0, 0, time.UTC)).tell()
		})
	}
}

func (s *story) tell() {
	same := func(remaining int) map[string]int {
		return map[string]int{"carry": remaining, "reset": remaining, "scale": remaining}
	}
	s.call(http.MethodPut, "/v1/subjects/ada", `{"labels":{"signed_up":"2026-02-02"}}`, 201)
	s.becomes(4, same(4), "the default plan is free")
	s.use(2, 200)
	s.use(3, 429)

	s.moveTo("2026-02-02T10:05:00Z")
	s.send("customer.subscription.created", adasSubscription("active", "price_pro"))
	s.becomes(10, map[string]int{"carry": 8, "reset": 10, "scale": 5}, "paid: 2 of 4 were used")
	s.use(3, 200)
	require.Equal(s.t, "2026-02-10T10:00:00Z", s.subject("cycle_anchor"))

	s.moveTo("2026-02-05T10:00:00Z")
	s.send("customer.subscription.updated", adasSubscription("active", "price_max"))
	s.becomes(25, map[string]int{"carry": 20, "reset": 25, "scale": 5}, "upgraded: 5, 3 or 8 of 10 were used")
	s.use(4, 200)

	s.call(http.MethodPatch, "/v1/subjects/ada", `{"next_plan":"pro","next_plan_at":"cycle_end"}`, 200)
	require.Equal(s.t, "2026-02-10T10:00:00Z", s.subject("next_plan_at"))
	s.moveTo("2026-02-10T09:59:59Z")
	s.stays(25, map[string]int{"carry": 16, "reset": 21, "scale": 1}, "the cycle has not ended")
	s.moveTo("2026-02-10T10:00:00Z")
	s.becomes(10, map[string]int{"carry": 1, "reset": 10, "scale": 0}, "downgraded: 9, 4 or 24 of 25 were used")
	require.Nil(s.t, s.subject("next_plan"))
	s.send("customer.subscription.updated", adasSubscription("active", "price_pro")) // Stripe's schedule says the same
	s.stays(10, map[string]int{"carry": 1, "reset": 10, "scale": 0}, "it has this plan already")
	s.use(2, map[string]int{"carry": 429, "reset": 200, "scale": 429}[s.onChange])

	s.moveTo("2026-02-28T23:59:59Z")
	s.stays(10, map[string]int{"carry": 1, "reset": 8, "scale": 0}, "the month has not ended")
	s.moveTo("2026-03-01T00:00:00Z")
	s.stays(10, same(10), "a new window")
	s.use(5, 200)

	s.moveTo("2026-03-10T10:00:00Z")
	s.send("invoice.payment_failed", `{"customer":"cus_1","subscription":"sub_1"}`)
	s.send("customer.subscription.updated", adasSubscription("past_due", "price_pro"))
	s.moveTo("2026-03-17T09:59:59Z")
	s.stays(10, same(5), "the grace period has not ended")
	s.moveTo("2026-03-17T10:00:00Z")
	s.becomes(4, map[string]int{"carry": 0, "reset": 4, "scale": 2}, "fell back: 5 of 10 were used")
	s.use(1, map[string]int{"carry": 429, "reset": 200, "scale": 200}[s.onChange])

	s.moveTo("2026-03-18T10:00:00Z")
	s.send("invoice.paid", `{"customer":"cus_1","subscription":"sub_1"}`)
	s.becomes(10, map[string]int{"carry": 5, "reset": 10, "scale": 2}, "paid: 5 of 10, 1 or 3 of 4 were used")
	s.moveTo("2026-03-20T10:00:00Z")
	s.send("customer.subscription.deleted", adasSubscription("canceled", "price_pro"))
	s.becomes(4, map[string]int{"carry": 0, "reset": 4, "scale": 0}, "cancelled: 5, 0 or 8 of 10 were used")
	s.moveTo("2026-04-01T00:00:00Z")
	s.stays(4, same(4), "a new window of the plan free")
	s.trail()
}

// trail compares who changed Ada's plan with what the story told.
func (s *story) trail() {
	s.t.Helper()
	rows, _, err := s.db.Store.Audit(s.t.Context(), s.actor, tenants.AuditFilter{Kind: "subject", Target: "ada"}, tenants.Page{Limit: 100})
	require.NoError(s.t, err)
	var moved []string
	for _, row := range rows { // the newest first
		var before, after struct{ Plan string }
		if row.Before != nil {
			require.NoError(s.t, json.Unmarshal(row.Before, &before))
		}
		require.NoError(s.t, json.Unmarshal(row.After, &after))
		if before.Plan != after.Plan {
			moved = append([]string{row.ActorName + ": " + after.Plan}, moved...)
		}
	}
	require.Equal(s.t, []string{
		"stripe evt_1: pro", "stripe evt_2: max", "scheduled plan change: pro", "stripe sub_1: free", "stripe evt_6: pro", "stripe evt_7: free",
	}, moved)
}
