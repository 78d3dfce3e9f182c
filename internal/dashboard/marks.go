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
		some, _, err := d.Store.Audit(ctx, a, filter, tenants.Page{Limit: mostMarks, Bytes: auditPageBytes})
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	slices.SortStableFunc(entries, func(x, y tenants.AuditEntry) int { return x.At.Compare(y.At) })
	names := d.ruleNames(ctx, a.TenantID())
	lines := auditLines(entries, names, d.planNames(ctx, a))
	var out []chartMark
	for first := 0; first < len(lines); {
		start := lines[first].At.UTC().Truncate(s.Grain.Duration())
		next := first + 1
		end := start.Add(s.Grain.Duration())
		if near := lines[first].At.Add(s.To.Sub(s.From) * closeMarks / 1000); near.After(end) { // they would cover each other
			end = near
		}
		for next < len(lines) && lines[next].At.Before(end) {
			next++
		}
		mark := chartMark{At: lines[first].At, Text: markText(&lines[first]), Short: markShort(&lines[first]), Link: markLink(&lines[first])}
		if more := next - first - 1; more > 0 {
			mark.Short = plural(int64(more+1), "change", "changes")
			mark.Others = more
			mark.Link = "/audit?from=" + start.Format(minuteForm) + "&to=" + lines[next-1].At.UTC().Truncate(s.Grain.Duration()).Add(s.Grain.Duration()).Format(minuteForm)
		}
		out = append(out, mark)
		first = next
	}
	return out, nil
}

// markText describes a change: "mia@example.com changed the rule API requests, Limit 120 to 100".
func markText(l *auditLine) string {
	text := l.Who + " " + l.What + " " + l.Named()
	if len(l.Changes) == 1 && !l.Whole && l.Kind != "subject" {
		c := &l.Changes[0]
		text += ", " + c.Name + " " + firstOf(c.Before, "none") + " to " + firstOf(c.After, "none")
	}
	return text
}

// maxShort is the maximum number of characters of a label in a chart.
const maxShort = 24

// markShort is the label of a change in the chart: "Limit 120 to 100", or the name of the object.
func markShort(l *auditLine) string {
	text := l.Named()
	if len(l.Changes) == 1 && !l.Whole && l.Kind != "subject" {
		c := &l.Changes[0]
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
	changes, _, err := d.Store.Audit(ctx, a, tenants.AuditFilter{Kind: "rule", Target: rule, From: &s.From, To: &s.To}, tenants.Page{Limit: mostMarks})
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
	if e.Before == nil {
		return 0, true
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
