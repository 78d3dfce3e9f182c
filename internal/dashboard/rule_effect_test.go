package dashboard

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// preview requests the effect of a draft, as the editor's script does.
func (b *browser) preview(pairs ...string) page {
	r := b.request(http.MethodPost, "/rules/preview", b.s.ruleForm(pairs...))
	r.Header.Set("HX-Request", "true")
	return b.send(r)
}

// As the user types, the rule is described and simulated. Errors are shown, and nothing is saved.
func TestRulePreview(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	got := b.preview("slug", "")
	require.Equal(t, http.StatusOK, got.status)
	require.NotContains(t, got.body, "<html", "a script gets only a part of the page")
	require.Contains(t, got.body, `data-field="slug"`)
	require.Contains(t, got.body, "Each subject can use 100 units in any minute on all resources.", "and the given fields are still simulated")
	require.Contains(t, got.body, "300 of 450 requests allowed.", "the steady stream is 150 % of the limit")
	require.Contains(t, got.body, "No checks matched this rule")
	got = b.preview("limit", "x")
	require.Contains(t, got.body, `data-field="limit"`)
	require.NotContains(t, got.body, "units in any minute")
	require.Contains(t, b.preview("by_subject", "").body, "one of them can use it up for all others")
	require.Contains(t, b.preview("attributes", "ip").body, "usage does not store attributes")
	got = b.preview("rule", "requests", "algorithm", "sliding_window_log", "limit", "10")
	require.NotContains(t, got.body, "resets the counters")
	require.Contains(t, b.preview("rule", "requests", "algorithm", "token_bucket").body, "resets the counters")
	for _, algorithm := range limit.Algorithms {
		for _, fields := range [][]string{{"limit", "1"}, {"limit", "10000"}, {"window", "366", "window_unit", "d"}, {"mode", "off"}, {"penalty", "1", "penalty_unit", "h"}} {
			got = b.preview(append(fields, "algorithm", algorithm.String(), "precision", fields[1], "precision_unit", "d")...)
			require.Equal(t, http.StatusOK, got.status, "%s %v", algorithm, fields)
		}
	}
	for _, unit := range []string{"day", "week", "month"} {
		got = b.preview("algorithm", "fixed_window", "window_unit", unit, "limit", "1000000000000000")
		require.Contains(t, got.body, "Steady", unit)
		require.Contains(t, got.body, "Each request uses", unit)
	}

	// Without a script, the page has the same contents.
	got = b.post("/rules/preview", s.ruleForm("rule", "requests", "limit", "7", "version", "1"))
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "Each subject can use 7 units in any minute")
	require.Contains(t, got.body, `action="/rules/requests/edit"`)
	checkHeaders(t, got, "preview")
	got = b.post("/rules/preview", s.ruleForm("limit", "x"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, `id="f-limit-error"`)
	rule, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	require.Equal(t, int64(10), rule.Limit)
}

// asked writes usage of subjects of tenant A for a minute in the past.
func (s *stack) asked(ago time.Duration, resource string, checks map[string]int64) {
	s.t.Helper()
	s.askedOf(s.a, ago, resource, checks)
}

func (s *stack) askedOf(a tenants.Actor, ago time.Duration, resource string, checks map[string]int64) {
	s.t.Helper()
	start := s.clock.Now().Truncate(time.Minute).Add(-ago).UnixMilli()
	var sum int64
	var list usage.SubjectList
	for subject, n := range checks {
		sum += n
		list = append(list, usage.Subject{Subject: subject, Counts: usage.Counts{Allowed: n, CostAllowed: n}})
	}
	require.NoError(s.t, s.store.WriteUsage(s.t.Context(), &usage.Batch{
		Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: s.clock.Now(),
		Rows: []usage.Row{{
			Key:    usage.Key{Tenant: a.TenantID(), StartMS: start, Resource: resource},
			Counts: usage.Counts{Allowed: sum, CostAllowed: sum},
		}},
		Subjects: []usage.Subjects{{Tenant: a.TenantID(), StartMS: start, TopSubjects: usage.TopSubjects{Checks: list}}},
	}))
}

// A draft is simulated with recent traffic: who would have been denied, with the limits of plans
// and overrides.
func TestRuleReplay(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark") // plan free: 20 a minute; "ada mark": 30
	s.asked(30*time.Minute, "orders:create", map[string]int64{"heavy": 50, "ada mark": 50, "light": 15})
	s.asked(90*time.Minute, "search:all", map[string]int64{"heavy": 60, "light": 15})
	b := s.as("ann@example.com")
	got := b.preview("rule", "requests", "algorithm", "sliding_window_log")
	require.Contains(t, got.body, "Replay of the last 3 hours")
	require.Contains(t, got.body, "of 190 checks (")
	require.Contains(t, got.body, "from 2 of 3 subjects.")
	require.Contains(t, got.body, `<a href="/subjects/heavy">heavy</a>`)
	require.Contains(t, got.body, `<a href="/subjects/ada%20mark">ada mark</a>`)
	require.NotContains(t, got.body, `<a href="/subjects/light">`)

	// All checks of one minute are in one window of an hour that begins with it, so the numbers are
	// exact.
	hour := []string{"algorithm", "fixed_window_first_hit", "window", "3", "window_unit", "h", "limit", "40"}
	got = b.preview(append(hour, "slug", "fresh")...)
	require.Contains(t, got.body, "80 of 190 checks (42\u202f%) would be denied, from 2 of 3 subjects.", "heavy 110 - 40, ada 50 - 40")
	got = b.preview(append(hour, "slug", "fresh", "resource", "search:*")...)
	require.Contains(t, got.body, "20 of 75 checks (27\u202f%) would be denied, from 1 of 2 subjects.")
	got = b.preview(append(hour, "slug", "fresh", "resource", "search:*", "limit", "60")...)
	require.Contains(t, got.body, "0 of 75 checks would be denied.")
	got = b.preview(append(hour, "slug", "fresh", "by_subject", "")...)
	require.Contains(t, got.body, "150 of 190 checks (79\u202f%) would be denied.")
	got = b.preview(append(hour, "slug", "fresh", "by_subject", "", "by_resource", "on")...)
	require.Contains(t, got.body, "would be denied, from 2 of 2 resources.")

	// compared with the saved rule
	require.Equal(t, http.StatusSeeOther, b.post("/rules", s.ruleForm(append(hour, "slug", "saved")...)).status)
	got = b.preview(append(hour, "rule", "saved", "limit", "100")...)
	require.Contains(t, got.body, "10 of 190 checks (5.3\u202f%) would be denied, from 1 of 3 subjects.")
	require.Contains(t, got.body, "70 fewer than with the current rule (80).")

	require.NotContains(t, s.as("bob@example.com").preview("tenant", s.b.TenantID().String()).body, "heavy", "another tenant's traffic")
}

// A replay is made of the tenant's own rules, plans, subjects and usage. Those of another tenant
// with the same names change nothing in it.
func TestReplayIsOfOneTenant(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.asked(30*time.Minute, "orders:create", map[string]int64{"heavy": 50, "ada mark": 50})
	ann := s.as("ann@example.com")
	said := regexp.MustCompile(`(?s)<p class="said">.*?</p>|<table class="tight">.*?</table>`)
	preview := func() string { // without the times of the charts
		got := ann.preview("rule", "requests", "algorithm", "fixed_window_first_hit", "window", "3", "window_unit", "h", "limit", "40")
		require.Equal(t, http.StatusOK, got.status)
		return strings.Join(said.FindAllString(got.body, -1), "\n")
	}
	want := preview()
	require.Contains(t, want, "of 100 checks (")
	require.Contains(t, want, `<a href="/subjects/heavy">heavy</a>`)

	s.fill(s.b, "mark")
	_, err := s.store.CreatePlan(t.Context(), s.b, tenants.Plan{Slug: "theirs", Default: true, Limits: map[string]limit.Limit{"requests": {Limit: 1}}})
	require.NoError(t, err)
	_, _, err = s.store.PutSubject(t.Context(), s.b, tenants.Subject{Subject: "heavy", State: check.Blocked, Plan: "theirs"}, tenants.Match{})
	require.NoError(t, err)
	_, _, err = s.store.PutOverride(t.Context(), s.b, "heavy", tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 1000}}, tenants.Match{})
	require.NoError(t, err)
	s.askedOf(s.b, 30*time.Minute, "orders:create", map[string]int64{"heavy": 500, "ada mark": 500, "only theirs": 500})
	require.Equal(t, want, preview())

	got := s.as("bob@example.com").preview("tenant", s.b.TenantID().String(), "rule", "requests", "algorithm", "fixed_window_first_hit", "window", "3", "window_unit", "h", "limit", "40")
	require.Contains(t, got.body, "of 1,500 checks (", "it would be seen")
}

// A preview is limited for any amount of traffic, and says what it omitted.
func TestReplayBounds(t *testing.T) {
	demand := demand{from: time.Unix(0, 0), to: time.Unix(3600, 0), step: time.Minute}
	for i := range int64(100) {
		s := &series{subject: "s" + itoa(i), checks: make([]int64, 60), each: 1, quota: 10, windowMS: 60_000}
		for k := range s.checks {
			s.checks[k] = 1_000_000
			s.total += 1_000_000
		}
		s.units = s.total
		demand.series = append(demand.series, s)
	}
	view := replayView{Whose: "subjects"}
	view.thin(&demand)
	requests, _ := demand.requests()
	require.LessOrEqual(t, len(requests), mostReplayed)
	require.NotEmpty(t, requests)
	require.Equal(t, 100, view.Counted)
	require.Len(t, view.Notes, 1)
	require.Contains(t, view.Notes[0], "busiest of 100 counters")
}

// A plan's limit that does not fit the draft is reported and omitted.
func TestPlansForDraft(t *testing.T) {
	draft := limit.Rule{Slug: "r", Algorithm: limit.SlidingWindowLog, Window: window(t, "1m")}
	plans, misfits := plansFor([]tenants.Plan{
		{Slug: "small", Default: true, Limits: map[string]limit.Limit{"r": {Limit: 5}, "other": {Limit: 1}}}, {Slug: "large", Limits: map[string]limit.Limit{"r": {Limit: 1_000_000}}},
	}, &draft)
	require.Equal(t, []string{"large"}, misfits)
	require.Equal(t, []check.PlanData{{Slug: "small", Default: true, Limits: map[string]limit.Limit{"r": {Limit: 5}}}, {Slug: "large"}}, plans)
}
