package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/check"
	"weir/internal/limit"
)

var apiRequests = &limit.Rule{Slug: "api-requests", Algorithm: limit.SlidingWindowCounter}

// The form on which clients rely, exactly: names, order, and null if there is no number.
func TestAppendDecision(t *testing.T) {
	window := check.RuleDecision{
		Rule: apiRequests, Source: "plan:free", Limit: 100, Quota: 100, WindowMS: 60_000, RetryAfterMS: 1250, ResetAfterMS: 41_250, NextAfterMS: 600,
	}
	bucket := check.RuleDecision{
		Rule: &limit.Rule{Slug: "burst", Algorithm: limit.TokenBucket}, Source: "override", Allowed: true,
		Limit: 10, Burst: 20, Quota: 20, WindowMS: 1000, Remaining: 19, ResetAfterMS: 100, NextAfterMS: 100,
	}
	queue := check.RuleDecision{
		Rule: &limit.Rule{Slug: "queue", Algorithm: limit.LeakyBucketQueue}, Source: "rule", Allowed: true,
		Limit: 5, Burst: 5, Quota: 5, WindowMS: 1000, Remaining: 3, ResetAfterMS: 400, NextAfterMS: 200, DelayMS: 200,
	}
	unlimited := check.RuleDecision{Rule: apiRequests, Source: "plan:enterprise", Allowed: true, Unlimited: true}
	shadow := window
	shadow.Mode = limit.Shadow
	never := window
	never.CostExceeds, never.RetryAfterMS, never.Remaining = true, limit.NeverMS, 7
	away := check.RuleDecision{
		Rule: apiRequests, Source: "rule", Degraded: true, Uncounted: true, Limit: 100, Quota: 100, WindowMS: 60_000, RetryAfterMS: 180,
	}
	penalized := window
	penalized.Penalized = true

	for _, c := range []struct {
		name string
		d    check.Decision
		want string
	}{
		{
			"denied: the example of the documentation",
			check.Decision{Code: check.RateLimitExceeded, Subject: "user_42", Resource: "orders:create", Cost: 1, Plan: "free", Rules: []check.RuleDecision{window}},
			`{"allowed":false,"subject":"user_42","resource":"orders:create","cost":1,"plan":"free",` +
				`"rule":"api-requests","limit":100,"remaining":0,"retry_after_ms":1250,"reset_after_ms":41250,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":false,` +
				`"source":"plan:free","limit":100,"window_ms":60000,"remaining":0,"retry_after_ms":1250,"reset_after_ms":41250}],` +
				`"degraded":false,"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded. Try again in 2 seconds.","retry_after":2}}`,
		},
		{
			"allowed by a bucket, beside a rule in shadow",
			check.Decision{Allowed: true, Subject: "u", Resource: "default", Cost: 1, Deciding: 1, Rules: []check.RuleDecision{shadow, bucket}},
			`{"allowed":true,"subject":"u","resource":"default","cost":1,"plan":null,` +
				`"rule":"burst","limit":10,"remaining":19,"retry_after_ms":0,"reset_after_ms":100,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"shadow","allowed":false,` +
				`"source":"plan:free","limit":100,"window_ms":60000,"remaining":0,"retry_after_ms":1250,"reset_after_ms":41250},` +
				`{"rule":"burst","algorithm":"token_bucket","mode":"enforce","allowed":true,` +
				`"source":"override","limit":10,"burst":20,"window_ms":1000,"remaining":19,"retry_after_ms":0,"reset_after_ms":100}],"degraded":false}`,
		},
		{
			"queued: how long to hold it",
			check.Decision{Allowed: true, Subject: "u", Resource: "default", Cost: 1, HasDelay: true, DelayMS: 200, Rules: []check.RuleDecision{queue}},
			`{"allowed":true,"subject":"u","resource":"default","cost":1,"plan":null,` +
				`"rule":"queue","limit":5,"remaining":3,"retry_after_ms":0,"reset_after_ms":400,"delay_ms":200,` +
				`"rules":[{"rule":"queue","algorithm":"leaky_bucket_queue","mode":"enforce","allowed":true,` +
				`"source":"rule","limit":5,"burst":5,"window_ms":1000,"remaining":3,"retry_after_ms":0,"reset_after_ms":400,"delay_ms":200}],"degraded":false}`,
		},
		{
			"a queue that would admit what another rule denies holds nothing",
			check.Decision{Code: check.RateLimitExceeded, Subject: "u", Resource: "default", Cost: 1, Rules: []check.RuleDecision{penalized, queue}},
			`{"allowed":false,"subject":"u","resource":"default","cost":1,"plan":null,` +
				`"rule":"api-requests","limit":100,"remaining":0,"retry_after_ms":1250,"reset_after_ms":41250,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":false,` +
				`"source":"plan:free","limit":100,"window_ms":60000,"remaining":0,"retry_after_ms":1250,"reset_after_ms":41250,"penalized":true},` +
				`{"rule":"queue","algorithm":"leaky_bucket_queue","mode":"enforce","allowed":true,` +
				`"source":"rule","limit":5,"burst":5,"window_ms":1000,"remaining":3,"retry_after_ms":0,"reset_after_ms":400,"delay_ms":null}],` +
				`"degraded":false,"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded. Try again in 2 seconds.","retry_after":2}}`,
		},
		{
			"no rule matched, one was skipped",
			check.Decision{Allowed: true, Subject: "u", Resource: "default", Deciding: -1, Skipped: []check.SkippedRule{
				{Rule: apiRequests, Reason: check.MissingAttribute, Attribute: "ip"}, {Rule: apiRequests, Reason: check.ModeOff},
			}},
			`{"allowed":true,"subject":"u","resource":"default","cost":0,"plan":null,` +
				`"rule":null,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"rules":[],` +
				`"skipped":[{"rule":"api-requests","reason":"missing_attribute","attribute":"ip"},{"rule":"api-requests","reason":"mode_off"}],"degraded":false}`,
		},
		{
			"unlimited",
			check.Decision{Allowed: true, Subject: "u", Resource: "default", Cost: 1, Plan: "enterprise", Deciding: -1, Rules: []check.RuleDecision{unlimited}},
			`{"allowed":true,"subject":"u","resource":"default","cost":1,"plan":"enterprise",` +
				`"rule":null,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":true,"source":"plan:enterprise",` +
				`"unlimited":true,"limit":null,"window_ms":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}],"degraded":false}`,
		},
		{
			"never: a client must not wait for what cannot come",
			check.Decision{Code: check.CostExceedsLimit, Subject: "u", Resource: "default", Cost: 101, Rules: []check.RuleDecision{never}},
			`{"allowed":false,"subject":"u","resource":"default","cost":101,"plan":null,` +
				`"rule":"api-requests","limit":100,"remaining":7,"retry_after_ms":null,"reset_after_ms":41250,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":false,` +
				`"source":"plan:free","limit":100,"window_ms":60000,"remaining":7,"retry_after_ms":null,"reset_after_ms":41250}],"degraded":false,` +
				`"error":{"code":"COST_EXCEEDS_LIMIT","message":"A cost of 101 can never pass: api-requests allows at most 100 at once.","retry_after":null}}`,
		},
		{
			"blocked",
			check.Decision{Code: check.SubjectBlocked, Subject: "u", Resource: "default", Cost: 1, Deciding: -1},
			`{"allowed":false,"subject":"u","resource":"default","cost":1,"plan":null,` +
				`"rule":null,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"rules":[],"degraded":false,` +
				`"error":{"code":"SUBJECT_BLOCKED","message":"The subject is blocked.","retry_after":null}}`,
		},
		{
			"counters away: what is not known is not said",
			check.Decision{Code: check.CountersUnavailable, Subject: "u", Resource: "default", Cost: 1, Degraded: true, Rules: []check.RuleDecision{away}},
			`{"allowed":false,"subject":"u","resource":"default","cost":1,"plan":null,` +
				`"rule":"api-requests","limit":100,"remaining":null,"retry_after_ms":180,"reset_after_ms":null,` +
				`"rules":[{"rule":"api-requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":false,` +
				`"source":"rule","limit":100,"window_ms":60000,"remaining":null,"retry_after_ms":180,"reset_after_ms":null,"degraded":true}],"degraded":true,` +
				`"error":{"code":"COUNTERS_UNAVAILABLE","message":"The limit cannot be checked at the moment. Try again in 1 second.","retry_after":1}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := string(appendDecision(nil, &c.d))
			require.Equal(t, c.want, got)
			require.True(t, json.Valid([]byte(got)))
		})
	}
}

// A wait in words is never shorter than the wait.
func TestAppendWait(t *testing.T) {
	for seconds, want := range map[int64]string{
		1: "1 second", 2: "2 seconds", 59: "59 seconds", 60: "1 minute", 61: "1 minute 1 second", 90: "1 minute 30 seconds",
		120: "2 minutes", 3599: "59 minutes 59 seconds", 3600: "1 hour", 3601: "1 hour 1 minute", 7200: "2 hours", 86_340: "23 hours 59 minutes",
		86_341: "1 day", 86_399: "1 day", 86_400: "1 day", 86_401: "1 day 1 hour", 90_000: "1 day 1 hour", 2_592_000: "30 days", 2_588_401: "30 days",
	} {
		require.Equal(t, want, string(appendWait(nil, seconds)), seconds)
	}
}

// Any string of a check is encoded without loss, also for a JavaScript parser.
func TestAppendString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		b := appendString(nil, s)
		var back string
		require.NoError(t, json.Unmarshal(b, &back), "%q", b)
		require.Equal(t, s, back)
	})
	for s, want := range map[string]string{
		"\u2028\u2029": `"\u2028\u2029"`, "a\u2027b\u202ac": "\"a\u2027b\u202ac\"", "\xe2": "\"\xe2\"", "€": `"€"`,
		"\"\\/\x00\x1f\x7f": `"\"\\/\u0000\u001f\u007f"`, "": `""`, "<&>": `"<&>"`, "\u202e\u200b": "\"\u202e\u200b\"",
	} {
		require.Equal(t, want, string(appendString(nil, s)))
	}
}

// The answer matches the API's description for any decision.
func TestAppendDecisionFitsDescription(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDecision(t)
		decoder := json.NewDecoder(bytes.NewReader(appendDecision(nil, &d)))
		decoder.DisallowUnknownFields()
		var got CheckAnswer
		require.NoError(t, decoder.Decode(&got))
		require.Equal(t, d.Allowed, got.Allowed)
		require.Equal(t, d.Subject, got.Subject)
		require.Equal(t, d.Resource, got.Resource)
		require.Equal(t, d.Cost, got.Cost)
		require.Equal(t, d.Plan == "", got.Plan == nil)
		require.Equal(t, d.Deciding < 0, got.Rule == nil)
		require.Equal(t, d.HasDelay, got.DelayMS != nil)
		require.Len(t, got.Rules, len(d.Rules))
		require.Equal(t, d.Allowed, got.Error == nil)
		for i := range d.Rules {
			want, rule := &d.Rules[i], &got.Rules[i]
			require.Equal(t, want.Rule.Slug, rule.Rule)
			require.Equal(t, want.Rule.Algorithm.String(), rule.Algorithm)
			require.Equal(t, want.Mode.String(), rule.Mode)
			require.Equal(t, want.Unlimited, rule.Unlimited)
			if want.Unlimited {
				require.Nil(t, rule.Limit)
				continue
			}
			require.Equal(t, want.Limit, *rule.Limit)
			require.Equal(t, want.WindowMS, *rule.WindowMS)
			require.Equal(t, want.Rule.Algorithm.Bucket(), rule.Burst != nil)
			require.Equal(t, want.Uncounted, rule.Remaining == nil)
			require.Equal(t, want.RetryAfterMS == limit.NeverMS, rule.RetryAfterMS == nil)
		}
	})
}

// anyDecision returns a random decision that a Checker could return.
func anyDecision(t *rapid.T) check.Decision {
	d := check.Decision{
		Allowed: true, Subject: rapid.StringN(1, 20, 256).Draw(t, "subject"), Resource: "default",
		Cost:     rapid.Int64Range(0, limit.MaxFixedLimit).Draw(t, "cost"),
		Plan:     rapid.SampledFrom([]string{"", "pro"}).Draw(t, "plan"),
		Deciding: -1,
		NowMS:    rapid.Int64Range(1, 99_999_999_999_999).Draw(t, "now"),
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "rules") {
		r := anyRule(t, i)
		d.Rules = append(d.Rules, r)
		if r.Mode != limit.Enforce || r.Unlimited {
			continue
		}
		if d.Deciding < 0 || !r.Allowed {
			d.Deciding = i
		}
		if !r.Allowed {
			d.Allowed, d.Code = false, check.RateLimitExceeded
			if r.RetryAfterMS == limit.NeverMS {
				d.Code = check.CostExceedsLimit
			}
		}
	}
	if d.Allowed && d.Deciding >= 0 && d.Rules[d.Deciding].Rule.Algorithm == limit.LeakyBucketQueue {
		d.HasDelay, d.DelayMS = true, d.Rules[d.Deciding].DelayMS
	}
	return d
}

func anyRule(t *rapid.T, i int) check.RuleDecision {
	r := check.RuleDecision{
		Rule:      &limit.Rule{Slug: "rule-" + itoa(int64(i)), Algorithm: rapid.SampledFrom(limit.Algorithms).Draw(t, "algorithm")},
		Mode:      rapid.SampledFrom([]limit.Mode{limit.Enforce, limit.Shadow}).Draw(t, "mode"),
		Source:    rapid.SampledFrom([]string{"rule", "plan:pro", "override"}).Draw(t, "source"),
		Allowed:   rapid.Bool().Draw(t, "allowed"),
		Unlimited: rapid.IntRange(0, 4).Draw(t, "unlimited") == 0,
	}
	if r.Unlimited {
		r.Allowed = true
		return r
	}
	r.Degraded = rapid.Bool().Draw(t, "degraded")
	r.Uncounted = r.Degraded && rapid.Bool().Draw(t, "uncounted")
	r.Limit = rapid.Int64Range(1, limit.MaxFixedLimit).Draw(t, "limit")
	r.Quota = r.Limit
	if r.Rule.Algorithm.Bucket() {
		r.Burst = rapid.Int64Range(1, limit.MaxLimit).Draw(t, "burst")
		r.Quota = r.Burst
	}
	r.WindowMS = rapid.Int64Range(limit.MinWindowMS, limit.MaxWindowMS).Draw(t, "window")
	r.Remaining = rapid.Int64Range(0, r.Quota).Draw(t, "remaining")
	r.ResetAfterMS = rapid.Int64Range(0, limit.MaxWindowMS).Draw(t, "reset")
	r.NextAfterMS = rapid.Int64Range(0, r.ResetAfterMS).Draw(t, "next")
	if !r.Allowed {
		// The cost is more than what remains, so the wait is at least that for one more unit.
		r.RetryAfterMS = max(1, rapid.Int64Range(r.NextAfterMS, r.ResetAfterMS).Draw(t, "retry"))
		if rapid.IntRange(0, 9).Draw(t, "never") == 0 {
			r.RetryAfterMS, r.CostExceeds = limit.NeverMS, true
		}
	}
	return r
}

func BenchmarkAppendDecision(b *testing.B) {
	d := check.Decision{
		Code: check.RateLimitExceeded, Subject: "user_42", Resource: "orders:create", Cost: 1, Plan: "free",
		Rules: []check.RuleDecision{{Rule: apiRequests, Source: "plan:free", Limit: 100, Quota: 100, WindowMS: 60_000, RetryAfterMS: 1250, ResetAfterMS: 41_250}},
	}
	out := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		out = appendDecision(out[:0], &d)
	}
	if !strings.HasPrefix(string(out), `{"allowed":false`) {
		b.Fatal(string(out))
	}
}
