package check

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/engine/redis"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// inspected returns the rules of these tests: all but one count by the subject, some by further
// values.
func inspected() PolicyData {
	everywhere := minute("everywhere", 5)
	orders := minute("orders", 3)
	orders.Resource, orders.By = "orders:*", []string{"subject", "resource"}
	create := minute("create", 2)
	create.Resource, create.By = "orders:create", []string{"resource", "subject"}
	address := minute("address", 4)
	address.By = []string{"subject", "resource", "attributes.ip", "attributes.region"}
	tenantWide := minute("tenant-wide", 100)
	tenantWide.By = nil
	off := minute("off", 1)
	off.Mode = limit.Off
	penalized := minute("penalized", 1)
	penalized.Resource, penalized.Penalty = "login", limit.Duration{Text: "10m", MS: 600_000}
	for _, r := range []*limit.Rule{&everywhere, &orders, &create, &address, &tenantWide, &off, &penalized} {
		// The window begins with the first check, so that it does not end during a test with a real
		// clock.
		r.Algorithm, r.Window = limit.FixedWindowFirstHit, limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	}
	return PolicyData{
		Rules: []limit.Rule{everywhere, orders, create, address, tenantWide, off, penalized},
		Plans: []PlanData{{Slug: "pro", Default: true, Limits: map[string]limit.Limit{"everywhere": {Limit: 50}}}},
	}
}

// onEachStore runs a test with counters in memory and in Redis.
func onEachStore(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Run("memory", func(t *testing.T) { test(t, newRig(t, inspected())) })
	t.Run("redis", func(t *testing.T) {
		r := newRig(t, inspected())
		client, err := redis.NewClient(testenv.RedisURL(t), redis.WithTimeout(testenv.RedisTimeout))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		r.store.Engine = redis.New(client, redis.Options{Deadline: testenv.RedisTimeout})
		// A new secret for the keys, because all tests share the server.
		var secret [16]byte
		_, _ = rand.Read(secret[:])
		r.checker.keys = NewKeys(secret)
		r.policy, err = CompilePolicy(r.checker.keys, uuid.New(), inspected())
		require.NoError(t, err)
		r.clock = time.Now
		test(t, r)
	})
}

// lines formats an inspection as short texts.
func lines(l SubjectLimits) (rules, hidden []string) {
	for _, r := range l.Rules {
		rules = append(rules, fmt.Sprintf("%s %d/%d %v %s", r.Rule.Slug, r.Remaining, r.Limit, r.Allowed, r.Source))
	}
	for _, h := range l.Hidden {
		hidden = append(hidden, fmt.Sprintf("%s %s %v", h.Rule.Slug, h.Reason, h.Missing))
	}
	return rules, hidden
}

func (r *rig) inspect(values Request) SubjectLimits {
	return r.checker.Inspect(context.Background(), r.policy, values)
}

// Support sees what remains for a customer under each rule, and consumes nothing.
func TestInspect(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		ip := []Attribute{{"ip", "203.0.113.7"}, {"region", "eu"}}
		create := Request{Subject: "s", Resource: "orders:create", Cost: 2, Attributes: ip}
		require.True(t, r.check(create).Allowed)
		for range 2 {
			rules, hidden := lines(r.inspect(Request{Subject: "s"}))
			require.Equal(t, []string{"create 0/2 false rule", "everywhere 48/50 true plan:pro", "penalized 1/1 true rule"}, rules)
			require.Equal(t, []string{
				"address missing_values [resource attributes.ip attributes.region]", "off mode_off []",
				"orders missing_values [resource]", "tenant-wide not_by_subject []",
			}, hidden)
		}
		rules, hidden := lines(r.inspect(Request{Subject: "s", Resource: "orders:create", Attributes: ip[:1]}))
		require.Contains(t, rules, "orders 1/3 true rule")
		require.Contains(t, hidden, "address missing_values [attributes.region]")
		rules, hidden = lines(r.inspect(Request{Subject: "s", Resource: "reports", Attributes: ip}))
		require.Equal(t, []string{"address 4/4 true rule", "everywhere 48/50 true plan:pro", "penalized 1/1 true rule"}, rules)
		require.Equal(t, []string{
			"create resource_mismatch []", "off mode_off []", "orders resource_mismatch []", "tenant-wide not_by_subject []",
		}, hidden)
		rules, _ = lines(r.inspect(Request{Subject: "other"}))
		require.Equal(t, []string{"create 2/2 true rule", "everywhere 50/50 true plan:pro", "penalized 1/1 true rule"}, rules)
	})
}

// Of one rule, only its own counter is read, and it says the same as among all.
func TestInspectRule(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		values := Request{Subject: "s", Resource: "orders:create", Cost: 2}
		require.True(t, r.check(values).Allowed)
		all := r.inspect(values)
		require.Len(t, all.Rules, 4)
		for _, want := range all.Rules {
			one := r.checker.InspectRule(t.Context(), r.policy, want.Rule.Slug, values)
			require.Len(t, one.Rules, 1)
			require.Empty(t, one.Hidden)
			got := one.Rules[0]
			require.Equal(t, []any{want.Rule, want.Remaining, want.Limit, want.Allowed, want.Source}, []any{got.Rule, got.Remaining, got.Limit, got.Allowed, got.Source})
		}
		rules, hidden := lines(r.checker.InspectRule(t.Context(), r.policy, "off", values))
		require.Empty(t, rules)
		require.Equal(t, []string{"off mode_off []"}, hidden)
		rules, hidden = lines(r.checker.InspectRule(t.Context(), r.policy, "unknown", values))
		require.Empty(t, append(rules, hidden...))
	})
}

// The waits are those of a check of cost 1, including a penalty.
func TestInspectTimes(t *testing.T) {
	r := newRig(t, inspected())
	login := Request{Subject: "s", Resource: "login", Cost: 1}
	require.True(t, r.check(login).Allowed)
	find := func() RuleDecision {
		for _, rule := range r.inspect(Request{Subject: "s"}).Rules {
			if rule.Rule.Slug == "penalized" {
				return rule
			}
		}
		t.Fatal("not shown")
		return RuleDecision{}
	}
	r.move(55 * time.Minute)
	require.Equal(t, r.check(Request{Subject: "s", Resource: "none"}).NowMS, r.inspect(Request{Subject: "s"}).NowMS)
	rule := find()
	require.False(t, rule.Allowed || rule.Penalized)
	require.Equal(t, (5 * time.Minute).Milliseconds(), rule.RetryAfterMS)
	require.False(t, r.check(login).Allowed)
	rule = find()
	require.True(t, rule.Penalized)
	require.Equal(t, (10 * time.Minute).Milliseconds(), rule.RetryAfterMS)
	require.Equal(t, r.check(login).Rules[1].RetryAfterMS, rule.RetryAfterMS)
	r.move(10 * time.Minute)
	rule = find()
	require.True(t, rule.Allowed && !rule.Penalized)
	require.Zero(t, rule.RetryAfterMS)
	require.True(t, r.check(login).Allowed)
}

// All rules of a tenant are shown, in order, however many there are. The state of a blocked or
// exempt subject is shown, and so is a rule without a limit.
func TestInspectMany(t *testing.T) {
	var data PolicyData
	for i := range 100 {
		data.Rules = append(data.Rules, minute(fmt.Sprintf("rule-%03d", i), int64(i+1)))
		data.Rules[i].Resource = fmt.Sprint("r", i)
	}
	r := newRig(t, data,
		SubjectData{Subject: "bad", State: Blocked, Overrides: []OverrideData{{Rule: "rule-040", Limit: limit.Limit{Unlimited: true}}}},
		SubjectData{Subject: "friend", State: Exempt})
	require.True(t, r.check(Request{Subject: "friend", Resource: "r70", Cost: 70}).Allowed)

	friend := r.inspect(Request{Subject: "friend"})
	require.Equal(t, Exempt, friend.State)
	require.Len(t, friend.Rules, 100)
	for i, rule := range friend.Rules {
		require.Equal(t, data.Rules[i].Slug, rule.Rule.Slug)
		require.Equal(t, limit.Shadow, rule.Mode)
		if i == 70 {
			require.Equal(t, int64(1), rule.Remaining)
		} else {
			require.Equal(t, int64(i+1), rule.Remaining)
		}
	}
	bad := r.inspect(Request{Subject: "bad"})
	require.Equal(t, Blocked, bad.State)
	require.Len(t, bad.Rules, 100)
	require.True(t, bad.Rules[40].Unlimited)
}

// If Redis is unavailable, the numbers are those that checks get, and are marked as degraded.
func TestInspectDegraded(t *testing.T) {
	local, allow, deny := minute("local", 5), minute("allow", 5), minute("deny", 5)
	allow.OnUnavailable, deny.OnUnavailable = limit.Allow, limit.Deny
	local.Resource, allow.Resource, deny.Resource = "local", "allow", "deny"
	r := newRig(t, PolicyData{Rules: []limit.Rule{local, allow, deny}})
	require.True(t, r.check(Request{Subject: "s", Resource: "local", Cost: 1}).Allowed)
	r.store.fail.Store(true)
	require.True(t, r.check(Request{Subject: "s", Resource: "local", Cost: 2}).Allowed)

	seen := r.inspect(Request{Subject: "s"})
	require.True(t, seen.Degraded)
	require.True(t, seen.Rules[0].Allowed && seen.Rules[0].Uncounted && seen.Rules[0].Degraded)
	require.True(t, !seen.Rules[1].Allowed && seen.Rules[1].Uncounted)
	require.Positive(t, seen.Rules[1].RetryAfterMS)
	require.Equal(t, int64(2), seen.Rules[2].Remaining, "what the store said last, and the local count of this instance")
	require.True(t, seen.Rules[2].Degraded)
}

func (r *rig) reset(rule string, values Request) (reset, hidden []string, err error) {
	var rules []string
	if rule != "" {
		rules = []string{rule}
	}
	reset, without, err := r.checker.Reset(context.Background(), r.policy, rules, values)
	for _, h := range without {
		hidden = append(hidden, h.Rule.Slug)
	}
	return reset, hidden, err
}

// After a reset, a customer can use the full limit immediately, even during a penalty. Other
// customers are not affected.
func TestReset(t *testing.T) {
	onEachStore(t, func(t *testing.T, r *rig) {
		var denials atomic.Int64 // a clock that passes the time for which a denial is remembered
		base := r.clock
		r.clock = func() time.Time { return base().Add(time.Duration(denials.Load()) * time.Millisecond) }
		login := Request{Subject: "s", Resource: "login", Cost: 1}
		create := Request{Subject: "s", Resource: "orders:create", Cost: 1, Attributes: []Attribute{{"ip", "203.0.113.7"}, {"region", "eu"}}}
		other := login
		other.Subject = "other"
		for _, req := range []Request{login, other} {
			require.True(t, r.check(req).Allowed)
			require.False(t, r.check(req).Allowed, "a penalty starts")
		}
		require.True(t, r.check(create).Allowed)

		reset, hidden, err := r.reset("penalized", Request{Subject: "s"})
		require.NoError(t, err)
		require.Equal(t, []string{"penalized"}, reset)
		require.Empty(t, hidden)
		denials.Add(100)
		require.True(t, r.check(login).Allowed)
		require.False(t, r.check(other).Allowed)
		rules, _ := lines(r.inspect(Request{Subject: "s"}))
		require.Contains(t, rules, "create 1/2 true rule", "the other rules' counters stay")

		_, _, err = r.checker.Reset(context.Background(), r.policy, []string{"create", "none"}, Request{Subject: "s"})
		var uncounted *UncountedError
		require.ErrorAs(t, err, &uncounted)
		require.True(t, uncounted.Unknown)
		_, _, err = r.checker.Reset(context.Background(), r.policy, []string{"create", "tenant-wide"}, Request{Subject: "s"})
		require.ErrorAs(t, err, &uncounted)
		require.Equal(t, NotBySubject, uncounted.Reason)
		rules, _ = lines(r.inspect(Request{Subject: "s"}))
		require.Contains(t, rules, "create 1/2 true rule", "all or none")

		reset, hidden, err = r.reset("", Request{Subject: "s"})
		require.NoError(t, err)
		require.Equal(t, []string{"create", "everywhere", "off", "penalized"}, reset)
		require.Equal(t, []string{"address", "orders", "tenant-wide"}, hidden)
		rules, _ = lines(r.inspect(Request{Subject: "s", Resource: "orders:create", Attributes: create.Attributes}))
		require.Equal(t, []string{
			"address 3/4 true rule", "create 2/2 true rule", "everywhere 50/50 true plan:pro", "orders 2/3 true rule", "penalized 1/1 true rule",
		}, rules)

		reset, _, err = r.reset("", create)
		require.NoError(t, err)
		require.Equal(t, []string{"address", "create", "everywhere", "off", "orders", "penalized"}, reset)
		rules, _ = lines(r.inspect(create))
		require.Contains(t, rules, "address 4/4 true rule")
		require.Contains(t, rules, "orders 3/3 true rule")
		d := r.check(Request{Subject: "other", Resource: "x", Cost: 0})
		require.Equal(t, int64(100-4), remaining(t, d, "tenant-wide"), "a reset of a subject keeps the tenant's counters")
	})
}

func remaining(t *testing.T, d Decision, rule string) int64 {
	t.Helper()
	for i := range d.Rules {
		if d.Rules[i].Rule.Slug == rule {
			return d.Rules[i].Remaining
		}
	}
	t.Fatalf("no rule %s", rule)
	return 0
}

// A reset that is not possible changes nothing, and the error says what is missing.
func TestResetErrors(t *testing.T) {
	r := newRig(t, inspected())
	require.True(t, r.check(Request{Subject: "s", Resource: "orders:create", Cost: 1}).Allowed)
	for rule, want := range map[string]UncountedError{
		"none":        {Unknown: true},
		"tenant-wide": {Reason: NotBySubject},
		"orders":      {Reason: MissingValues, Missing: []string{"resource"}},
		"address":     {Reason: MissingValues, Missing: []string{"resource", "attributes.ip", "attributes.region"}},
	} {
		want.Rule = rule
		_, _, err := r.reset(rule, Request{Subject: "s"})
		require.Equal(t, &want, err)
		require.NotEmpty(t, err.Error())
	}
	_, _, err := r.reset("create", Request{Subject: "s", Resource: "orders:list"})
	require.Equal(t, &UncountedError{Rule: "create", Reason: ResourceMismatch}, err)

	r.store.Engine = brokenReset{r.store.Engine}
	_, _, err = r.reset("", Request{Subject: "s"})
	require.ErrorIs(t, err, ErrCountersUnavailable)
	require.ErrorIs(t, err, errBroken)
	rules, _ := lines(r.inspect(Request{Subject: "s"}))
	require.Contains(t, rules, "create 1/2 true rule")

	r.move(150 * time.Millisecond)
	for range 5 {
		_, _, _ = r.reset("create", Request{Subject: "s"})
	}
	_, _, err = r.reset("create", Request{Subject: "s"})
	require.ErrorIs(t, err, engine.ErrBreakerOpen, "an unavailable store is not called each time")
}

var errBroken = errors.New("broken")

type brokenReset struct{ engine.Engine }

func (brokenReset) Reset(context.Context, ...engine.Counter) error { return errBroken }

// A reset also resets what this instance counted locally while the store was unavailable.
func TestResetLocal(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 2)}})
	s := Request{Subject: "s", Cost: 2}
	r.store.fail.Store(true)
	require.True(t, r.check(s).Allowed)
	r.store.fail.Store(false)
	_, _, err := r.reset("api", s)
	require.NoError(t, err)
	r.store.fail.Store(true)
	d := r.check(s)
	require.True(t, d.Allowed && d.Degraded)
}

// Checks run while counters are reset. Each of them is decided on a consistent counter: at most
// limit times (resets + 1) are allowed.
func TestResetWhileChecksRun(t *testing.T) {
	r := newRig(t, PolicyData{Rules: []limit.Rule{minute("api", 10)}})
	const resets, workers = 20, 4
	var admitted atomic.Int64
	done := make(chan struct{})
	for w := range workers {
		go func() {
			for i := range 2000 {
				// A different cost each time, so that no remembered denial answers.
				d, err := r.checker.Check(context.Background(), r.policy, []Request{{Subject: "s", Resource: fmt.Sprint(w, i), Cost: 1}})
				if err == nil && d[0].Allowed {
					admitted.Add(1)
				}
			}
			done <- struct{}{}
		}()
	}
	for range resets {
		_, _, err := r.reset("api", Request{Subject: "s"})
		require.NoError(t, err)
	}
	for range workers {
		<-done
	}
	require.LessOrEqual(t, admitted.Load(), int64(10*(resets+1)))
	require.GreaterOrEqual(t, admitted.Load(), int64(10))
}
