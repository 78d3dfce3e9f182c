package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// listed stores the busiest subjects of the minute that was ago.
func (s *stack) listed(a tenants.Actor, ago time.Duration, list usage.SubjectList) {
	s.t.Helper()
	start := s.clock.Now().Add(-ago).Truncate(time.Minute)
	require.NoError(s.t, s.store.WriteUsage(s.t.Context(), &usage.Batch{
		Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: s.clock.Now(),
		Subjects: []usage.Subjects{{Tenant: a.TenantID(), StartMS: start.UnixMilli(), TopSubjects: usage.TopSubjects{Checks: list}}},
	}))
}

// crowd returns a full list of other subjects, with this many checks each.
func crowd(checks int64) (list usage.SubjectList) {
	for n := range 100 {
		list = append(list, usage.Subject{Subject: fmt.Sprint("other_", n), Counts: usage.Counts{Allowed: checks}})
	}
	return list
}

// The chart shows the checks of one subject with its limit, and does not show 0 where usage does
// not know the number.
func TestSubjectChart(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.listed(s.a, 3*time.Minute, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 40, Denied: 7}}})
	s.listed(s.a, 5*time.Minute, crowd(9))
	b := s.as("ann@example.com")
	got := b.get("/subjects/user_1").body
	require.Contains(t, got, "40 allowed, 7 denied")
	require.Contains(t, got, "not known, at most 9 checks")
	require.Contains(t, got, "In 1 step, this subject was not among them.")
	require.Contains(t, got, "Rule mark: 20 per minute", "the limit of its plan")
	require.Contains(t, got, `class="limitline"`)
	require.Contains(t, got, "Counted live by this instance since ")
	require.Contains(t, got, `class="marks"`, "of the configuration")
	require.Contains(t, got, `sse-connect="/live/subject?subject=user_1"`)

	got = b.get("/subjects/user_2").body
	require.NotContains(t, got, "40 allowed")
	require.Contains(t, b.get("/subjects/user_1?period=30d&tab=usage").body, `aria-current="true">30 days`)
	require.NotContains(t, b.get("/subjects/user_1?period=30d").body, "sse-connect", "days do not change by the second")
	require.NotContains(t, s.as("bob@example.com").get("/subjects/user_1").body, "40 allowed", "another tenant's")
	require.Equal(t, http.StatusBadRequest, b.get("/subjects/user_1?tab=nothing").status)
	require.Equal(t, http.StatusBadRequest, b.get("/subjects/user_1?period=2h").status)
}

// The chart compares with the previous period, of which it says when it may not know all.
func TestSubjectChartHasThePreviousPeriod(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.listed(s.a, 3*time.Minute, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 40, Denied: 7}}})
	s.listed(s.a, 63*time.Minute, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 31, Denied: 2}}})
	b := s.as("ann@example.com")
	require.Contains(t, b.get("/subjects/user_1").body, "previous period: 31 allowed, 2 denied")
	s.listed(s.a, 65*time.Minute, crowd(9))
	require.Contains(t, b.get("/subjects/user_1").body, "previous period: at least 31 allowed, 2 denied")
}

// The page says when the first and the last check of a subject were seen.
func TestSubjectSeen(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	day := func(ago time.Duration, list usage.SubjectList) { s.listed(s.a, ago*24*time.Hour, list) }
	day(20, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 4}}})
	day(3, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 4}}})
	b := s.as("ann@example.com")
	got := b.get("/subjects/user_1?fragment=seen").body
	first, last := s.clock.Now().UTC().AddDate(0, 0, -20), s.clock.Now().UTC().AddDate(0, 0, -3)
	require.Contains(t, got, "<dd>"+first.Format("2 Jan 2006")+" UTC</dd>")
	require.Contains(t, got, "<dd>"+last.Format("2 Jan 2006")+" UTC</dd>")
	require.Contains(t, b.get("/subjects/user_1?tab=usage").body, "First check", "the tab needs no script")
	require.Contains(t, b.get("/subjects/user_1").body, `hx-get="/subjects/user_1?fragment=seen"`)
	require.Contains(t, b.get("/subjects/nobody?fragment=seen").body, "not known")
	day(30, crowd(9))
	require.Contains(t, b.get("/subjects/user_1?fragment=seen").body, "on or before "+first.Format("2 Jan 2006"))
	s.ask(s.a, "user_1", 1)
	require.Regexp(t, `Last check</dt> ?<dd><time [^>]*data-local="minute">[^<]* UTC</time></dd>`, b.get("/subjects/user_1?fragment=seen").body)
	require.NotContains(t, s.as("bob@example.com").get("/subjects/user_1?fragment=seen").body, first.Format("2 Jan 2006"), "another tenant's")
}

// The chart of a rule has its limit, if all checks share one counter. Otherwise it says why not.
func TestRuleChartHasItsLimit(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	window, err := limit.ParseWindow("1h")
	require.NoError(t, err)
	_, err = s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "all", Resource: "*", Algorithm: limit.FixedWindow, Limit: 500, Window: window})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	got := b.get("/rules/all").body
	require.Contains(t, got, "Limit: 500 per hour")
	require.Contains(t, got, `class="limitline"`)
	got = b.get("/rules/requests").body
	require.Contains(t, got, "Each counter has its own limit (10 per minute)")
	require.NotContains(t, got, `class="limitline"`)
}

// The tabs have the usage, the denials and the trail of the subject.
func TestSubjectTabs(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.listed(s.a, 3*time.Minute, usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 40, Denied: 7}}})
	require.True(t, s.check("user_1", 20).Allowed)
	require.False(t, s.check("user_1", 1).Allowed)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_1", map[string][]string{"do": {"reset"}, "rule": {"*"}, "reason": {"they wrote in"}}).status)
	got := b.get("/subjects/user_1?tab=usage").body
	require.Regexp(t, `(?s)Last 1 hour.*40.*8.*Last 30 days`, got, "one more denial is remembered")
	require.Contains(t, b.get("/subjects/user_1?tab=denials").body, "20 of 20 used (plan Plan mark).")
	require.Contains(t, b.get("/subjects/user_1?tab=audit").body, "they wrote in")
	require.Contains(t, b.get("/subjects/user_1?tab=audit&attributes.ip=192.0.2.1").body, `href="/subjects/user_1?attributes.ip=192.0.2.1&amp;tab=usage"`)
}

// Since a page is open, every check is counted; before that, the greater of two lower bounds is
// shown.
func TestChartCountsLive(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 30, 20, 0, time.UTC)
	minute := func(ago int) time.Time { return now.Truncate(time.Minute).Add(-time.Duration(ago) * time.Minute) }
	h := subjectHistory{
		span: subjectSpan(now, periods[0]),
		items: []tenants.UsageItem{
			{Start: minute(2), Counts: usage.Counts{Allowed: 5}}, {Start: minute(1), Counts: usage.Counts{Allowed: 3}}, {Start: minute(0), Counts: usage.Counts{Allowed: 2}},
		},
		missing: map[time.Time]int64{minute(3): 8, minute(2): 1},
	}
	live := recent.Watched{Since: minute(2).Add(30 * time.Second), Instances: 1, Answered: 1, Minutes: []recent.WatchedMinute{
		{StartMS: minute(2).UnixMilli(), Allowed: 4}, {StartMS: minute(1).UnixMilli(), Allowed: 6, Denied: 2},
	}}
	c := h.chart("Checks", &live)
	last := c.Bars[len(c.Bars)-4:]
	require.True(t, last[0].Unknown())
	require.Equal(t, []int64{5, 6, 0}, []int64{last[1].Allowed, last[2].Allowed, last[3].Allowed}, "what is counted live replaces later estimates")
	require.Equal(t, int64(1), last[1].Missing)
	require.Equal(t, int64(2), last[2].Denied)
	require.Equal(t, [2]int64{11, 2}, [2]int64{c.Allowed, c.Denied})
	require.Contains(t, inUTC(c.source(&live)), "since 12:28:30 UTC")
	live.Since = time.Time{}
	c = h.chart("Checks", &live)
	require.Equal(t, int64(6), c.Bars[len(c.Bars)-2].Allowed)
	require.Equal(t, int64(2), c.Bars[len(c.Bars)-1].Allowed)
	require.Contains(t, c.source(&live), "Live counts are not complete")
}

// The line of the limit follows the changes of the rule.
func TestLimitFollowsTheTrail(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.clock.move(20 * time.Minute)
	for _, units := range []int64{50, 80} {
		s.clock.move(10 * time.Minute)
		_, err := s.store.EditRule(t.Context(), s.a, "requests", tenants.Match{}, func(r *limit.Rule) error { r.Limit = units; return nil })
		require.NoError(t, err)
	}
	d := s.pages
	span := stretchUntil(s.clock.Now().Add(time.Minute), usage.Minute, 60)
	parts, err := d.limitParts(context.Background(), s.a, span, "requests", 80, func(n int64) int64 { return n })
	require.NoError(t, err)
	var limits []int64
	for _, p := range parts {
		require.True(t, p.From.Before(p.To))
		limits = append(limits, p.Limit)
	}
	require.Equal(t, []int64{80, 50, 10}, limits, "the newest first; none before the rule was created")
	marks, err := d.configurationMarks(context.Background(), s.a, span)
	require.NoError(t, err)
	require.NotEmpty(t, marks)
	require.Contains(t, marks[0].Whole(), "created the rule Rule mark and 2 more changes", "of the same minute")
	require.Contains(t, marks[0].Link, "/audit?from=")
}

// Only a limit that counts all checks in windows no longer than a bar can be drawn over the bars.
func TestComparableLimit(t *testing.T) {
	t.Parallel()
	of := func(resource string, units, windowMS int64, allowed bool) check.RuleDecision {
		r := limit.NewRule("r")
		r.Resource = resource
		return check.RuleDecision{Rule: &r, Mode: limit.Enforce, Limit: units, WindowMS: windowMS, Allowed: allowed}
	}
	minute, hour := of("*", 100, 60_000, true), of("*", 1000, 3_600_000, true)
	require.Nil(t, comparableLimit([]check.RuleDecision{hour}, usage.Minute))
	require.EqualValues(t, 1000, comparableLimit([]check.RuleDecision{minute, hour}, usage.Hour).Limit, "the smaller one by the hour")
	require.Nil(t, comparableLimit([]check.RuleDecision{of("orders", 5, 60_000, true)}, usage.Minute))
	require.EqualValues(t, 5, comparableLimit([]check.RuleDecision{minute, of("orders", 5, 60_000, false)}, usage.Minute).Limit, "it denies")
	second := of("*", 2, 1000, true)
	require.EqualValues(t, 120, perGrain(&second, 2, usage.Minute))
}

func texts(levels []level) (out []string) {
	for _, l := range levels {
		out = append(out, l.Text)
	}
	return out
}

// With a logarithmic scale, small bars next to a spike are visible.
func TestLogScale(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := stretchUntil(now, usage.Minute, 60)
	c := newChart("", s, []tenants.UsageItem{{Start: s.From, Counts: usage.Counts{Allowed: 1_000_000}}, {Start: s.From.Add(time.Minute), Counts: usage.Counts{Allowed: 100}}})
	require.Less(t, c.share(100, 1_000_000), 0.001)
	c.Log = true
	require.InDelta(t, 1.0/3, c.share(100, 1_000_000), 0.01)
	require.InDelta(t, 1.0, c.share(1_000_000, 1_000_000), 0.001)
	require.Equal(t, []string{"10", "100", "1,000", "10k", "100k", "1M"}, texts(c.levels(1_000_000, plotTop, plotBottom)), "powers of ten, as far as there is space")
	require.Equal(t, []string{"1", "10", "100"}, texts(c.levels(400, plotTop, plotBottom)))
	require.Equal(t, []string{"100"}, texts(c.levels(400, deniedTop, deniedBottom))[1:], "a low scale has few")
	c.Log = false
	require.Equal(t, []string{"400", "200"}, texts(c.levels(400, plotTop, plotBottom)))
	c.Log = true

	c.Marks = []chartMark{{At: s.From.Add(90 * time.Second), Text: "a \"change\""}}
	var marks []struct {
		Step int
		Text string
	}
	require.NoError(t, json.Unmarshal([]byte(c.MarkData()), &marks))
	require.Equal(t, 1, marks[0].Step)
	var page bytes.Buffer
	require.NoError(t, chartPlot(&c).Render(context.Background(), &page))
	require.Contains(t, page.String(), `UTC: a &#34;change&#34;"`)
}
