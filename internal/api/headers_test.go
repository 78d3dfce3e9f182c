package api

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
)

var bothStyles = HeaderStyle{Draft: true, X: true}

func headersOf(style HeaderStyle, d *check.Decision) http.Header {
	var w headerWriter
	raw := http.Header{}
	w.build(style, d)
	w.write(raw, make([]string, len(headerNames)))
	h := http.Header{}
	for name, values := range raw {
		h[http.CanonicalHeaderKey(name)] = values
	}
	decided := map[bool]string{true: decisionAllow, false: decisionDeny}[d.Allowed]
	if h.Get(decisionHeader) != decided {
		panic("the headers do not tell the decision")
	}
	h.Del(decisionHeader) // tested here, for all tests of headers
	return h
}

// The header lists the enforcing rules with a warning, of all decisions of a request, each once.
func TestWarningHeader(t *testing.T) {
	near := func(slug string, mode limit.Mode) check.RuleDecision {
		return check.RuleDecision{Rule: &limit.Rule{Slug: slug}, Mode: mode, Allowed: true, Limit: 10, Quota: 10, WindowMS: 1000, Warning: true}
	}
	quiet := check.RuleDecision{Rule: &limit.Rule{Slug: "quiet"}, Allowed: true, Limit: 10, Quota: 10, WindowMS: 1000}
	one := check.Decision{Allowed: true, Warning: true, Rules: []check.RuleDecision{near("api", limit.Enforce), quiet, near("ghost", limit.Shadow), near("monthly", limit.Enforce)}}
	require.Equal(t, "api, monthly", headersOf(HeaderStyle{}, &one).Get(warningHeader))
	require.Contains(t, string(appendDecision(nil, &one)), `"degraded":false,"warning":true}`)
	require.Contains(t, string(appendDecision(nil, &one)), `"reset_after_ms":0,"warning":true}`)

	quietly := check.Decision{Allowed: true, Rules: []check.RuleDecision{quiet}}
	require.Empty(t, headersOf(bothStyles, &quietly).Values(warningHeader))
	require.NotContains(t, string(appendDecision(nil, &quietly)), "warning")

	other := check.Decision{Allowed: true, Warning: true, Rules: []check.RuleDecision{near("month", limit.Enforce), near("api", limit.Enforce)}}
	for _, build := range []func(*headerWriter){
		func(h *headerWriter) { h.buildBatch([]check.Decision{quietly, one, other}) },
		func(h *headerWriter) { h.build(bothStyles, &quietly, quietly, one, other) },
	} {
		var h headerWriter
		header := http.Header{}
		build(&h)
		h.write(header, make([]string, len(headerNames)))
		require.Equal(t, []string{"api, monthly, month"}, header[warningHeader])
	}
}

func denied() *check.Decision {
	return &check.Decision{
		Code: check.RateLimitExceeded, NowMS: 1_800_000_000_001, Deciding: 1,
		Rules: []check.RuleDecision{
			{Rule: &limit.Rule{Slug: "monthly", Algorithm: limit.FixedWindow}, Allowed: true, Limit: 1_000_000, Quota: 1_000_000,
				WindowMS: 30 * 86_400_000, Remaining: 812_004, ResetAfterMS: 1_158_340_000, NextAfterMS: 1_158_340_000},
			{Rule: &limit.Rule{Slug: "burst", Algorithm: limit.TokenBucket}, Limit: 60, Burst: 90, Quota: 90,
				WindowMS: 1500, RetryAfterMS: 2100, ResetAfterMS: 60_500, NextAfterMS: 700},
			{Rule: &limit.Rule{Slug: "tried-out"}, Mode: limit.Shadow, Limit: 1, Quota: 1, WindowMS: 1000, RetryAfterMS: 999_000},
			{Rule: &limit.Rule{Slug: "free"}, Allowed: true, Unlimited: true},
		},
	}
}

func TestHeaders(t *testing.T) {
	require.Equal(t, http.Header{
		"Ratelimit-Policy":      {`"monthly";q=1000000;w=2592000, "burst";q=90;w=2`},
		"Ratelimit":             {`"monthly";r=812004;t=1158340, "burst";r=0;t=1`},
		"X-Ratelimit-Limit":     {"90"},
		"X-Ratelimit-Remaining": {"0"},
		"X-Ratelimit-Reset":     {"1800000061"},
		"Retry-After":           {"3"},
	}, headersOf(bothStyles, denied()))

	require.Equal(t, http.Header{"Retry-After": {"3"}}, headersOf(HeaderStyle{}, denied()), "the style none keeps what is no style")
	require.NotContains(t, headersOf(HeaderStyle{Draft: true}, denied()), "X-Ratelimit-Limit")
	require.NotContains(t, headersOf(HeaderStyle{X: true}, denied()), "Ratelimit")

	// A client must not wait for something that never happens.
	never := denied()
	never.Rules[1].RetryAfterMS = limit.NeverMS
	require.NotContains(t, headersOf(bothStyles, never), "Retry-After")

	// The full quota is available, so there is no wait.
	d := denied()
	d.Allowed, d.Code = true, check.NoCode
	d.Rules = d.Rules[1:2]
	d.Deciding = 0
	d.Rules[0].Allowed, d.Rules[0].Remaining, d.Rules[0].RetryAfterMS = true, 90, 0
	d.Rules[0].NextAfterMS, d.Rules[0].ResetAfterMS = 0, 0
	h := headersOf(bothStyles, d)
	require.Equal(t, `"burst";r=90`, h.Get("RateLimit"))
	require.NotContains(t, h, "Retry-After")
	require.Equal(t, "1800000001", h.Get("X-RateLimit-Reset"))

	// Nothing was counted: the policy is known, but not its state.
	away := denied()
	away.Rules = away.Rules[1:2]
	away.Deciding, away.Code = 0, check.CountersUnavailable
	away.Rules[0].Uncounted, away.Rules[0].Degraded = true, true
	require.Equal(t, http.Header{
		"Ratelimit-Policy": {`"burst";q=90;w=2`}, "X-Ratelimit-Limit": {"90"}, "Retry-After": {"3"},
	}, headersOf(bothStyles, away))

	// Without a rule there are no headers, so that a client does not derive a limit from a block.
	require.Empty(t, headersOf(bothStyles, &check.Decision{Code: check.SubjectBlocked, Deciding: -1}))

	// A structured field has at most 15 digits; a limit may have 16.
	huge := denied()
	huge.Rules = huge.Rules[:1]
	huge.Deciding = 0
	huge.Rules[0].Quota = limit.MaxFixedLimit
	require.Contains(t, headersOf(bothStyles, huge).Get("RateLimit-Policy"), "q=999999999999999;")
}

// For any decision, the headers are valid structured fields, and agree with each other and with the
// decision.
func TestHeadersAreStructuredFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDecision(t)
		h := headersOf(bothStyles, &d)
		policies := parseList(t, h.Values("RateLimit-Policy"))
		states := parseList(t, h.Values("RateLimit"))
		counted := 0
		for i := range d.Rules {
			r := &d.Rules[i]
			policy, listed := policies[r.Rule.Slug]
			require.Equal(t, r.Mode == limit.Enforce && !r.Unlimited, listed)
			state, known := states[r.Rule.Slug]
			require.Equal(t, listed && !r.Uncounted, known)
			if listed {
				counted++
				require.Equal(t, min(r.Quota, maxStructuredInt), policy["q"])
				require.GreaterOrEqual(t, policy["w"]*1000, r.WindowMS)
				require.Less(t, (policy["w"]-1)*1000, r.WindowMS)
			}
			if known {
				require.Equal(t, min(r.Remaining, maxStructuredInt), state["r"])
				seconds, waits := state["t"]
				require.Equal(t, r.NextAfterMS > 0, waits)
				require.GreaterOrEqual(t, seconds*1000, r.NextAfterMS)
				requireNotBefore(t, &d, r, h.Get("Retry-After"), seconds)
			}
		}
		require.Len(t, policies, counted)
		require.Equal(t, !d.Allowed && d.Rules[d.Deciding].RetryAfterMS != limit.NeverMS, h.Get("Retry-After") != "")
	})
}

// requireNotBefore asserts that a client which respects Retry-After does not return before the
// deciding rule has more units.
func requireNotBefore(t *rapid.T, d *check.Decision, r *check.RuleDecision, retryAfter string, seconds int64) {
	if retryAfter == "" || r != &d.Rules[d.Deciding] {
		return
	}
	wait, err := strconv.ParseInt(retryAfter, 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, wait, seconds)
	require.GreaterOrEqual(t, wait*1000, r.RetryAfterMS)
}

func parseList(t require.TestingT, values []string) map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	if len(values) == 0 {
		return out
	}
	list, err := httpsfv.UnmarshalList(values)
	require.NoError(t, err, values)
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		require.True(t, ok)
		name, ok := item.Value.(string)
		require.True(t, ok, "the draft names policies by strings, not tokens")
		params := map[string]int64{}
		for _, key := range item.Params.Names() {
			value, _ := item.Params.Get(key)
			n, ok := value.(int64)
			require.True(t, ok)
			params[key] = n
		}
		require.NotContains(t, out, name)
		out[name] = params
	}
	return out
}

func TestParseHeaderStyle(t *testing.T) {
	for s, want := range map[string]HeaderStyle{
		"draft,x": bothStyles, "x, draft": bothStyles, "draft": {Draft: true}, "x": {X: true}, "none": {},
	} {
		got, err := ParseHeaderStyle(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "none,x", "Draft", "draft,", "legacy"} {
		_, err := ParseHeaderStyle(s)
		require.Error(t, err, s)
	}
}

func BenchmarkHeaders(b *testing.B) {
	d := denied()
	var w headerWriter
	values := make([]string, len(headerNames))
	header := http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		w.build(bothStyles, d)
		w.write(header, values)
	}
	if header["Retry-After"][0] != "3" {
		b.Fatal(header)
	}
}

// The same with real decisions: for any rules and traffic, a client that respects Retry-After never
// returns before the denying rules have more units.
func TestRetryAfterIsNeverEarly(t *testing.T) {
	keys := check.NewKeys([16]byte{1})
	metrics := check.NewMetrics(prometheusRegistry())
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_800_000_000_000)
		clock := func() int64 { return now }
		checker := check.NewChecker(check.CheckerOptions{
			Keys: keys, Engine: engine.NewMemory(engine.MemoryOptions{Clock: clock}), Metrics: metrics,
			Clock: func() time.Time { return time.UnixMilli(now) },
		})
		var data check.PolicyData
		for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
			data.Rules = append(data.Rules, anyConfiguredRule(t, i))
		}
		policy, err := check.CompilePolicy(keys, limit.TenantID{1}, data)
		require.NoError(t, err)
		for range rapid.IntRange(1, 30).Draw(t, "checks") {
			now += rapid.SampledFrom([]int64{0, 1, 7, 499, 1000, 2001, 10_000}).Draw(t, "pause")
			cost := rapid.Int64Range(0, 6).Draw(t, "cost")
			ds, err := checker.Check(t.Context(), policy, []check.Request{{Subject: "s", Resource: "default", Cost: cost}})
			require.NoError(t, err)
			d := &ds[0]
			h := headersOf(bothStyles, d)
			states := parseList(t, h.Values("RateLimit"))
			if h.Get("Retry-After") == "" {
				require.True(t, d.Allowed || d.Code == check.CostExceedsLimit)
				continue
			}
			wait, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
			require.NoError(t, err)
			for i := range d.Rules {
				if r := &d.Rules[i]; !r.Allowed && r.Mode == limit.Enforce {
					require.GreaterOrEqual(t, wait, states[r.Rule.Slug]["t"], "%+v", r)
					require.GreaterOrEqual(t, wait*1000, r.RetryAfterMS)
				}
			}
		}
	})
}

func anyConfiguredRule(t *rapid.T, i int) limit.Rule {
	r := limit.Rule{
		Slug: "rule-" + itoa(int64(i)), Resource: "*", By: []string{"subject"},
		Algorithm: rapid.SampledFrom(limit.Algorithms).Draw(t, "algorithm"),
		Limit:     rapid.Int64Range(1, 10).Draw(t, "limit"),
		Window:    limit.Window{Duration: limit.Duration{Text: "10s", MS: 10_000}},
		Mode:      rapid.SampledFrom([]limit.Mode{limit.Enforce, limit.Enforce, limit.Shadow}).Draw(t, "mode"),
	}
	if r.Algorithm == limit.SlidingWindowBuckets {
		r.Precision = limit.Duration{Text: "1s", MS: 1000}
	}
	if r.Algorithm.Bucket() {
		r.Burst = rapid.Int64Range(1, 10).Draw(t, "burst")
	}
	if rapid.IntRange(0, 3).Draw(t, "penalized") == 0 {
		r.Penalty = limit.Duration{Text: "3s", MS: 3000}
	}
	return r
}
