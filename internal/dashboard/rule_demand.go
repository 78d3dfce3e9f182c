package dashboard

import (
	"cmp"
	"context"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// replaySpans are the length and the grain of a replay, by the draft's window.
var replaySpans = []struct {
	window, back time.Duration
	grain        usage.Grain
}{
	{10 * time.Minute, 3 * time.Hour, usage.Minute},
	{time.Hour, 6 * time.Hour, usage.Minute},
	{12 * time.Hour, 3 * 24 * time.Hour, usage.Hour},
	{24 * time.Hour, 7 * 24 * time.Hour, usage.Hour},
	{time.Duration(limit.MaxWindowMS) * time.Millisecond, 90 * 24 * time.Hour, usage.Day},
}

// series is the demand on one counter: the number of checks in each period.
type series struct {
	subject, resource string
	checks            []int64
	total, units      int64
	each              int64 // checks that one simulated request represents
	// quota is the smallest, and windowMS the longest, of the replayed rules; quota 0: unlimited
	quota, windowMS int64
}

// cost returns the average cost of a check, at least 1.
func (s *series) cost() int64 { return max(1, (s.units+s.total/2)/max(s.total, 1)) }

// demand has all series of a tenant in a span of time.
type demand struct {
	from, to time.Time
	step     time.Duration
	series   []*series
	unknown  int64 // checks of subjects that are not listed
	all      int64
}

// demand reads the tenant's recent checks that match the rule. Two million counters take a quarter
// of a second, so they are computed when it is the tenant's turn. Error: errBusy.
func (d *dashboard) demand(ctx context.Context, a tenants.Actor, rule *limit.Rule, now time.Time) (*demand, error) {
	i := slices.IndexFunc(replaySpans, func(s struct {
		window, back time.Duration
		grain        usage.Grain
	}) bool {
		return rule.Window.MS <= s.window.Milliseconds()
	})
	span := replaySpans[max(i, 0)]
	byResource := rule.Resource != "*" || slices.Contains(rule.By, "resource")
	to := now.Truncate(span.grain.Duration()).Add(span.grain.Duration()) // including the current period
	from := to.Add(-span.back)
	totals, err := d.Store.Usage(ctx, a, tenants.UsageQuery{Grain: span.grain, From: from, To: to, ByResource: byResource})
	if err != nil {
		return nil, err
	}
	out := &demand{from: totals.From, to: totals.To, step: span.grain.Duration()}
	if !slices.ContainsFunc(totals.Items, func(item tenants.UsageItem) bool { return resourceFits(rule.Resource, item.Resource) }) {
		return out, nil
	}
	var subjects tenants.UsageReport
	if slices.Contains(rule.By, "subject") {
		if subjects, err = d.Store.Usage(ctx, a, tenants.UsageQuery{Grain: span.grain, From: from, To: to, BySubject: true}); err != nil {
			return nil, err
		}
	}
	err = d.longTurns.do(ctx, a.TenantID(), func() { out.compute(rule, totals, subjects) })
	return out, err
}

// compute fills in the series.
func (d *demand) compute(rule *limit.Rule, totals, subjects tenants.UsageReport) {
	shares := resourceShares(rule, totals, d)
	if !slices.Contains(rule.By, "subject") {
		d.ofAll(rule, totals)
		return
	}
	d.ofSubjects(subjects, shares)
	for _, s := range d.series {
		d.unknown -= s.total
	}
	d.unknown = max(0, d.unknown+d.all)
}

// stretch returns the index of the period that contains an instant.
func (d *demand) stretch(at time.Time) int { return int(at.Sub(d.from) / d.step) }

func (d *demand) stretches() int { return int(d.to.Sub(d.from) / d.step) }

// resourceShares returns for each period the shares of the rule's resources in its checks, and
// their sum. Resources without their own row match only "*".
func resourceShares(rule *limit.Rule, totals tenants.UsageReport, d *demand) []map[string]float64 {
	each := make([]map[string]float64, d.stretches())
	sums := make([]int64, len(each))
	for _, item := range totals.Items {
		i, n := d.stretch(item.Start), item.Allowed+item.Denied
		if i < 0 || i >= len(each) {
			continue
		}
		sums[i] += n
		if !resourceFits(rule.Resource, item.Resource) {
			continue
		}
		if each[i] == nil {
			each[i] = map[string]float64{}
		}
		each[i][countedResource(rule, item.Resource)] += float64(n)
		d.all += n
	}
	for i, share := range each {
		for name := range share {
			share[name] /= float64(max(sums[i], 1))
		}
	}
	return each
}

func resourceFits(pattern, resource string) bool {
	if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
		return prefix == "" || resource != "" && strings.HasPrefix(resource, prefix)
	}
	return pattern == resource
}

// countedResource returns the resource of a counter: any, if the rule counts all of its resources
// together.
func countedResource(rule *limit.Rule, resource string) string {
	switch {
	case !slices.Contains(rule.By, "resource"):
		return resourceFor(rule)
	case resource == "":
		return "other resources"
	}
	return resource
}

// ofAll returns the series of a rule that does not count by subject.
func (d *demand) ofAll(rule *limit.Rule, totals tenants.UsageReport) {
	made := map[string]*series{}
	for _, item := range totals.Items {
		if i := d.stretch(item.Start); i >= 0 && i < d.stretches() && resourceFits(rule.Resource, item.Resource) {
			d.add(made, "everybody", countedResource(rule, item.Resource), i, item.Allowed+item.Denied, unitsOf(item.Counts))
		}
	}
}

// mostCells is the maximum number of periods of the series of subjects together. A period takes 8
// bytes, so that they take 32 MiB.
const mostCells = 4 << 20

// ofSubjects adds the series of the listed subjects, busiest first. Each subject has a counter for
// each resource if the rule counts by both: 18,000 subjects in the lists of three hours with 128
// resources are two million counters. As many of them are replayed as mostCells allows, and the
// checks of the others count as unknown.
func (d *demand) ofSubjects(report tenants.UsageReport, shares []map[string]float64) {
	items, totals := map[string][]*tenants.UsageItem{}, map[string]int64{}
	for i := range report.Items {
		item := &report.Items[i]
		if k := d.stretch(item.Start); k >= 0 && k < len(shares) {
			items[item.Subject] = append(items[item.Subject], item)
			totals[item.Subject] += item.Allowed + item.Denied
		}
	}
	names := slices.SortedFunc(maps.Keys(totals), func(a, b string) int {
		return cmp.Or(cmp.Compare(totals[b], totals[a]), cmp.Compare(a, b))
	})
	remaining := mostCells / max(d.stretches(), 1)
	for _, name := range names {
		if remaining -= d.ofSubject(name, items[name], shares); remaining <= 0 {
			break
		}
	}
}

// ofSubject adds the series of one subject, and returns the number of its counters. Usage does not
// have the resources of a subject, so it is assumed to use them like the tenant as a whole.
func (d *demand) ofSubject(subject string, items []*tenants.UsageItem, shares []map[string]float64) (counters int) {
	made := map[string]*series{}
	rest := map[string]float64{} // of shares of checks that were not whole
	for _, item := range items {
		n := item.Allowed + item.Denied
		i := d.stretch(item.Start)
		for resource, share := range shares[i] {
			exact := float64(n)*share + rest[resource]
			checks := int64(exact + 1e-9)
			rest[resource] = exact - float64(checks)
			if checks > 0 {
				d.add(made, subject, resource, i, checks, unitsOf(item.Counts)*checks/max(n, 1))
			}
		}
	}
	return len(rest)
}

func unitsOf(c usage.Counts) int64 {
	return min(c.CostAllowed, limit.MaxFixedLimit) + min(c.CostDenied, limit.MaxFixedLimit)
}

// add adds checks of a period to the series of a subject and a resource. made has those of the
// subject by resource.
func (d *demand) add(made map[string]*series, subject, resource string, stretch int, checks, units int64) {
	s := made[resource]
	if s == nil {
		s = &series{subject: subject, resource: resource, checks: make([]int64, d.stretches()), each: 1}
		made[resource] = s
		d.series = append(d.series, s)
	}
	s.checks[stretch] += checks
	s.total += checks
	s.units += units
}

// quotaFor returns the maximum that a subject can use at once under the rule, 0 for no limit.
func quotaFor(rule *limit.Rule, plans []check.PlanData, subject check.SubjectData) int64 {
	lim := ownLimit(rule)
	for _, p := range plans {
		if own, has := p.Limits[rule.Slug]; has && (p.Slug == subject.Plan || subject.Plan == "" && p.Default) {
			lim = own
		}
	}
	if len(subject.Overrides) > 0 {
		lim = subject.Overrides[0].Limit
	}
	if lim.Unlimited {
		return 0
	}
	r := *rule
	r.Limit, r.Burst = lim.Limit, lim.Burst
	return min(r.Numbers().Quota(), r.Limit)
}

// safe reports whether the series can never be denied, because no two consecutive windows exceed
// the quota.
func (s *series) safe(step time.Duration) bool {
	if s.quota == 0 {
		return true
	}
	width := int(2*s.windowMS/step.Milliseconds()) + 2
	sum := int64(0)
	for i, n := range s.checks {
		sum += n
		if i >= width {
			sum -= s.checks[i-width]
		}
		if sum > s.quota/s.cost() {
			return false
		}
	}
	return true
}

// requests distributes the checks of each period at random.
func (d *demand) requests() (out []check.SimulatedRequest, of []int) {
	type arrival struct {
		check.SimulatedRequest
		series int
	}
	var all []arrival
	for k, s := range d.series {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s.subject + "\x00" + s.resource))
		random := rand.New(rand.NewPCG(h.Sum64(), uint64(d.from.Unix()))) // no secret
		left := int64(0)
		for i, n := range s.checks {
			begin := int64(i) * d.step.Milliseconds()
			for left += n; left >= s.each; left -= s.each {
				r := check.SimulatedRequest{AtMS: begin + random.Int64N(d.step.Milliseconds())}
				r.Subject, r.Resource, r.Cost = s.subject, s.resource, s.each*s.cost()
				all = append(all, arrival{r, k})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.AtMS, b.AtMS) })
	for _, a := range all {
		out, of = append(out, a.SimulatedRequest), append(of, a.series)
	}
	return out, of
}
