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
)

// A replay simulates a draft with the tenant's recent traffic. Usage has the number of checks of
// the busiest subjects per minute, hour or day, and their average cost, but no single checks. The
// checks of a period are therefore distributed over it at random (with the same seed each time),
// and the answer says what is estimated.

// replayView shows what a draft would have done.
type replayView struct {
	Why           string // why there is no replay; if "", the fields below are valid
	From, To      moment
	Length        string // such as "3 hours"
	Line          *timeline
	Shadow        bool   // the draft only reports what it would deny
	chart         chart  // the same as Line, by the time of day
	Whose         string // "subjects" or what else is counted
	Counted       int    // number of replayed subjects
	Hurt          int    // number of subjects that would have been denied
	Asked, Denied int64  // checks
	Before        *int64 // denied by the saved rule; nil: there is none
	Worst         []replayed
	Notes         []string
}

// replayed is the result for one subject, or one counter.
type replayed struct {
	Name          string
	Path          string // "": no subject
	Asked, Denied int64
}

// Share returns the share of the checks that would have been denied.
func (r replayed) Share() string { return percent(r.Denied, r.Asked) }

const (
	mostReplayed = 20_000 // requests of one replay
	mostWorst    = 8
)

func (d *dashboard) replay(ctx context.Context, v *visit, draft, saved *limit.Rule) (*replayView, error) {
	view := &replayView{Shadow: draft.Mode == limit.Shadow}
	if attributes := attributesFor(draft); len(attributes) > 0 {
		view.Why = "The rule is counted per " + attributes[0].Name + ", and usage does not store attributes, so it cannot be replayed. " +
			"Run it in shadow to see what it would deny."
		return view, nil
	}
	rule := drawable(draft)
	demand, err := d.demand(ctx, v.actor(), &rule, v.now)
	if err != nil {
		return nil, err
	}
	view.From, view.To, view.Length = moment{demand.from}, moment{demand.to}, inWords(demand.to.Sub(demand.from))
	if demand.all == 0 {
		view.Why = "No checks matched this rule in the last " + view.Length + ". There is nothing to replay."
		return view, nil
	}
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	sim, misfits, err := d.replayPolicy(ctx, v, &rule, demand)
	if err != nil {
		return nil, err
	}
	was := replayable(saved, draft, &rule)
	var earlier check.Simulation
	if was != nil {
		if earlier, _, err = d.replayPolicy(ctx, v, was, demand); err != nil {
			return nil, err
		}
	}
	view.note(draft, &rule, demand, misfits)
	simulate := func() {
		demand.limit(policy, &sim, v.now)
		if was != nil {
			demand.limit(policy, &earlier, v.now)
		}
		view.columnsFor(demand)
		view.thin(demand)
		if err = view.run(ctx, sim, demand); err != nil || was == nil {
			return
		}
		before := replayView{}
		err = before.run(ctx, earlier, demand)
		view.Before = &before.Denied
	}
	if busy := d.longTurns.do(ctx, v.actor().TenantID(), simulate); busy != nil || err != nil {
		return nil, cmp.Or(busy, err)
	}
	return view, nil
}

// replayable returns the saved rule for a replay beside the draft, which is drawable as rule. It
// returns nil if the saved rule matches other checks, counts by other values, or gives the same
// answers.
func replayable(saved, draft, rule *limit.Rule) *limit.Rule {
	if saved == nil || saved.Mode == limit.Off || saved.Resource != draft.Resource || !slices.Equal(saved.By, draft.By) {
		return nil
	}
	was := drawable(saved)
	if was.Numbers() == rule.Numbers() {
		return nil
	}
	return &was
}

// plansOf reads the tenant's plans with their limits for the rule.
func (d *dashboard) plansOf(ctx context.Context, v *visit, rule *limit.Rule) (out []check.PlanData, misfits []string, err error) {
	plans, _, err := d.Store.PlansFor(ctx, v.actor(), []string{rule.Slug}, tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return nil, nil, err
	}
	out, misfits = plansFor(plans, rule)
	return out, misfits, nil
}

// replayPolicy returns a simulation of the rule with the current limits of plans, without subjects.
func (d *dashboard) replayPolicy(ctx context.Context, v *visit, rule *limit.Rule, demand *demand) (sim check.Simulation, misfits []string, err error) {
	sim.StartMS = demand.from.UnixMilli()
	sim.Policy.Rules = []limit.Rule{*rule}
	sim.Policy.Plans, misfits, err = d.plansOf(ctx, v, rule)
	return sim, misfits, err
}

// limit adds the subjects of the series to a simulation of one rule, with their overrides, and
// fills in the quota of each series.
func (d *demand) limit(policy *check.Policy, sim *check.Simulation, now time.Time) {
	rule, added := &sim.Policy.Rules[0], map[string]bool{}
	for _, s := range d.series {
		subject, registered := policy.Subject(s.subject)
		subject.State = check.Active // checks of blocked or exempt subjects were counted, too
		subject.Overrides = slices.DeleteFunc(subject.Overrides, func(o check.OverrideData) bool {
			over := !o.ExpiresAt.IsZero() && !o.ExpiresAt.After(now) || o.StartsAt.After(now)
			return over || o.Rule != rule.Slug || len(o.Limit.Validate(rule)) > 0
		})
		for i := range subject.Overrides { // those that are active now, for the whole replay
			subject.Overrides[i].StartsAt, subject.Overrides[i].ExpiresAt = time.Time{}, time.Time{}
		}
		if registered && !added[s.subject] {
			sim.Subjects = append(sim.Subjects, subject)
			added[s.subject] = true
		}
		if quota := quotaFor(rule, sim.Policy.Plans, subject); quota > 0 && (s.quota == 0 || quota < s.quota) {
			s.quota = quota
		}
		s.windowMS = max(s.windowMS, rule.Window.MS)
	}
}

// thin keeps the replay within its limits. First several checks become one request of a greater
// cost, if that is small compared to the quota. Then the time is reduced, and then the least busy
// subjects are dropped. Series that can never be denied are not replayed.
func (view *replayView) thin(d *demand) {
	var open []*series
	names := map[string]bool{}
	for _, s := range d.series {
		names[view.nameOf(s)] = true
		view.Counted, view.Asked = len(names), view.Asked+s.total
		if !s.safe(d.step) {
			s.each = max(1, min(s.quota/(20*s.cost()), s.total/200))
			open = append(open, s)
		} else {
			view.addChecks(d, s.checks)
		}
	}
	slices.SortFunc(open, func(a, b *series) int {
		return cmp.Or(cmp.Compare(b.total, a.total), cmp.Compare(a.subject, b.subject), cmp.Compare(a.resource, b.resource))
	})
	left, kept := int64(mostReplayed), 0
	for _, s := range open {
		if left -= s.total/s.each + 1; left < 0 && kept > 0 {
			break
		}
		kept++
	}
	if kept < len(open) {
		view.Notes = append(view.Notes, "Only the "+grouped(int64(kept))+" busiest of "+plural(int64(len(open)), "counter", "counters")+" were replayed.")
	}
	d.series = open[:kept]
	for _, s := range d.series {
		s.each = max(s.each, s.total/mostReplayed)
	}
}

// run decides the requests, and fills in the results.
func (view *replayView) run(ctx context.Context, sim check.Simulation, d *demand) error {
	requests, of := d.requests()
	sim.Requests = requests
	span := d.to.Sub(d.from).Milliseconds()
	line := &timeline{Title: "Replay", SpanMS: span}
	denied := make([]int64, len(d.series))
	err := check.Simulate(ctx, sim, func(i int, decision *check.Decision) error {
		s, bin := d.series[of[i]], &line.Bins[min(requests[i].AtMS*timelineBins/span, timelineBins-1)]
		line.Asked += s.each
		view.addRequest(requests[i].AtMS, span, s.each, decision.Allowed)
		if decision.Allowed {
			line.Passed += s.each
			bin.Passed += s.each
			return nil
		}
		line.Denied += s.each
		bin.Denied += s.each
		denied[of[i]] += s.each
		return nil
	})
	if err != nil {
		return err
	}
	view.Denied = line.Denied
	sums := map[string]*replayed{}
	for i, s := range d.series {
		name := view.nameOf(s)
		sum := sums[name]
		if sum == nil {
			sum = &replayed{Name: name}
			if view.Whose == "subjects" {
				sum.Path = subjectURL(name)
			}
			sums[name] = sum
		}
		sum.Asked, sum.Denied = sum.Asked+s.total, sum.Denied+denied[i]
	}
	for _, sum := range sums {
		if sum.Denied > 0 {
			view.Hurt++
			view.Worst = append(view.Worst, *sum)
		}
	}
	slices.SortFunc(view.Worst, func(a, b replayed) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Name, b.Name))
	})
	view.Worst = view.Worst[:min(len(view.Worst), mostWorst)]
	line.Scale = line.ownScale()
	view.Line = line
	return nil
}

// nameOf returns the name of a series.
func (view *replayView) nameOf(s *series) string {
	if view.Whose == "resources" {
		return s.resource
	}
	return s.subject
}

// note describes what is replayed and what is estimated.
func (view *replayView) note(draft, rule *limit.Rule, d *demand, misfits []string) {
	view.Whose = "subjects"
	stretch := map[time.Duration]string{time.Minute: "minute", time.Hour: "hour", 24 * time.Hour: "day"}[d.step]
	note := func(text string) { view.Notes = append(view.Notes, text) }
	note("Usage stores totals per " + stretch + ". The replay spreads checks randomly over each " + stretch + ", so shorter bursts do not show.")
	switch {
	case slices.Contains(rule.By, "subject"):
		if d.unknown > 0 {
			note("The replay covers the busiest subjects of each " + stretch + ", with " + percent(d.all-d.unknown, d.all) + " of the checks.")
		}
		if rule.Resource != "*" || slices.Contains(rule.By, "resource") {
			note("Usage does not store resources per subject. The replay gives every subject the tenant's mix of resources.")
		}
	case slices.Contains(rule.By, "resource"):
		view.Whose = "resources"
	default:
		view.Whose = "counters"
	}
	note("The traffic was sent under the limits of that time. Denied requests may include retries.")
	if len(misfits) > 0 {
		note("The limit of " + plural(int64(len(misfits)), "plan", "plans") + " is invalid for this rule and was ignored: " + strings.Join(misfits, ", ") + ". Change it before you save the rule.")
	}
	if draft.Window.Calendar != limit.NoCalendar && draft.Window.Calendar != limit.CalendarDay {
		note("The calendar " + draft.Window.Calendar.String() + " is replayed as a window of " + exactly(rule.Window.MS, true) + ".")
	}
}

// Verdict returns in one sentence what the draft would have done.
func (view *replayView) Verdict() string {
	checks := plural(view.Asked, "check", "checks")
	if view.Denied == 0 {
		return "0 of " + checks + " would be denied."
	}
	text := grouped(view.Denied) + " of " + checks + " (" + percent(view.Denied, view.Asked) + ") would be denied"
	if view.Whose == "counters" {
		return text + "."
	}
	return text + ", from " + grouped(int64(view.Hurt)) + " of " + grouped(int64(view.Counted)) + " " + view.Whose + "."
}

// Difference compares this with the saved rule.
func (view *replayView) Difference() string {
	switch {
	case view.Before == nil:
		return ""
	case *view.Before == view.Denied:
		return "The current rule would deny the same number."
	case *view.Before < view.Denied:
		return grouped(view.Denied-*view.Before) + " more than with the current rule (" + grouped(*view.Before) + ")."
	}
	return grouped(*view.Before-view.Denied) + " fewer than with the current rule (" + grouped(*view.Before) + ")."
}

// Heading returns the heading of the list of the most denied subjects.
func (view *replayView) Heading() string {
	if view.Whose == "resources" {
		return "Resource"
	}
	return "Subject"
}
