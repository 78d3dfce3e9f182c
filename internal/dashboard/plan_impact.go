package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// impactView shows which subjects a new limit of a plan affects, before it is saved.
type impactView struct {
	From, To  string
	Same      bool
	Reach     []string // sentences about the subjects with the plan
	Over      []named  // subjects over the new limit that are not denied now
	Already   []named  // subjects that are denied with either limit
	OverMore  int      // how many more
	Freed     int      // number of subjects that are denied now and would be allowed
	Verdict   string   // a summary in one sentence
	Tone      string   // "bad" if subjects would be denied immediately
	Explained string   // how the verdict was computed
}

// named is a subject with its usage under the current limit.
type named struct{ Name, Path, Used string }

const (
	mostCompared = 1_000 // subjects whose counters are read
	mostNamed    = 10
)

// impactOf counts the subjects with the plan, and compares the new limit with the counters of the
// busiest ones. It reads up to 2000 counters, so it has a place among previews.
func (d *dashboard) impactOf(ctx context.Context, v *visit, c *cell, to *limit.Limit) (*impactView, error) {
	end, err := d.Checker.BeginPreview(ctx, v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	defer end()
	lim, own := c.number()
	view := &impactView{From: limitText(&c.rule.Rule, lim), To: c.textOf(to), Same: own == (to != nil) && (to == nil || *to == lim)}
	reach, err := d.Store.PlanReach(ctx, v.actor(), c.plan.Slug, c.rule.Slug)
	if err != nil {
		return nil, err
	}
	view.Reach = append(view.Reach, reachText(reach, &c.plan))
	if reach.Overridden > 0 {
		view.Reach = append(view.Reach, countText(reach.Overridden, "of them has an override for this rule and keeps its limit.", "of them have an override for this rule and keep their limit."))
	}
	busy, since, err := d.busiest(ctx, v, &c.rule.Rule)
	if err != nil {
		return nil, err
	}
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	view.judge(d.Checker.Compare(ctx, policy, c.plan.Slug, c.rule.Slug, to, busy), since)
	for _, list := range [][]named{view.Over, view.Already} {
		for i := range list {
			list[i].Used = d.usedUnder(ctx, policy, c.rule.Slug, list[i].Name)
		}
	}
	return view, nil
}

// usedUnder returns the usage of a subject under a rule, as in "60 of 100 used".
func (d *dashboard) usedUnder(ctx context.Context, policy *check.Policy, rule, subject string) string {
	state := d.Checker.InspectRule(ctx, policy, rule, check.Request{Subject: subject})
	if len(state.Rules) == 0 || state.Rules[0].Uncounted || state.Rules[0].Unlimited {
		return "usage unknown"
	}
	l := limitViewOf(&state.Rules[0], nil)
	return l.UsedText()
}

// busiest returns the busiest recent subjects, and the start of that period: usage of the last one
// and a half windows can still count.
func (d *dashboard) busiest(ctx context.Context, v *visit, rule *limit.Rule) (names []string, since string, err error) {
	grain, back := usage.Minute, time.Hour
	if window := drawable(rule).Window.MS; window > back.Milliseconds()/2 {
		grain, back = usage.Hour, 2*24*time.Hour
		if window > back.Milliseconds()/2 {
			grain, back = usage.Day, 60*24*time.Hour
		}
	}
	report, err := d.Store.Usage(ctx, v.actor(), tenants.UsageQuery{Grain: grain, From: v.now.Add(-back), To: v.now, BySubject: true})
	if err != nil {
		return nil, "", err
	}
	if err := d.turns.do(ctx, v.actor().TenantID(), func() { names = byChecks(report.Items) }); err != nil {
		return nil, "", err
	}
	return names[:min(len(names), mostCompared)], strings.TrimPrefix(inWords(back), "1 "), nil
}

// byChecks returns the subjects of lists, the one with the most checks first.
func byChecks(items []tenants.UsageItem) (names []string) {
	sums := map[string]int64{}
	for i := range items {
		sums[items[i].Subject] += items[i].Allowed + items[i].Denied
	}
	for name := range sums {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b)) })
	return names
}

// judge describes the result of the comparison.
func (view *impactView) judge(c check.Comparison, since string) {
	already := map[string]bool{}
	for _, name := range c.Now {
		already[name] = true
	}
	var over, both []string
	for _, name := range c.Then {
		if already[name] {
			both = append(both, name)
			delete(already, name)
		} else {
			over = append(over, name)
		}
	}
	view.Freed = len(already)
	for _, name := range over[:min(len(over), mostNamed)] {
		view.Over = append(view.Over, named{Name: name, Path: subjectURL(name)})
	}
	view.OverMore = len(over) - len(view.Over)
	for _, name := range both[:min(len(both), mostNamed)] {
		view.Already = append(view.Already, named{Name: name, Path: subjectURL(name)})
	}
	view.Explained = "Compared: the current counters of the busiest subjects of the last " + since + ", up to " + grouped(mostCompared) + "."
	n := int64(len(over))
	switch {
	case c.Reason == check.ModeOff:
		view.Verdict, view.Explained = "The rule is off, so the limit affects nobody.", ""
	case c.Reason == check.NotBySubject:
		view.Verdict, view.Explained = "Subjects over the new limit: unknown.", "The rule is not counted per subject, so no subject has its own counter."
	case c.Reason == check.MissingValues:
		view.Verdict, view.Explained = "Subjects over the new limit: unknown.", "The rule is counted per subject and other values. Counters cannot be found without those values."
	case c.Degraded:
		view.Verdict, view.Explained = "Subjects over the new limit: unknown.", "Redis is unavailable."
	case c.Asked == 0:
		view.Verdict = "No affected subject sent a check in the last " + since + "."
	case c.Asked == 1 && n == 0 && len(both) == 0:
		view.Verdict = "The only affected subject with checks in the last " + since + " is not over the new limit now."
	case c.Asked == 1 && n == 0:
		view.Verdict = "No further subject is over the new limit now."
	case c.Asked == 1:
		view.Tone = "bad"
		view.Verdict = "The only affected subject with checks in the last " + since + " is over the new limit now and would be denied until enough usage expires."
	case n == 0 && len(both) > 0:
		view.Verdict = "No further subject of the " + grouped(int64(c.Asked)) + " busiest affected subjects is over the new limit now."
	case n == 0:
		view.Verdict = "None of the " + grouped(int64(c.Asked)) + " busiest affected subjects is over the new limit now."
	default:
		view.Tone = "bad"
		view.Verdict = "Of the " + grouped(int64(c.Asked)) + " busiest affected subjects, " +
			plural(n, "is over the new limit now and would be denied", "are over the new limit now and would be denied") + " until enough usage expires."
	}
	if view.Freed > 0 {
		view.Verdict += " " + plural(int64(view.Freed), "subject that is denied now would be allowed.", "subjects that are denied now would be allowed.")
	}
}
