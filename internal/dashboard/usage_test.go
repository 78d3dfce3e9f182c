package dashboard

import (
	"encoding/csv"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
	"weir/internal/tenants"
	"weir/internal/usage"
)

func TestUsagePage(t *testing.T) {
	s := newStack(t)
	for _, rule := range []string{"", "requests", "by-ip"} {
		s.decided(s.a, usage.Hour, time.Hour, rule, 1200, 34)
		s.decided(s.a, usage.Hour, 25*time.Hour, rule, 600, 7)
	}
	s.decided(s.a, usage.Hour, 2*time.Hour, "by-ip", 100, 0)
	s.member(s.a, "viewer@example.com", tenants.Viewer)
	b := s.as("viewer@example.com")
	got := b.get("/usage")
	require.Contains(t, got.body, "<b class=\"num\">1,200</b> allowed")
	require.Contains(t, got.body, "previous period: 600 allowed, 7 denied")
	require.Contains(t, got.body, "per minute for 2 days, per hour for 35 and per day for 400")

	got = b.get("/usage?period=24h&by=rule")
	require.Regexp(t, `(?s)<a href="/rules/by-ip">.*1.300.*<a href="/rules/requests">.*1.200`, got.body, "busiest first")
	require.Contains(t, got.body, `href="/usage?by=rule&amp;format=csv&amp;period=24h"`)
	got = b.get("/usage?period=24h&rule=requests&plan=free&resource=orders")
	require.Contains(t, got.body, "Checks of rule requests, plan free, resource orders")
	require.Contains(t, got.body, "1,200")
	require.NotContains(t, b.get("/usage?period=24h&resource=other").body, "1,200")
	require.NotContains(t, s.as("bob@example.com").get("/usage?by=rule").body, "1,200", "another tenant's")
}

// What an instance does not distinguish has a name, and is not taken for a plan or for no plan.
func TestUsageOfOtherPlans(t *testing.T) {
	s := newStack(t)
	start := s.clock.Now().Add(-time.Hour).UTC().Truncate(time.Hour).UnixMilli()
	batch := usage.Batch{Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: s.clock.Now()}
	for plan, n := range map[string]int64{usage.OtherPlans: 900, "": 800, "pro": 700} {
		batch.Rows = append(batch.Rows, usage.Row{Key: usage.Key{Tenant: s.a.TenantID(), Grain: usage.Hour, StartMS: start, Plan: plan}, Counts: usage.Counts{Allowed: n}})
	}
	require.NoError(t, s.store.WriteUsage(t.Context(), &batch))
	b := s.as("ann@example.com")
	got := b.get("/usage?period=24h&by=plan")
	require.Regexp(t, `(?s)Other plans.*900.*No plan.*800.*pro.*700`, got.body)
	require.Contains(t, b.get("/usage?period=24h&by=resource").body, "All others")
	require.Contains(t, b.get("/usage?period=24h&plan=*").body, "<b class=\"num\">900</b> allowed")
}

// The download has the data of the page, and no formulas.
func TestUsageTable(t *testing.T) {
	s := newStack(t)
	s.decided(s.a, usage.Hour, time.Hour, "requests", 5, 2)
	s.decided(s.a, usage.Hour, time.Hour, "=cmd", 1, 0)
	b := s.as("ann@example.com")
	got := b.get("/usage?period=24h&by=rule&format=csv")
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "text/csv; charset=utf-8", got.header.Get("Content-Type"))
	rows, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
	require.NoError(t, err)
	start := s.clock.Now().Add(-time.Hour).UTC().Truncate(time.Hour).Format(time.RFC3339)
	require.Equal(t, [][]string{
		{"start", "rule", "allowed", "denied", "shadow_denied", "degraded", "cost_allowed", "cost_denied"},
		{start, "'=cmd", "1", "0", "0", "0", "1", "0"}, {start, "requests", "5", "2", "0", "0", "5", "2"},
	}, rows)
	require.Contains(t, b.get("/usage?by=subject&format=csv").body, "start,subject,error_bound,allowed")
	require.NotContains(t, s.as("bob@example.com").get("/usage?period=24h&by=rule&format=csv").body, "requests")
}

// An invalid address shows the form with the errors at their fields.
func TestUsageBadInput(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for query, want := range map[string]string{
		"period=2h": "Must be 1h, 24h, 7d or 30d.", "by=everything": "Must be one of the listed options.", "grain=second": "Must be one of the listed options.",
		"period=custom": "Is required", "period=custom&from=yesterday": "Must be a time such as",
		"period=custom&from=2026-01-02T00:00&to=2026-01-01T00:00": "Must be after from.",
		"period=custom&from=1999-01-01T00:00":                     "kept for 400 days",
		"period=custom&grain=minute&from=2026-01-02T00:00":        "kept for 2 days",
		"by=subject&rule=requests":                                "Cannot be combined with subject",
		"from=%3Cscript%3E&period=custom":                         "Must be a time such as",
	} {
		got := b.get("/usage?" + query)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
		require.Regexp(t, "(?i)"+want, got.body, query)
		require.NotContains(t, got.body, "<script>", query)
		require.NotEqual(t, "text/csv; charset=utf-8", b.get("/usage?format=csv&"+query).header.Get("Content-Type"), query)
	}
	at := func(ago time.Duration) string {
		return url.QueryEscape(s.clock.Now().Add(-ago).UTC().Format("2006-01-02T15:04"))
	}
	for span, grain := range map[string]string{
		"from=" + at(time.Hour): "minute", "from=" + at(50*time.Hour) + "&to=" + at(49*time.Hour): "hour", "from=" + at(20*24*time.Hour): "day",
	} {
		require.Contains(t, b.get("/usage?period=custom&"+span).body, "Step shown: "+grain, span)
	}
}

// The numbers of the page do not depend on the grouping, and a column of which nothing is known is
// left out. Without a period in the address, the picker names the one that is shown.
func TestUsageSaysWhatIsNotKnown(t *testing.T) {
	s := newStack(t)
	counts := usage.Counts{Allowed: 10, Denied: 4, ShadowDenied: 7}
	start := s.clock.Now().Add(-time.Hour).UTC().Truncate(time.Hour).UnixMilli()
	batch := usage.Batch{Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: s.clock.Now()}
	for _, rule := range []string{"", "a", "b"} {
		batch.Rows = append(batch.Rows, usage.Row{Key: usage.Key{Tenant: s.a.TenantID(), Grain: usage.Hour, StartMS: start, Rule: rule}, Counts: counts})
	}
	list := usage.SubjectList{{Subject: "user_1", Counts: usage.Counts{Allowed: 10, Denied: 4}}}
	batch.Subjects = []usage.Subjects{{Tenant: s.a.TenantID(), Grain: usage.Hour, StartMS: start, TopSubjects: usage.TopSubjects{Checks: list, Denied: list}}}
	require.NoError(t, s.store.WriteUsage(t.Context(), &batch))
	b := s.as("ann@example.com")
	for _, by := range []string{"", "&by=rule", "&by=subject", "&by=subject&top=denied"} {
		got := b.get("/usage?period=24h" + by).body
		require.Contains(t, got, "7 checks would have been denied by rules in shadow.", by)
		require.Equal(t, strings.Contains(by, "subject"), strings.Contains(got, "Denials in shadow are not known by subject."), by)
		require.Equal(t, by == "&by=rule", strings.Contains(got, ">Denied in shadow</th>"), by)
		require.NotContains(t, got, "unknown</td>", by)
	}
	require.NotContains(t, b.get("/usage?period=24h&by=subject&top=denied").body, ">Units allowed</th>")
	got := b.get("/usage?by=subject").body
	require.NotContains(t, got, "Any time")
	require.Contains(t, got, "Last 24 hours")
}

// A form keeps from where somebody zoomed, and a chart of another page leads back to that page.
func TestZoomIsKept(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	from := url.QueryEscape(s.clock.Now().Add(-3 * time.Hour).UTC().Format(minuteForm))
	require.Contains(t, b.get("/usage?period=custom&full=7d&from="+from).body, `<input type="hidden" name="full" value="7d"`)
	require.Contains(t, b.get("/?period=7d").body, `full=%2F%3Fperiod%3D7d`)
	require.Contains(t, b.get("/usage?period=custom&full=%2F%3Fperiod%3D7d&from="+from).body, `href="/?period=7d">Reset zoom`)
	require.NotContains(t, b.get("/usage?period=custom&full=%2F%2Fevil.example&from="+from).body, "evil.example\">Reset zoom")
}

// Grouped usage is drawn over time, and each row has its trend and its change.
func TestUsageSplit(t *testing.T) {
	s := newStack(t)
	for i, rule := range []string{"a", "b", "c", "d", "e"} {
		s.decided(s.a, usage.Hour, time.Hour, rule, int64(1000-100*i), 0)
		s.decided(s.a, usage.Hour, 25*time.Hour, rule, 500, 0)
	}
	b := s.as("ann@example.com")
	got := b.get("/usage?period=24h&by=rule").body
	require.Contains(t, got, "allowed by group: a 1,000, b 900, c 800, 2 others 1,300")
	require.Contains(t, got, "<span>+100\u202f%</span>", "against the previous period")
	require.Equal(t, 5, strings.Count(got, "<polyline points="), "and no line of the previous period, which had no checks without a rule")
	require.NotContains(t, b.get("/usage?period=24h").body, "Split by")
	require.Contains(t, got, `href="/usage?by=rule&amp;period=24h&amp;scale=log">Log scale`)
	require.Contains(t, b.get("/usage?period=24h&by=rule&scale=log").body, `href="/usage?by=rule&amp;period=24h">Linear scale`)
	from := url.QueryEscape(s.clock.Now().Add(-3 * time.Hour).UTC().Format(minuteForm))
	require.Contains(t, b.get("/usage?period=custom&full=7d&by=rule&from="+from).body, `href="/usage?by=rule&amp;period=7d">Reset zoom`)
	require.NotContains(t, b.get("/usage?period=custom&from="+from).body, "Reset zoom", "nobody zoomed")
}

// A page about very many subjects keeps the course of those that it lists only. The test is not
// parallel, because it measures what is allocated.
func TestUsageOfManySubjects(t *testing.T) {
	const minutes, each = 300, 100
	from := time.Unix(0, 0).UTC()
	s := newStretch(from.Add(minutes*time.Minute), usage.Minute, from, from.Add(minutes*time.Minute))
	var items []tenants.UsageItem
	for i := range minutes * each {
		items = append(items, tenants.UsageItem{
			Start: from.Add(time.Duration(i/each) * time.Minute), Subject: strconv.Itoa(i), Counts: usage.Counts{Allowed: int64(1 + i%each)},
		})
	}
	view := usageView{By: "subject", Form: &form{}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	view.group(items, items, s, false)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "the course of all subjects takes 144 MB")
	require.Len(t, view.Groups, mostGroups)
	require.Equal(t, minutes*each-mostGroups, view.More)
	require.Equal(t, "/subjects/10099", view.Groups[0].Link)
	sum := int64(0)
	for _, p := range view.Chart.Parts {
		sum += p.Sum()
	}
	require.EqualValues(t, minutes*each*(each+1)/2, sum, "the last part has those that are not listed")
	require.Equal(t, "29,997 others", view.Chart.Parts[mostSplit].Name)
}

// The lists of one subject are read once for a page, which takes one turn of the store.
func TestUsageOfASubjectIsReadOnce(t *testing.T) {
	s := newStack(t)
	s.asked(30*time.Minute, "orders:create", map[string]int64{"heavy": 50})
	processors := places.NewProcessors(2)
	s.store.TakeTurns(processors)
	b := s.as("ann@example.com")
	for query, want := range map[string]string{"subject=heavy": "50", "subject=heavy&by=subject": "50"} {
		leave, err := processors.Short.Take(t.Context(), uuid.New())
		require.NoError(t, err)
		done := make(chan page, 1)
		go func() { done <- b.get("/usage?period=24h&" + query) }()
		var got page
		turns := 0
		for over := false; !over; {
			select {
			case got = <-done:
				over = true
			default:
				if processors.Short.Waiting() == 0 {
					runtime.Gosched()
					continue
				}
				turns++
				leave = nextTurn(t, processors.Short, leave)
			}
		}
		leave()
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, `<b class="num">`+want+`</b> allowed`, query)
		require.Equal(t, 1, turns, query)
	}
}

// nextTurn leaves a turn for which somebody waits, and takes the next one.
func nextTurn(t *testing.T, turns *places.Turns[uuid.UUID], leave func()) (next func()) {
	t.Helper()
	taken := make(chan func(), 1)
	go func() {
		leave, err := turns.Take(t.Context(), uuid.New())
		if err == nil {
			taken <- leave
		}
	}()
	for turns.Waiting() < 2 {
		runtime.Gosched()
	}
	leave()
	return <-taken
}
