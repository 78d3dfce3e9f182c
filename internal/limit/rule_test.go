package limit

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A value that is out of range is refused with the name of its field. Values that the engines can
// decide exactly are accepted.
func TestRuleValidate(t *testing.T) {
	window := func(s string) Window { w, err := ParseWindow(s); require.NoError(t, err, s); return w }
	duration := func(s string) Duration { d, err := ParseDuration(s); require.NoError(t, err, s); return d }
	base := func() Rule { return perMinute("api", 10) }
	good := map[string]func(*Rule){
		"as it is":               func(*Rule) {},
		"largest fixed limit":    func(r *Rule) { r.Limit = MaxFixedLimit },
		"calendar":               func(r *Rule) { r.Window = window("month") },
		"longest window":         func(r *Rule) { r.Window = window("366d") },
		"one counter for all":    func(r *Rule) { r.By = nil },
		"all values of by":       func(r *Rule) { r.By = []string{"subject", "resource", "attributes.Ip_4.x-y"} },
		"largest bucket":         func(r *Rule) { r.Algorithm, r.Limit, r.Window = TokenBucket, MaxLimit, window("366d") },
		"slowest refill":         func(r *Rule) { r.Algorithm, r.Limit, r.Burst, r.Window = LeakyBucket, 1, 366, window("1d") },
		"120 sub-buckets":        func(r *Rule) { r.Algorithm, r.Precision = SlidingWindowBuckets, duration("500ms") },
		"largest log":            func(r *Rule) { r.Algorithm, r.Limit = SlidingWindowLog, MaxLogLimit },
		"longest penalty":        func(r *Rule) { r.Penalty = duration("30d") },
		"prefix":                 func(r *Rule) { r.Resource = "orders:*" },
		"63 bytes of slug":       func(r *Rule) { r.Slug = strings.Repeat("a", 63) },
		"a leased counter":       func(r *Rule) { r.Algorithm, r.Consistency = SlidingWindowCounter, Leased },
		"shortest lease":         func(r *Rule) { r.Consistency, r.Lease = Leased, duration("50ms") },
		"longest lease":          func(r *Rule) { r.Consistency, r.Lease = Leased, duration("10s") },
		"a metered rule":         func(r *Rule) { r.Metering, r.MeterEvent = MeterUnits, strings.Repeat("é", 100) },
		"lines in a description": func(r *Rule) { r.Description = "one\n\ttwo" },
	}
	for name, change := range good {
		r := base()
		change(&r)
		require.Empty(t, r.Validate(), name)
	}
	bad := map[string]struct {
		field  string
		change func(*Rule)
	}{
		"no slug":                         {"slug", func(r *Rule) { r.Slug = "" }},
		"long slug":                       {"slug", func(r *Rule) { r.Slug = strings.Repeat("a", 64) }},
		"capitals":                        {"slug", func(r *Rule) { r.Slug = "Api" }},
		"star in the middle":              {"resource", func(r *Rule) { r.Resource = "a*b" }},
		"two stars":                       {"resource", func(r *Rule) { r.Resource = "a**" }},
		"no algorithm":                    {"algorithm", func(r *Rule) { r.Algorithm = 0 }},
		"limit 0":                         {"limit", func(r *Rule) { r.Limit = 0 }},
		"limit too large":                 {"limit", func(r *Rule) { r.Limit = MaxFixedLimit + 1 }},
		"limit of a counter":              {"limit", func(r *Rule) { r.Algorithm, r.Limit = SlidingWindowCounter, MaxLimit+1 }},
		"limit of a log":                  {"limit", func(r *Rule) { r.Algorithm, r.Limit = SlidingWindowLog, MaxLogLimit+1 }},
		"burst without bucket":            {"burst", func(r *Rule) { r.Burst = 1 }},
		"burst too large":                 {"burst", func(r *Rule) { r.Algorithm, r.Burst = TokenBucket, MaxLimit+1 }},
		"refill of 367 days":              {"burst", func(r *Rule) { r.Algorithm, r.Limit, r.Burst, r.Window = LeakyBucket, 1, 367, window("1d") }},
		"refill past 2^64":                {"burst", func(r *Rule) { r.Algorithm, r.Limit, r.Burst, r.Window = TokenBucket, 1, MaxLimit, window("366d") }},
		"window too short":                {"window", func(r *Rule) { r.Window = window("999ms") }},
		"window too long":                 {"window", func(r *Rule) { r.Window = window("367d") }},
		"calendar of a bucket":            {"window", func(r *Rule) { r.Algorithm, r.Window = TokenBucket, window("day") }},
		"precision elsewhere":             {"precision", func(r *Rule) { r.Precision = duration("1s") }},
		"no precision":                    {"precision", func(r *Rule) { r.Algorithm = SlidingWindowBuckets }},
		"121 sub-buckets":                 {"precision", func(r *Rule) { r.Algorithm, r.Precision = SlidingWindowBuckets, duration("400ms") }},
		"uneven sub-buckets":              {"precision", func(r *Rule) { r.Algorithm, r.Precision = SlidingWindowBuckets, duration("7s") }},
		"an unknown value of by":          {"by.0", func(r *Rule) { r.By = []string{"tenant"} }},
		"by twice":                        {"by.1", func(r *Rule) { r.By = []string{"subject", "subject"} }},
		"by attribute subject":            {"by.0", func(r *Rule) { r.By = []string{"attributes.subject"} }},
		"17 values":                       {"by", func(r *Rule) { r.By = make([]string, 17) }},
		"penalty of 31 days":              {"penalty", func(r *Rule) { r.Penalty = duration("31d") }},
		"leased log":                      {"consistency", func(r *Rule) { r.Algorithm, r.Consistency = SlidingWindowLog, Leased }},
		"leased queue":                    {"consistency", func(r *Rule) { r.Algorithm, r.Consistency = LeakyBucketQueue, Leased }},
		"lease of a strict rule":          {"lease", func(r *Rule) { r.Lease = duration("1s") }},
		"lease too short":                 {"lease", func(r *Rule) { r.Consistency, r.Lease = Leased, duration("49ms") }},
		"lease too long":                  {"lease", func(r *Rule) { r.Consistency, r.Lease = Leased, duration("10001ms") }},
		"leased penalty":                  {"consistency", func(r *Rule) { r.Penalty, r.Consistency = duration("1m"), Leased }},
		"control character in a name":     {"name", func(r *Rule) { r.Name = "a\x00" }},
		"long description":                {"description", func(r *Rule) { r.Description = strings.Repeat("a", 2001) }},
		"a meter of no metered rule":      {"meter_event", func(r *Rule) { r.MeterEvent = "api_requests" }},
		"a long meter event":              {"meter_event", func(r *Rule) { r.Metering, r.MeterEvent = MeterUnits, strings.Repeat("a", 101) }},
		"control character in a resource": {"resource", func(r *Rule) { r.Resource = "a\x7f" }},
	}
	for name, c := range bad {
		r := base()
		c.change(&r)
		errs := r.Validate()
		require.NotEmpty(t, errs, name)
		require.Equal(t, c.field, errs[0].Field, name)
		require.NotEmpty(t, errs[0].Message, name)
	}
}

// The limit of a plan must be in the ranges of its rule.
func TestLimitValidate(t *testing.T) {
	bucket := perMinute("api", 10)
	bucket.Algorithm, bucket.Window = TokenBucket, Window{Duration: Duration{"366d", MaxWindowMS}}
	require.Empty(t, Limit{Limit: 5, Burst: 5}.Validate(&bucket))
	require.Empty(t, Limit{Unlimited: true}.Validate(&bucket))
	require.NotEmpty(t, Limit{Unlimited: true, Limit: 1}.Validate(&bucket))
	require.Equal(t, "burst", Limit{Limit: 1, Burst: MaxLimit}.Validate(&bucket)[0].Field)
	require.Equal(t, "limit", Limit{}.Validate(&bucket)[0].Field)
	require.Empty(t, Limit{Limit: 5, WarnAt: 1}.Validate(&bucket))
	require.Equal(t, "warn_at", Limit{Unlimited: true, WarnAt: 1}.Validate(&bucket)[0].Field)
}

// Durations are read back as they were written, and other texts are refused.
func TestParseDuration(t *testing.T) {
	for text, ms := range map[string]int64{"1ms": 1, "10s": 10_000, "90s": 90_000, "1m": 60_000, "24h": 86_400_000, "30d": 2_592_000_000} {
		d, err := ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, Duration{text, ms}, d)
	}
	for _, text := range []string{"", "s", "0s", "01s", "-1m", "+1m", " 1m", "1m ", "1.5s", "1e3s", "1ns", "1us", "1w", "1M", "1h30m", "9223372036854775807d", "99999999999999999999s", "１s"} {
		_, err := ParseDuration(text)
		require.Error(t, err, text)
	}
}

// perMinute returns a rule of limit units a minute.
func perMinute(slug string, limit int64) Rule {
	return Rule{Slug: slug, Resource: "*", Algorithm: FixedWindow, Limit: limit, Window: Window{Duration: Duration{"1m", 60_000}}, By: []string{"subject"}}
}

// Every field can be read and written by its name, in JSON, and its default is valid.
func TestFields(t *testing.T) {
	for i := range Fields {
		f := &Fields[i]
		require.Same(t, f, FieldNamed(f.Name))
		require.NotEmpty(t, f.Label, f.Name)
		require.NotEmpty(t, f.Sent, f.Name)
		require.NotZero(t, f.Kind(), f.Name)
		require.Equal(t, f.Kind() == ChoiceKind, len(f.Choices) > 0, f.Name)
		for _, c := range f.Choices {
			r := NewRule("api")
			r.Window.Calendar = CalendarDay // a calendar window has a zone and an anchor
			r.By = []string{"attributes.ip"}
			require.NoError(t, f.Set(&r, c.Value), f.Name)
			require.Equal(t, c.Value, f.Get(&r), f.Name)
		}
	}
	require.Nil(t, FieldNamed("none"))

	r := NewRule("api")
	require.Equal(t, Rule{Slug: "api", Name: "api", Resource: "*", Algorithm: SlidingWindowCounter, By: []string{"subject"}}, r)
	full := Rule{
		Slug: "full", Name: "Full", Description: "All fields", Resource: "orders:*", Algorithm: TokenBucket, Limit: 5,
		Window: Window{Duration: Duration{"1m", 60_000}}, Burst: 7, Precision: Duration{"5s", 5_000}, By: []string{"resource"},
		Mode: Shadow, OnUnavailable: Deny, OnMissingAttribute: DenyCheck, Penalty: Duration{"2h", 7_200_000}, Consistency: Leased,
		Lease: Duration{"5s", 5_000}, Zone: "Europe/Berlin", Anchor: AnchorSubject, WarnAt: 8_001, Overage: OverageAllow, Metering: MeterOverage, MeterEvent: "api_requests",
	}
	read := Rule{}
	for i := range Fields {
		f := &Fields[i]
		require.NotNil(t, f.Get(&full), f.Name)
		require.False(t, f.Same(&full, &r), f.Name)
		value, err := json.Marshal(f.Get(&full))
		require.NoError(t, err)
		require.NoError(t, f.SetJSON(&read, value), f.Name)
		require.True(t, f.Same(&full, &read), f.Name)
		require.Error(t, f.SetJSON(&read, []byte(`{}`)), f.Name)
	}
	require.Equal(t, full, read)

	// If this test does not set a field of Rule, the field is missing in the table.
	for i := range reflect.TypeFor[Rule]().NumField() {
		require.False(t, reflect.ValueOf(full).Field(i).IsZero(), reflect.TypeFor[Rule]().Field(i).Name)
	}
	require.Len(t, Fields, reflect.TypeFor[Rule]().NumField())
}

// 60s is the same window as 1m: a change from one to the other resets no counter.
func TestFieldSame(t *testing.T) {
	a, b := perMinute("a", 1), perMinute("b", 1)
	b.Window.Text = "60s"
	require.True(t, FieldNamed("window").Same(&a, &b))
	require.Equal(t, "60s", FieldNamed("window").Get(&b))
	b.Window = Window{Calendar: CalendarDay}
	require.False(t, FieldNamed("window").Same(&a, &b))
	require.Equal(t, "day", FieldNamed("window").Get(&b))
	b.Penalty = Duration{MS: 1500}
	require.Equal(t, "1500ms", FieldNamed("penalty").Get(&b))
}

// The default of a lease is shown for a leased rule only, and stored as not set.
func TestLeaseField(t *testing.T) {
	r := NewRule("api")
	lease := FieldNamed("lease")
	require.Nil(t, lease.Get(&r))
	r.Consistency = Leased
	require.Equal(t, "250ms", lease.Get(&r))
	require.Equal(t, LeaseHold, r.ClientLease())
	require.NoError(t, lease.Set(&r, "10s"))
	require.Equal(t, "10s", lease.Get(&r))
	require.Equal(t, 10*time.Second, r.ClientLease())
	require.NoError(t, lease.Set(&r, "250ms"))
	require.Zero(t, r.Lease)
	require.Error(t, lease.Set(&r, "soon"))
}

// A field that documents omit has the same value when they are read.
func TestFieldOmitted(t *testing.T) {
	r := NewRule("api")
	r.Name = ""
	require.False(t, FieldNamed("name").Omitted(&r), "the default is the slug")
	require.True(t, FieldNamed("description").Omitted(&r))
	require.True(t, FieldNamed("penalty").Omitted(&r))
	r.By = nil
	require.False(t, FieldNamed("by").Omitted(&r), "the default is the subject")
}

// A duration that is accepted is positive, has one spelling, and can be read again.
func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"500ms", "10s", "1m", "1h", "366d", "0s", "-1m", "1ns", "1e3s", " 1m", "01s", "9223372036854775807ms", "9223372036854775807d", "1m\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDuration(text)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.Positive(t, d.MS)
		require.Equal(t, text, d.String())
		unit := strings.TrimLeft(text, "0123456789")
		n, err := strconv.ParseInt(strings.TrimSuffix(text, unit), 10, 64)
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(n, 10)+unit, text)
		require.Zero(t, d.MS%n)
		w, err := ParseWindow(text)
		require.NoError(t, err)
		require.Equal(t, d, w.Duration)
	})
}
