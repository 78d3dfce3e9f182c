package dashboard

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// A chart compares the fields of what begins a mark, and is neither created nor deleted: of the
// newest marks first, and of all together a bounded number of bytes.
func TestMarksCompareLittle(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	span := stretchUntil(now, usage.Minute, 60)
	object := func(n int) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"limit": %d, "name": "%s"}`, n, strings.Repeat("a", sentenceFields/4)))
	}
	each := 2 * len(object(1))
	var entries []tenants.AuditEntry
	for i := range 50 { // of one minute
		entries = append(entries, tenants.AuditEntry{Kind: "plan", Action: "create", Target: itoa(int64(i)), At: span.From, After: object(1)})
	}
	for i := range 50 {
		entries = append(entries, tenants.AuditEntry{Kind: "plan", Action: "update", Target: "pro", At: span.From.Add(time.Duration(1+i) * time.Minute), Before: object(1), After: object(2)})
	}
	entries = append(entries, entries[len(entries)-1])
	groups := groupsOf(entries, span)
	require.Len(t, groups, 51)
	require.Len(t, groups[0], 50)
	compared := comparedForMarks(groups)
	require.Equal(t, maxMarkCompared/each*each, compared)
	for i, group := range groups {
		line := auditLines(group[:1], nil, nil)[0]
		want := ""
		if i >= len(groups)-compared/each { // the newest
			want = "Limit 1 to 2"
		}
		require.Equal(t, want != "", strings.Contains(markText(&line), want) && want != "", i)
		require.Equal(t, firstOf(want, line.Named()), markShort(&line), i)
	}
}

// The page has few bytes, however many and large the changes are, and says what it does not show.
func TestAuditPageIsBounded(t *testing.T) {
	s := newStack(t)
	window, err := limit.ParseWindow("1h")
	require.NoError(t, err)
	document := tenants.Document{}
	for i := range 410 {
		document.Rules = append(document.Rules, limit.Rule{
			Slug: fmt.Sprintf("rule-%03d", i), Resource: "*", Algorithm: limit.FixedWindow, Limit: 1000, Window: window, By: []string{"subject"}, Mode: limit.Off,
		})
	}
	for i := range 60 {
		plan := tenants.Plan{Slug: fmt.Sprintf("plan-%03d", i), Limits: map[string]limit.Limit{}}
		for rule := range 130 + i%2*270 { // a page has both those that are shown, and larger ones
			plan.Limits[fmt.Sprintf("rule-%03d", rule)] = limit.Limit{Limit: 5}
		}
		document.Plans = append(document.Plans, plan)
	}
	_, err = s.store.ApplyDocument(t.Context(), s.a, document, tenants.Apply{})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	page := b.get("/audit?kind=plan").body
	require.Less(t, len(page), 300_000)
	require.Contains(t, page, "All fields; the export has them")
	require.Contains(t, page, "Further fields")
	require.Contains(t, page, "; the export has them")
	require.Contains(t, b.get("/audit?format=jsonl&kind=plan").body, "rule-399")

	_, err = s.store.EditPlan(t.Context(), s.a, "plan-001", tenants.Match{}, func(p *tenants.Plan) error {
		p.Limits["rule-150"] = limit.Limit{Limit: 7}
		return nil
	})
	require.NoError(t, err)
	page = b.get("/audit?kind=plan&target=plan-001").body
	require.Contains(t, page, "Limit for rule-150", "what changed in a large plan")
}

// The matrix of plans has a bounded number of cells.
func TestPlanRows(t *testing.T) {
	t.Parallel()
	for plans, want := range map[int]int{0: pageSize, 1: pageSize, 20: 50, 40: 25, 100: 10} {
		require.Equal(t, want, planRows(plans), plans)
	}
}
