package dashboard

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"weir/internal/tenants"
)

// mostMarks is the maximum number of rows of the trail that one chart shows for each filter.
const mostMarks = 50

// sentenceFields is the size of fields that are worth comparing for one sentence about a change
// (tenants.Page.Fields). A plan with some fifty limits has less.
const sentenceFields = 8 << 10

// maxMarkCompared is the size of all fields that one chart compares, in bytes. The newest marks
// come first, and others have the names of the objects only.
const maxMarkCompared = 64 << 10

// closeMarks is the part of a period, in thousandths, that a mark takes.
const closeMarks = 15

// configurationMarks returns the changes of all rules and plans in a period.
func (d *dashboard) configurationMarks(ctx context.Context, a tenants.Actor, s stretch) ([]chartMark, error) {
	return d.marks(ctx, a, s, tenants.AuditFilter{Kind: "rule"}, tenants.AuditFilter{Kind: "plan"})
}

// marks returns the changes in a period that one of the filters selects, the oldest first. Changes
// in the same grain, or so close that their marks would cover each other, are one mark, which leads
// to all of them.
func (d *dashboard) marks(ctx context.Context, a tenants.Actor, s stretch, filters ...tenants.AuditFilter) ([]chartMark, error) {
	var entries []tenants.AuditEntry
	for _, filter := range filters {
		filter.From, filter.To = &s.From, &s.To
		some, _, err := d.Store.Audit(ctx, a, filter, tenants.Page{Limit: mostMarks, Fields: sentenceFields})
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	slices.SortStableFunc(entries, func(x, y tenants.AuditEntry) int { return x.At.Compare(y.At) })
	names, plans := d.ruleNames(ctx, a.TenantID()), d.planNames(ctx, a)
	var out []chartMark
	err := d.turns.do(ctx, a.TenantID(), func() { out = marksOf(entries, s, names, plans) })
	return out, err
}

// marksOf returns the marks of entries, the oldest first.
func marksOf(entries []tenants.AuditEntry, s stretch, names ruleNames, plans planNames) (out []chartMark) {
	groups := groupsOf(entries, s)
	comparedForMarks(groups)
	for _, group := range groups {
		first := auditLines(group[:1], names, plans)[0]
		mark := chartMark{At: first.At, Text: markText(&first), Short: markShort(&first), Link: markLink(&first)}
		if len(group) > 1 {
			grain := s.Grain.Duration()
			start, last := first.At.UTC().Truncate(grain), group[len(group)-1].At.UTC().Truncate(grain)
			mark.Short = plural(int64(len(group)), "change", "changes")
			mark.Others = len(group) - 1
			mark.Link = "/audit?from=" + start.Format(minuteForm) + "&to=" + last.Add(grain).Format(minuteForm)
		}
		out = append(out, mark)
	}
	return out
}

// groupsOf divides entries, the oldest first, into those of one mark each.
func groupsOf(entries []tenants.AuditEntry, s stretch) (groups [][]tenants.AuditEntry) {
	for len(entries) > 0 {
		first := entries[0].At
		end := first.UTC().Truncate(s.Grain.Duration()).Add(s.Grain.Duration())
		if near := first.Add(s.To.Sub(s.From) * closeMarks / 1000); near.After(end) { // they would cover each other
			end = near
		}
		next := 1
		for next < len(entries) && entries[next].At.Before(end) {
			next++
		}
		groups = append(groups, entries[:next:next])
		entries = entries[next:]
	}
	return groups
}

// comparedForMarks removes fields that no mark shows, so that they are not compared: those of
// created and deleted rules and plans, and what is beyond maxMarkCompared. It returns how many
// bytes are left to compare.
func comparedForMarks(groups [][]tenants.AuditEntry) (compared int) {
	for i := len(groups) - 1; i >= 0; i-- {
		first := &groups[i][0]
		size := len(first.Before) + len(first.After)
		if first.Omitted() || size == 0 {
			continue
		}
		if first.Kind != "subject" && first.Whole() || compared+size > maxMarkCompared {
			first.BeforeBytes, first.AfterBytes, first.Before, first.After = len(first.Before), len(first.After), nil, nil
			continue
		}
		compared += size
	}
	return compared
}

// markText describes a change: "mia@example.com changed the rule API requests, Limit 120 to 100".
func markText(l *auditLine) string {
	text := l.Who + " " + l.What + " " + l.Named()
	if c := l.only(); c != nil {
		text += ", " + c.Name + " " + firstOf(c.Before, "none") + " to " + firstOf(c.After, "none")
	}
	return text
}

// only returns the only field that changed, for its mark; nil: there are none or several.
func (l *auditLine) only() *fieldChange {
	if len(l.Changes) != 1 || l.Changes[0].Path == "" || l.Whole || l.Kind == "subject" {
		return nil
	}
	return &l.Changes[0]
}

// maxShort is the maximum number of characters of a label in a chart.
const maxShort = 24

// markShort is the label of a change in the chart: "Limit 120 to 100", or the name of the object.
func markShort(l *auditLine) string {
	text := l.Named()
	if c := l.only(); c != nil {
		text = c.Name + " " + firstOf(c.Before, "none") + " to " + firstOf(c.After, "none")
	}
	if runes := []rune(text); len(runes) > maxShort {
		text = string(runes[:maxShort-3]) + "..."
	}
	return text
}

func markLink(l *auditLine) string {
	if l.Kind == "rule" && l.Link != "" {
		return l.Link + "/history"
	}
	return firstOf(l.Link, "/audit?from="+l.At.UTC().Format(minuteForm))
}

// limitParts returns a limit over time: the present one, and before each change of the rule in the
// period the one of that time.
func (d *dashboard) limitParts(ctx context.Context, a tenants.Actor, s stretch, rule string, now int64, scale func(int64) int64) ([]limitPart, error) {
	changes, _, err := d.Store.Audit(ctx, a, tenants.AuditFilter{Kind: "rule", Target: rule, From: &s.From, To: &s.To}, tenants.Page{Limit: mostMarks, Fields: sentenceFields})
	if err != nil {
		return nil, err
	}
	parts, until := []limitPart{}, s.To
	for i := range changes { // the newest first
		before, changed := limitBefore(&changes[i])
		if !changed {
			continue
		}
		parts = append(parts, limitPart{changes[i].At, until, scale(now)})
		until, now = changes[i].At, before
		if now == 0 { // the rule was created, or counted in other windows
			return parts, nil
		}
	}
	return append(parts, limitPart{s.From, until, scale(now)}), nil
}

// limitBefore returns the limit of a rule before a change of it: 0 if it cannot be compared with
// the one after.
func limitBefore(e *tenants.AuditEntry) (before int64, changed bool) {
	type numbers struct {
		Limit  *int64
		Window *json.RawMessage
	}
	var was, is numbers
	if e.Whole() { // also one with very many limits of plans
		return 0, e.Before == nil && e.BeforeBytes == 0
	}
	if json.Unmarshal(e.Before, &was) != nil || json.Unmarshal(e.After, &is) != nil {
		return 0, false
	}
	switch {
	case was.Window != nil || is.Window != nil:
		return 0, true
	case was.Limit == nil || is.Limit == nil:
		return 0, false
	}
	return *was.Limit, true
}

// since returns the start of the first of the last consecutive grains with denials; zero if the
// last two grains have none.
func (c *chart) deniedSince() time.Time {
	last := len(c.Bars) - 1
	if last < 1 || c.Bars[last].Denied+c.Bars[last-1].Denied == 0 {
		return time.Time{}
	}
	first := last
	for first > 0 && (c.Bars[first].Denied > 0 || first == last) {
		first--
	}
	if c.Bars[first].Denied == 0 {
		first++
	}
	return c.Bars[first].Start
}
