package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// The sentence must match the rule.
func TestRuleSentence(t *testing.T) {
	window := func(text string) limit.Window {
		w, err := limit.ParseWindow(text)
		require.NoError(t, err)
		return w
	}
	duration := func(text string) limit.Duration {
		d, err := limit.ParseDuration(text)
		require.NoError(t, err)
		return d
	}
	for want, r := range map[string]limit.Rule{
		"Each subject can use 100 units in any minute on all resources. Requests over the limit are denied.": {
			Resource: "*", Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window("60s"), By: []string{"subject"}},
		"Each ip can use 5 units in any 15 minutes on “auth:login”. Requests over the limit are denied, and each denial blocks for 5 minutes.": {
			Resource: "auth:login", Algorithm: limit.SlidingWindowLog, Limit: 5, Window: window("15m"), By: []string{"attributes.ip"}, Penalty: duration("5m")},
		"Each combination of subject, resource and ip can use 300 units in any 5 minutes, in steps of 30 seconds, on resources that start with “search:”. Requests over the limit are only reported, because the rule is in shadow.": {
			Resource: "search:*", Algorithm: limit.SlidingWindowBuckets, Limit: 300, Window: window("5m"), Precision: duration("30s"),
			By: []string{"subject", "resource", "attributes.ip"}, Mode: limit.Shadow},
		"Each subject can use 1 unit each month, from the 1st 00:00 UTC, on all resources. The rule is off: it neither counts nor denies.": {
			Resource: "*", Algorithm: limit.FixedWindow, Limit: 1, Window: window("month"), By: []string{"subject"}, Mode: limit.Off},
		"Each subject can use 2 units each 90 seconds of the clock, on all resources. Requests over the limit are denied.": {
			Resource: "*", Algorithm: limit.FixedWindow, Limit: 2, Window: window("90s"), By: []string{"subject"}},
		"Each subject can use 2 units in the hour that starts with the first use on all resources. Requests over the limit are denied.": {
			Resource: "*", Algorithm: limit.FixedWindowFirstHit, Limit: 2, Window: window("1h"), By: []string{"subject"}},
		"Each subject can use 10 units at once, refilled at 2 per second, on all resources. Requests over the limit are denied.": {
			Resource: "*", Algorithm: limit.TokenBucket, Limit: 2, Burst: 10, Window: window("1s"), By: []string{"subject"}},
		"Each subject can use 2 units in a bucket that drains at 2 per second, on all resources. Requests over the limit are denied.": {
			Resource: "*", Algorithm: limit.LeakyBucket, Limit: 2, Window: window("1s"), By: []string{"subject"}},
		"All subjects together can use 1 per second, released evenly, with a queue of up to 20 units, on “mails:send”. Requests over the limit are denied.": {
			Resource: "mails:send", Algorithm: limit.LeakyBucketQueue, Limit: 1, Burst: 20, Window: window("1s")},
	} {
		require.Equal(t, want, ruleSentence(&r))
	}
}

func TestInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 seconds", time.Millisecond: "1 second", time.Second: "1 second", 1001 * time.Millisecond: "2 seconds", 59 * time.Second: "59 seconds",
		59*time.Second + 1: "1 minute", time.Minute: "1 minute", 61 * time.Second: "2 minutes", 59*time.Minute + time.Second: "1 hour",
		3 * time.Hour: "3 hours", 23*time.Hour + time.Minute: "1 day", 49 * time.Hour: "3 days",
	} {
		require.Equal(t, want, inWords(d), d.String())
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		require.Equal(t, want, grouped(n))
	}
	require.Equal(t, "<\u202f0.1\u202f%", percent(1, 10_000), "a small share is not 0")
	require.Equal(t, "0\u202f%", percent(0, 0))
	require.Equal(t, "100\u202f%", percent(3, 3))
}

// Bars stay within the drawing, and every number above 0 is visible.
func TestChart(t *testing.T) {
	now := time.Date(2026, 1, 2, 2, 30, 0, 0, time.UTC)
	start := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	s := stretchUntil(now, usage.Hour, 3)
	require.Equal(t, stretch{Grain: usage.Hour, From: start, To: start.Add(3 * time.Hour), Now: now, Before: true}, s)
	at := func(hour int, allowed, denied int64) tenants.UsageItem {
		return tenants.UsageItem{Start: start.Add(time.Duration(hour) * time.Hour), Counts: usage.Counts{Allowed: allowed, Denied: denied}}
	}
	c := newChart("All checks", s, []tenants.UsageItem{at(-4, 9, 9), at(-3, 20, 1), at(-1, 500_000, 0), at(0, 1_000_000, 1), at(2, 0, 500_000), at(3, 7, 7)})
	require.Len(t, c.Bars, 3)
	require.Equal(t, []int64{1_000_000, 500_001, 500_020, 1}, []int64{c.Allowed, c.Denied, c.BeforeAllowed, c.BeforeDenied})
	require.Zero(t, c.Bars[1].AllowedHeight+c.Bars[1].DeniedHeight, "an hour without checks has a bar")
	for _, b := range c.Bars {
		require.GreaterOrEqual(t, b.DeniedY, int64(0))
		require.LessOrEqual(t, b.AllowedY+b.AllowedHeight, int64(chartHeight))
		require.LessOrEqual(t, b.DeniedHeight, b.AllowedY-b.DeniedY)
		require.Equal(t, b.Denied > 0, b.DeniedHeight > 0)
	}
	require.True(t, c.Running(&c.Bars[2]), "the newest bar is drawn as unfinished")
	require.False(t, c.Running(&c.Bars[1]))
	require.InDelta(t, 2, float64(c.Bars[0].AllowedHeight)/float64(c.Bars[2].DeniedHeight), 0.01)
	require.Equal(t, "[[1767312000,1767315600,1767319200],[1000000,0,0],[1,0,500000],[21,0,500000]]", c.Data())

	require.False(t, stretchUntil(now, usage.Minute, 30*60).Before, "minutes of 60 hours ago are not stored")
	require.Equal(t, 24, newStretch(now, usage.Hour, start.Add(time.Minute), start.Add(23*time.Hour+time.Second)).count(), "rounded outward")
}

func TestChange(t *testing.T) {
	for want, n := range map[string][2]int64{
		"unchanged": {0, 0}, "up from none": {5, 0}, "down to none": {0, 5}, "+50\u202f%": {15, 10}, "\u221250\u202f%": {5, 10}, "12x": {120, 10},
	} {
		require.Equal(t, want, change(n[0], n[1]))
	}
}

func TestDeviceName(t *testing.T) {
	for agent, want := range map[string]string{
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36": "Chrome on Linux",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0 Safari/537.36 Edg/141.0":     "Edge on Windows",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1": "Safari on iPhone",
		"curl/8.5": "curl", "": "unknown browser", "<b>mine</b>": "<b>mine</b>",
	} {
		require.Equal(t, want, deviceName(agent))
	}
}

// The page of a leased rule shows the cost, with the limits of that rule.
func TestLeaseSentences(t *testing.T) {
	window := limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
	rule := limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 1_000, Window: window, Consistency: limit.Leased}
	require.Equal(t, []string{
		"An instance prefetches units of a busy counter: the demand of 50 ms, at most a quarter of the remaining units (250 units of the rule’s limit), for at most 250 milliseconds. The limit is never exceeded.",
		"Meanwhile, another instance may deny up to 250 units early for each of the 2 other instances.",
		"If an instance crashes, its prefetched units count as used with decreasing weight, for at most 2 minutes.",
		"A client that leases units may hold them for at most 250 milliseconds. Changes take effect for it when its lease ends.",
	}, leaseSentences(&rule, 3))
	rule.Lease = limit.Duration{Text: "10s", MS: 10_000}
	require.Contains(t, leaseSentences(&rule, 3)[3], "for at most 10 seconds.")
	rule.Algorithm = limit.FixedWindow
	require.Contains(t, leaseSentences(&rule, 1)[1], "with one instance, as now, it denies none early")
	require.Equal(t, "If an instance crashes, its prefetched units count as used until their window ends, for at most 1 minute.", leaseSentences(&rule, 2)[2])
	rule.Algorithm = limit.TokenBucket
	text := leaseSentences(&rule, 2)
	require.Contains(t, text[0], "at most a quarter of the remaining units (247 units of the rule’s limit), for at most 100 milliseconds")
	require.Contains(t, text[1], "Up to 3 units do not refill meanwhile.")
	require.Contains(t, text[2], "until they refill, for at most 15 seconds.")
	rule.Limit = 5
	require.Empty(t, leaseSentences(&rule, 2), "no units can be prefetched: a warning says so")
	rule.Limit, rule.Consistency = 1_000, limit.Strict
	require.Empty(t, leaseSentences(&rule, 2))
}
