package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// Checks from the first to a denied one, as an application sees them.
func TestCheck(t *testing.T) {
	s := newCheckStack(t)
	require.Equal(t, s.post("/check", `{"subject":"peek","cost":0}`).decision(200), s.check(`{"subject":"peek","cost":0}`).decision(200), "one handler, two paths")
	for i := range perSubject {
		a := s.check(`{"subject":"user_42"}`)
		d := a.decision(200)
		require.True(t, d.Allowed)
		require.Equal(t, "free", *d.Plan)
		require.Equal(t, "default", d.Resource)
		require.Equal(t, int64(perSubject-1-i), *d.Remaining)
		require.Equal(t, "plan:free", d.Rules[0].Source)
		require.Nil(t, d.Error)
		require.Equal(t, `"per-subject";q=5;w=3600`, a.header.Get("RateLimit-Policy"))
		require.Empty(t, a.header.Get("Retry-After"))
	}
	a := s.check(`{"subject":"user_42"}`)
	d := a.decision(429)
	require.False(t, d.Allowed)
	require.Equal(t, "RATE_LIMIT_EXCEEDED", d.Error.Code)
	require.Equal(t, int64(0), *d.Remaining)
	require.InDelta(t, 3_600_000, *d.RetryAfterMS, 60_000)
	require.Equal(t, itoa(*d.Error.RetryAfter), a.header.Get("Retry-After"))
	require.Equal(t, "5", a.header.Get("X-RateLimit-Limit"))
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining"))
	require.Contains(t, a.header.Get("RateLimit"), `"per-subject";r=0;t=`)

	// A client whose library retries every 429 can request another status.
	d = s.check(`{"subject":"user_42"}`, header{"Weir-Denied-Status", "200"}).decision(200)
	require.False(t, d.Allowed)
	s.check(`{"subject":"user_42"}`, header{"Weir-Denied-Status", "429"}).decision(429)
	for _, bad := range [][]header{
		{{"Weir-Denied-Status", "403"}}, {{"Weir-Denied-Status", ""}}, {{"Weir-Denied-Status", "200"}, {"Weir-Denied-Status", "200"}},
	} {
		s.check(`{"subject":"user_42"}`, bad...).problem(400, "INVALID_HEADER")
	}

	// /check has the same handler and the same counter.
	s.post("/check", `{"subject":"user_42"}`).decision(429)
	// Another tenant's subject with the same name has its own quota, or here no rule.
	other := s.contract.call(s.other, http.MethodPost, "/v1/check", `{"subject":"user_42"}`).decision(200)
	require.Nil(t, other.Rule)
	require.Empty(t, other.Rules)
}

func TestCheckCosts(t *testing.T) {
	s := newCheckStack(t)
	// Cost 0 reads the state and consumes nothing, also if nothing remains.
	s.untouched("zero")
	s.check(`{"subject":"zero","cost":5}`).decision(200)
	require.Equal(t, int64(0), s.remaining("zero", "default"))
	s.check(`{"subject":"zero"}`).decision(429)

	// A cost above the limit has its own code, and its denial does not affect other checks.
	a := s.check(`{"subject":"greedy","cost":6}`)
	d := a.decision(429)
	require.Equal(t, "COST_EXCEEDS_LIMIT", d.Error.Code)
	require.Equal(t, "A cost of 6 can never pass: per-subject allows at most 5 at once.", d.Error.Message)
	require.Nil(t, d.RetryAfterMS)
	require.Nil(t, d.Error.RetryAfter)
	require.Empty(t, a.header.Get("Retry-After"))
	s.check(`{"subject":"greedy","cost":5}`).decision(200)

	// A denied cost leaves units for a smaller one.
	s.check(`{"subject":"mixed","cost":3}`).decision(200)
	s.check(`{"subject":"mixed","cost":3}`).decision(429)
	s.check(`{"subject":"mixed","cost":2}`).decision(200)

	// A dry run reports what would happen, and consumes nothing.
	d = s.check(`{"subject":"dry","cost":5,"dry_run":true}`).decision(200)
	require.Equal(t, int64(0), *d.Remaining)
	s.untouched("dry")
	// A check that a proxy sends twice is counted twice, because checks have no identity.
	s.check(`{"subject":"twice"}`)
	s.check(`{"subject":"twice"}`)
	require.Equal(t, int64(3), s.remaining("twice", "default"))
}

func TestCheckPlansAndStates(t *testing.T) {
	s := newCheckStack(t)
	d := s.check(`{"subject":"paying"}`).decision(200)
	require.Equal(t, "pro", *d.Plan)
	require.Equal(t, int64(50), *d.Limit)

	// A client may name any plan of its tenant. The next check without a plan is not affected.
	d = s.check(`{"subject":"guest","plan":"pro"}`).decision(200)
	require.Equal(t, "plan:pro", d.Rules[0].Source)
	require.Equal(t, int64(49), *d.Remaining)
	d = s.check(`{"subject":"guest"}`).decision(200)
	require.Equal(t, "plan:free", d.Rules[0].Source)
	require.Equal(t, int64(3), *d.Remaining)

	a := s.check(`{"subject":"guest","plan":"boundless"}`)
	d = a.decision(200)
	require.Nil(t, d.Rule)
	require.True(t, d.Rules[0].Unlimited)
	require.Empty(t, a.header.Get("RateLimit-Policy"))
	require.Empty(t, a.header.Get("X-RateLimit-Limit"))

	a = s.check(`{"subject":"blocked"}`)
	d = a.decision(429)
	require.Equal(t, "SUBJECT_BLOCKED", d.Error.Code)
	require.Nil(t, d.Error.RetryAfter)
	require.Empty(t, a.header.Get("Retry-After"))
	s.check(`{"subject":"exempt","cost":3}`).decision(200)
	d = s.check(`{"subject":"exempt","cost":3}`).decision(200)
	require.Equal(t, "shadow", d.Rules[0].Mode)

	// An unknown plan, another tenant's plan and a malformed one get the same answer, so nobody
	// learns which plans others have.
	var first []byte
	for _, plan := range []string{"unknown", "theirs", "", "unlimited", "Pro", "pro ", "\\u0000", strings.Repeat("p", 300)} {
		a := s.check(`{"subject":"a","plan":"` + plan + `"}`)
		p := a.problem(422, "UNKNOWN_PLAN")
		p.RequestID = ""
		text, err := json.Marshal(p)
		require.NoError(t, err)
		if first == nil {
			first = text
		}
		require.JSONEq(t, string(first), string(text))
	}
	s.untouched("a")
}

func TestCheckRules(t *testing.T) {
	s := newCheckStack(t)
	// A rule that counts by an attribute that the check does not have is skipped and listed.
	d := s.check(`{"subject":"a","resource":"ip"}`).decision(200)
	require.Equal(t, []CheckSkip{{Rule: "by-ip", Reason: "missing_attribute", Attribute: "ip"}}, d.Skipped)
	require.Empty(t, d.Rules)
	d = s.check(`{"subject":"a","resource":"ip","attributes":{"ip":"203.0.113.7","unused":"x"}}`).decision(200)
	require.Equal(t, int64(2), *d.Remaining)
	d = s.check(`{"subject":"b","resource":"ip","attributes":{"ip":"203.0.113.7"}}`).decision(200)
	require.Equal(t, int64(1), *d.Remaining, "subjects behind one address share its counter")

	// With explain, the answer lists every rule.
	d = s.check(`{"subject":"a","resource":"ip","explain":true}`).decision(200)
	require.Len(t, d.Skipped, len(testRules()))
	require.Contains(t, d.Skipped, CheckSkip{Rule: "switched-off", Reason: "mode_off"})
	require.Contains(t, d.Skipped, CheckSkip{Rule: "orders", Reason: "resource_mismatch"})

	// A resource in a check is never a pattern.
	require.Empty(t, s.check(`{"subject":"a","resource":"*"}`).decision(200).Rules)
	require.Len(t, s.check(`{"subject":"a","resource":"orders:*"}`).decision(200).Rules, 1)
	require.Empty(t, s.check(`{"subject":"a","resource":"orders"}`).decision(200).Rules)

	// A rule in shadow mode is reported, denies nothing, and is not in the headers.
	s.check(`{"subject":"a","resource":"shadow"}`).decision(200)
	a := s.check(`{"subject":"a","resource":"shadow"}`)
	d = a.decision(200)
	require.False(t, d.Rules[0].Allowed)
	require.Nil(t, d.Rule)
	require.Empty(t, a.header.Get("RateLimit"))

	// A queue rule returns the delay of an allowed request.
	s.check(`{"subject":"a","resource":"queue"}`).decision(200)
	d = s.check(`{"subject":"a","resource":"queue"}`).decision(200)
	require.InDelta(t, 3_600_000, *d.DelayMS, 60_000)
	require.Equal(t, *d.DelayMS, *d.Rules[0].DelayMS)
}

// Names that look like others, or like two names joined, have their own counters. Otherwise one
// customer could use up another's quota.
func TestCheckKeepsNamesApart(t *testing.T) {
	s := newCheckStack(t)
	for _, name := range []string{
		"a{b}c", "{}", "{tenant2}", "}", "__proto__", "*", "default", "platform", s.actor.TenantID().String(), "../x", "%2e%2e",
		"\u00e9", "e\u0301", "E", "e", "e ", "\u2028", "\u202e", "\u200b", strings.Repeat("s", 256), "acme", "per-subject",
	} {
		body, err := json.Marshal(CheckRequest{Subject: name, Cost: 1})
		require.NoError(t, err)
		d := s.check(string(body)).decision(200)
		require.Equal(t, name, d.Subject)
		require.Equal(t, int64(perSubject-1), *d.Remaining, "%q", name)
	}
	for _, sep := range []string{":", "_", "|", "/", ",", " ", "{", "}", "\u2028", ".", "-"} {
		for _, pair := range [][2]string{{"a" + sep + "b", "orders:c"}, {"a", "orders:" + "b" + sep + "c"}, {"a" + sep + "b" + sep + "orders:c", "orders:"}} {
			body, err := json.Marshal(CheckRequest{Subject: pair[0], Resource: pair[1], Cost: 1})
			require.NoError(t, err)
			d := s.check(string(body)).decision(200)
			require.Equal(t, int64(2), *d.Remaining, "%q", pair)
		}
	}
}

func TestBatch(t *testing.T) {
	s := newCheckStack(t)
	// Each check is decided by itself and in order: the sum for one subject is exact.
	a := s.post("/v1/check/batch", entries(100, `{"subject":"same"}`)).ok(200)
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Empty(t, a.header.Get("RateLimit"), "there is no one decision to tell of")
	var out CheckResults
	require.NoError(t, json.Unmarshal(a.body, &out))
	require.Len(t, out.Results, 100)
	for i, d := range out.Results {
		require.Equal(t, i < perSubject, d.Allowed, i)
	}
	a = s.post("/v1/check/batch", `{"checks":[{"subject":"x","cost":9},{"subject":"x","resource":"one"},{"subject":"blocked"}]}`,
		header{"Weir-Denied-Status", "200"}).ok(200)
	require.NoError(t, json.Unmarshal(a.body, &out))
	require.Equal(t, []string{"default", "one", "default"}, []string{out.Results[0].Resource, out.Results[1].Resource, out.Results[2].Resource})
	require.Equal(t, []bool{false, true, false}, []bool{out.Results[0].Allowed, out.Results[1].Allowed, out.Results[2].Allowed})

	// If one entry is invalid, nothing is counted for the others.
	for _, bad := range []string{
		`{"checks":[{"subject":"a"},{"subject":"a","cost":-1}]}`, `{"checks":[{"subject":"a"},{}]}`, `{"checks":[{"subject":"a"},null]}`,
		`{"checks":[{"subject":"a"},{"subject":"a","plan":"unknown"}]}`, `{"checks":[{"subject":"a"},{"Subject":"a"}]}`,
		entries(101, `{"subject":"a"}`), `{"checks":[{"subject":"a"}]`,
	} {
		require.Contains(t, []int{400, 422}, s.post("/v1/check/batch", bad).status, bad)
	}
	require.Equal(t, []string{"/checks/1/plan"},
		s.post("/v1/check/batch", `{"checks":[{"subject":"a"},{"subject":"a","plan":"unknown"}]}`).pointers(422, "UNKNOWN_PLAN"))
	s.untouched("a")

	// The whole batch is counted against the tenant's own quota first.
	pad := strings.Repeat(" ", maxBatchBody)
	s.post("/v1/check/batch", (`{"checks":[{"subject":"a"}]}` + pad)[:maxBatchBody]).ok(200)
	s.post("/v1/check/batch", (`{"checks":[{"subject":"a"}]}` + pad)[:maxBatchBody+1]).problem(413, "BODY_TOO_LARGE")
	require.Equal(t, int64(perSubject-1), s.remaining("a", "default"))
}

// A thousand concurrent checks with one unit left: exactly one is allowed.
func TestConcurrentChecks(t *testing.T) {
	s := newCheckStack(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, MaxConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 16 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/v1/check", strings.NewReader(`{"subject":"last","resource":"one"}`))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+s.key)
				r.Header.Set("Content-Type", "application/json")
				response, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
				if response.StatusCode == http.StatusOK {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(1), allowed.Load())
}

// quota gives each tenant so many checks in an hour, by a rule of the operator's tenant.
func (s *checkStack) quota(checks int64) (operator tenants.Actor) {
	s.t.Helper()
	platform, err := s.db.Store.EnsurePlatform(s.t.Context())
	require.NoError(s.t, err)
	operator = tenants.AsSystem(platform.ID, "test")
	_, err = s.db.Store.CreateRule(s.t.Context(), operator, hourly("checks-an-hour", check.QuotaResource, checks, "subject"))
	require.NoError(s.t, err)
	return operator
}

// A tenant that is over its own quota, a rule of the platform, gets an error, and nothing is
// decided or counted for its customers.
func TestTenantQuota(t *testing.T) {
	s := newCheckStack(t)
	ctx, store := t.Context(), s.db.Store
	operator := s.quota(110)
	_, _, err := store.PutOverride(ctx, operator, "other", tenants.Override{Rule: "checks-an-hour", Limit: limit.Limit{Limit: 10}, Reason: "a small tier"}, tenants.Match{})
	require.NoError(t, err)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Quota = check.NewQuota(deps.Checker, deps.Policies, operator.TenantID())
	s.serve(Config{}, deps)

	s.check(`{"subject":"a"}`).decision(200)
	s.post("/v1/check/batch", entries(100, `{"subject":"b"}`)).ok(200)
	for range 20 {
		s.check(`{"subject":"a","cost":-1}`).problem(422, "INVALID_REQUEST") // no check, so it costs no quota
	}
	s.check(`{"subject":"a"}`).decision(200)

	a := s.post("/v1/check/batch", entries(100, `{"subject":"a"}`))
	a.problem(429, "TENANT_QUOTA_EXCEEDED")
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, 3600, wait, 60, "until the hour is over")
	require.Equal(t, int64(perSubject-2), s.remaining("a", "default"))

	s.key = s.other
	a = s.post("/v1/check/batch", entries(11, `{"subject":"a"}`))
	a.problem(429, "TENANT_QUOTA_EXCEEDED")
	require.Empty(t, a.header.Get("Retry-After"), "eleven checks never fit a quota of ten")
	s.check(`{"subject":"a"}`).decision(200)
}

// While the store is unavailable, loaded tenants are served, and others are asked to retry.
func TestPolicyUnavailable(t *testing.T) {
	s := newCheckStack(t)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	metrics := check.NewMetrics(prometheusRegistry())
	deps.Policies = check.NewPolicies(brokenSource{}, check.NewKeys([16]byte{7}), deps.Logger, metrics)
	s.serve(Config{}, deps)
	a := s.check(`{"subject":"a"}`)
	p := a.problem(503, "POLICY_UNAVAILABLE")
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.NotContains(t, p.Detail, "password", "what went wrong inside is not for clients")
}

type brokenSource struct{ check.PolicySource }

func (brokenSource) LoadPolicy(context.Context, limit.TenantID) (check.PolicyData, error) {
	return check.PolicyData{}, fmt.Errorf("password authentication failed: %w", tenants.ErrUnavailable)
}

// If Redis is unavailable, each rule answers by its on_unavailable, the answer is marked as
// degraded, and no check fails.
func TestCheckDegraded(t *testing.T) {
	s := newCheckStack(t)
	deny := hourly("strict", "strict", 5, "subject")
	deny.OnUnavailable = limit.Deny
	open := hourly("open", "open", 5, "subject")
	open.OnUnavailable = limit.Allow
	for _, r := range []limit.Rule{deny, open} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err)
	}
	s.registry = prometheusRegistry()
	s.serve(Config{Headers: bothStyles}, s.newDeps(t, awayEngine{}))

	d := s.check(`{"subject":"a"}`).decision(200)
	require.True(t, d.Degraded)
	require.True(t, d.Rules[0].Degraded)
	require.Equal(t, int64(perSubject-1), *d.Remaining, "counted here instead")

	a := s.check(`{"subject":"a","resource":"open"}`)
	d = a.decision(200)
	require.True(t, d.Degraded)
	require.Nil(t, d.Rules[0].Remaining)
	require.Equal(t, `"open";q=5;w=3600`, a.header.Get("RateLimit-Policy"))
	require.Empty(t, a.header.Get("RateLimit"))

	a = s.check(`{"subject":"a","resource":"strict"}`)
	d = a.decision(429)
	require.Equal(t, "COUNTERS_UNAVAILABLE", d.Error.Code)
	require.Nil(t, d.Remaining)
	require.NotEmpty(t, a.header.Get("Retry-After"))
}

// awayEngine is an engine with an unavailable counter store.
type awayEngine struct{ engine.Engine }

func (awayEngine) Evaluate(_ context.Context, calls ...*engine.Call) {
	for _, c := range calls {
		c.Err = context.DeadlineExceeded
	}
}

// A changed rule takes effect without a restart, and its counter continues, also if the rule is
// deleted and created again.
func TestCheckFollowsChanges(t *testing.T) {
	s := newCheckStack(t)
	s.check(`{"subject":"a","cost":5}`).decision(200)
	s.check(`{"subject":"a"}`).decision(429)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	watching := make(chan error, 1)
	go func() {
		watching <- s.db.Store.Watch(ctx, func(c tenants.Change) {
			s.deps.Policies.Changed(c.Tenant, c.PolicyVersion, c.SubjectsVersion)
		})
	}()
	plan, err := s.db.Store.PlanBySlug(t.Context(), s.actor, "free")
	require.NoError(t, err)
	_, _, err = s.db.Store.PutPlanLimit(t.Context(), s.actor, plan.Slug, "per-subject", limit.Limit{Limit: 7}, tenants.Match{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.remaining("a", "default") == 2 }, time.Minute, 20*time.Millisecond)

	s.check(`{"subject":"a","resource":"one"}`).decision(200)
	require.NoError(t, s.db.Store.DeleteRule(t.Context(), s.actor, "one", tenants.Match{}))
	_, err = s.db.Store.CreateRule(t.Context(), s.actor, hourly("one", "one", 3, "subject"))
	require.NoError(t, err)
	var again CheckAnswer
	require.Eventually(t, func() bool {
		again = s.check(`{"subject":"a","resource":"one","cost":0}`).decision(200)
		return again.Limit != nil && *again.Limit == 3
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, int64(2), *again.Remaining)
	stop()
	<-watching
}
