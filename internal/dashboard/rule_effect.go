package dashboard

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// effectView describes a draft of a rule and its effect.
type effectView struct {
	Wrong            []fieldProblem
	Sentence, Outage string // "": it cannot be said yet
	Lease            []string
	Windows          *nextWindows // of a calendar window; otherwise nil
	Resets           bool         // the change resets its counters
	Warnings         []string
	Tries            []try
	Replay           *replayView // nil: there was none
	Busy             bool        // too many previews are running
}

type fieldProblem struct{ Field, Message string }

// try is generated traffic with the draft's decisions.
type try struct {
	*timeline
	Intro string
	Scale string // what one request of the picture stands for; "": for itself
}

// maxTrying limits concurrent previews, which use at most half of the processors, so that enough
// CPU time is left for checks. A tenant has one of them, so that its members cannot use up those
// of others. Further ones wait for tryingWait.
const (
	maxTrying  = 4
	tryingWait = time.Second
)

// effectOf reads a draft, for the rule with this slug ("": a new one), and simulates it. Errors are
// added to the form.
func (d *dashboard) effectOf(r *http.Request, v *visit, slug string, f *form) (*effectView, error) {
	var saved *limit.Rule
	before := limit.Rule{}
	if slug != "" {
		rule, err := d.Store.RuleBySlug(r.Context(), v.actor(), slug)
		if err != nil {
			return nil, err
		}
		saved, before = &rule.Rule, rule.Rule
	}
	draft := ruleOf(f, before)
	f.validate(&draft)
	view := &effectView{}
	tryable := true
	for _, field := range slices.Sorted(maps.Keys(f.errors)) {
		view.Wrong = append(view.Wrong, fieldProblem{field, strings.TrimSpace(labelOf(field) + " " + f.Error(field) + ". " + f.Fix(field))})
		tryable = tryable && (field == "slug" || field == "name" || field == "description")
	}
	if !tryable {
		return view, nil
	}
	if !limit.ValidSlug(draft.Slug) {
		draft.Slug = "draft"
	}
	draft.Name, draft.Description = "", ""
	view.Sentence, view.Outage = ruleSentence(&draft), outageSentence(draft.OnUnavailable)
	view.Lease = leaseSentences(&draft, d.Instances())
	view.Warnings = warningTexts(&draft, d.Instances())
	view.Windows = windowsOf(f, &draft, v.now)
	view.Resets = saved != nil && resetsCounters(saved, &draft)
	err := d.try(r.Context(), v, view, &draft, saved)
	if errors.Is(err, errBusy) || errors.Is(err, tenants.ErrTooManyReports) {
		view.Busy, err = true, nil
	}
	return view, err
}

// try simulates a draft. Error: errBusy, and those of a simulation.
func (d *dashboard) try(ctx context.Context, v *visit, view *effectView, draft, saved *limit.Rule) error {
	leave, err := d.trying.TakeWithin(ctx, v.actor().TenantID(), tryingWait)
	if err != nil {
		return errBusy
	}
	defer leave()
	// Some 1500 requests with one rule are short work, unlike the replay.
	if busy := d.turns.do(ctx, v.actor().TenantID(), func() { view.Tries, err = tries(ctx, draft, v.now) }); busy != nil || err != nil {
		return cmp.Or(busy, err)
	}
	view.Replay, err = d.replay(ctx, v, draft, saved)
	return err
}

// resetsCounters reports whether a change of a rule resets its counters.
func resetsCounters(a, b *limit.Rule) bool {
	for i := range limit.Fields {
		if f := &limit.Fields[i]; f.Resets && !f.Same(a, b) {
			return true
		}
	}
	return false
}

// tries simulates the draft with a steady stream and a burst, for three windows.
func tries(ctx context.Context, draft *limit.Rule, now time.Time) ([]try, error) {
	rule := drawable(draft)
	window := rule.Window.MS
	span := 3 * window
	start := now.UnixMilli() / window * window
	lim, quota := rule.Limit, rule.Numbers().Quota()

	steady, each := stream(4*lim+lim/2, span)
	burst, crowd := atOnce(2*quota, window/2, window/2+window)
	var out []try
	for _, t := range []struct {
		title, intro string
		requests     []check.SimulatedRequest
		units        int64
	}{
		{"Steady", "Steady traffic at 150 % of the limit for three windows.", steady, each},
		{"Burst", "Twice the burst at once, and again one window later.", burst, crowd},
	} {
		for i := range t.requests {
			t.requests[i].Resource, t.requests[i].Attributes = resourceFor(&rule), attributesFor(&rule)
		}
		line, err := (&trial{Title: t.title, Rule: rule, StartMS: start, SpanMS: span, Requests: t.requests, Watch: "somebody"}).run(ctx)
		if err != nil {
			return nil, err
		}
		shown := try{timeline: line, Intro: t.intro}
		if t.units > 1 {
			shown.Scale = "Each request uses " + plural(t.units, "unit", "units") + "."
		}
		out = append(out, shown)
	}
	return out, nil
}

// drawable returns the rule for a simulation: enforced, and with a duration as its window. A
// calendar day is an ordinary window; a week, month and year are drawn as 7, 30 and 365 days.
func drawable(draft *limit.Rule) limit.Rule {
	rule := *draft
	rule.Mode = limit.Enforce
	days := map[limit.Calendar]int64{limit.CalendarDay: 1, limit.CalendarWeek: 7, limit.CalendarMonth: 30, limit.CalendarYear: 365}[rule.Window.Calendar]
	if days > 0 {
		rule.Window = limit.Window{Duration: limit.Duration{Text: itoa(days) + "d", MS: days * 24 * 3_600_000}}
		rule.Zone, rule.Anchor = "", limit.AnchorCalendar
	}
	return rule
}

// Limits for the requests in one chart.
const (
	mostStream = 900
	mostAtOnce = 300
)

// stream distributes units evenly over a span, in requests of each units.
func stream(units, span int64) (requests []check.SimulatedRequest, each int64) {
	units = max(units, 4)
	each = (units + mostStream - 1) / mostStream
	n := units / each
	for k := range n {
		requests = append(requests, somebodyAt(k*span/n, each))
	}
	return requests, each
}

// atOnce requests units at each of these instants, in requests of each units.
func atOnce(units int64, instants ...int64) (requests []check.SimulatedRequest, each int64) {
	each = (units + mostAtOnce - 1) / mostAtOnce
	for _, at := range instants {
		for range units / each {
			requests = append(requests, somebodyAt(at, each))
		}
	}
	return requests, each
}

func somebodyAt(ms, cost int64) check.SimulatedRequest {
	return check.SimulatedRequest{AtMS: ms, Request: check.Request{Subject: "somebody", Cost: cost}}
}

// resourceFor returns a resource that the rule matches.
func resourceFor(r *limit.Rule) string {
	if prefix, isPrefix := strings.CutSuffix(r.Resource, "*"); isPrefix {
		return prefix[:min(len(prefix), limit.MaxNameBytes-1)] + "x"
	}
	return r.Resource
}

// attributesFor returns values for all attributes by which the rule counts.
func attributesFor(r *limit.Rule) (out []check.Attribute) {
	for _, name := range r.Attributes() {
		out = append(out, check.Attribute{Name: name, Value: "some"})
	}
	return out
}

// plansFor returns the tenant's plans with their limits for one rule, if they are valid for the
// draft, and the slugs of those that are not.
func plansFor(plans []tenants.Plan, draft *limit.Rule) (out []check.PlanData, misfits []string) {
	for _, p := range plans {
		data := check.PlanData{Slug: p.Slug, Default: p.Default}
		if lim, has := p.Limits[draft.Slug]; has {
			if len(lim.Validate(draft)) == 0 {
				data.Limits = map[string]limit.Limit{draft.Slug: lim}
			} else {
				misfits = append(misfits, p.Slug)
			}
		}
		out = append(out, data)
	}
	return out, misfits
}
