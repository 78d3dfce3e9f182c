package usage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
)

// Limits for the rows of one tenant in one hour. Each row is stored in Postgres every minute, so
// without limits, a tenant with 1000 plans and 1000 rules could have a million of them a minute.
// What is beyond a limit counts in a row that tells less: a check in that of its plan, or else in
// that of all other plans, and the verdict of a rule in that of the rule under all other plans. The
// sums of a tenant, of each of its plans and of each of its rules therefore stay exact, as long as
// it has no more plans and rules at a time than it may have.
const (
	maxUsageResources = 128  // that have their own rows
	maxUsageCells     = 1024 // pairs of a plan and such a resource
	maxUsagePlans     = 1024 // plans, for their other resources
	maxUsagePairs     = 3072 // pairs of a rule and one of these
	maxUsageRules     = 1024 // rules, under all other plans

	// maxTenantRows has one more, for checks under all other plans.
	maxTenantRows = maxUsageCells + maxUsagePlans + maxUsagePairs + maxUsageRules + 1
)

// tenantUsage has the counts of one tenant since the last drain, in one minute.
type tenantUsage struct {
	tenant limit.TenantID
	minute int64 // since 1970; 0 before the first check
	dirty  bool  // listed in its shard
	urgent bool  // listed in its shard as urgent
	// frequent reports whether it was urgent since its shard was drained completely.
	frequent bool
	// checksHeld is how many checks were counted since the last drain, in all minutes.
	checksHeld int64

	// counts are the counters of this minute, by the number of a row. A drain takes them as they
	// are, and leaves spare or new ones in their place.
	counts []Counts
	spare  []Counts // empty counters that a drain has returned
	// keys say what the rows of this hour are about. A drain reads the keys of the rows that it has
	// taken, at any time, so keys are only appended.
	keys  []rowKey
	cells map[cellKey]*usageCell
	rules map[ruleKey]int // the rows of rules
	last  *usageCell      // the last one used, which the next check usually needs too
	// used is how many of the limited rows there are.
	used struct{ cells, plans, pairs, rules int }

	// resources are those with their own rows. New resources get one until the maximum is reached.
	// At the end of each hour, only the busier half stays. A client that invents resources can
	// therefore not create rows without end, nor displace important ones for long.
	resources map[string]struct{}
	checks    subjectSketch
	denied    subjectSketch
}

type rowKey struct{ rule, plan, resource string }

type cellKey struct{ plan, resource string }

type ruleKey struct {
	cell int // its row
	slug string
}

// usageCell counts the checks of one plan and resource.
type usageCell struct {
	key    cellKey
	row    int
	checks int64 // in this hour
	// rules are those of the last checks, in their order: the next check of this kind finds their
	// rows without a search.
	rules []usageRule
}

type usageRule struct {
	rule *limit.Rule // as last seen: a new policy has new rules with the same slugs
	row  int
}

// noRow is in place of a row that would be beyond the limits.
const noRow = -1

// table is the counts of one tenant in one minute, or in a part of it.
type table struct {
	owner  *tenantUsage
	keys   []rowKey
	counts []Counts
	tops   Subjects // with the tenant and the minute
}

// newTenantUsage returns counters that turn makes ready.
func newTenantUsage(tenant limit.TenantID) *tenantUsage {
	return &tenantUsage{tenant: tenant, resources: map[string]struct{}{}}
}

// take appends the counts of t to tables, and leaves empty counters. It takes no longer for a
// tenant with many rows: the checks of other tenants wait for the lock of the shard.
func (t *tenantUsage) take(to []table) []table {
	if t.checks.empty() {
		return to
	}
	top := TopSubjects{Checks: t.checks.take(), Denied: t.denied.take()}
	to = append(to, table{owner: t, keys: t.keys, counts: t.counts,
		tops: Subjects{Tenant: t.tenant, StartMS: t.minute * time.Minute.Milliseconds(), TopSubjects: top}})
	rows := len(t.counts)
	if cap(t.spare) < rows {
		t.spare = make([]Counts, rows, cap(t.counts))
	}
	t.counts, t.spare = t.spare[:rows], nil
	return to
}

// rows calls f with each row that has counts. The row is overwritten by the next one.
func (m *table) rows(f func(*Row)) {
	row := Row{Key: Key{Tenant: m.tops.Tenant, StartMS: m.tops.StartMS}}
	for i := range m.counts {
		if row.Counts = m.counts[i]; row.Counts != (Counts{}) {
			k := &m.keys[i]
			row.Rule, row.Plan, row.Resource = k.rule, k.plan, k.resource
			f(&row)
		}
	}
}

// turn begins a minute. At the beginning of an hour, it removes the resources with the fewest
// checks and all rows, which the next checks create again.
func (t *tenantUsage) turn(minute int64) {
	if minute/60 != t.minute/60 {
		t.keepBusiest(maxUsageResources / 2)
		t.counts, t.spare, t.keys, t.last = nil, nil, nil, nil
		t.cells, t.rules = map[cellKey]*usageCell{}, map[ruleKey]int{}
		t.used.cells, t.used.plans, t.used.pairs, t.used.rules = 0, 0, 0, 0
	}
	t.minute = minute
}

func (t *tenantUsage) keepBusiest(n int) {
	if len(t.resources) <= n {
		return
	}
	checks := map[string]int64{}
	for key, c := range t.cells {
		checks[key.resource] += c.checks
	}
	names := make([]string, 0, len(t.resources))
	for name := range t.resources {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(checks[b], checks[a]) })
	for _, name := range names[n:] {
		delete(t.resources, name)
	}
}

// cell returns the counters of a plan and a resource.
func (t *tenantUsage) cell(plan, resource string) *usageCell {
	key := cellKey{plan, resource}
	if t.last != nil && t.last.key == key {
		return t.last
	}
	c := t.cells[key]
	if c == nil {
		c = t.cellFor(key)
	}
	t.last = c
	return c
}

// cellFor returns a new cell or, beyond the limits, the one in which its checks count.
func (t *tenantUsage) cellFor(key cellKey) *usageCell {
	_, named := t.resources[key.resource]
	switch {
	case key.resource == "", !named && len(t.resources) >= maxUsageResources, t.used.cells >= maxUsageCells:
		key.resource = ""
		if c := t.cells[key]; c != nil {
			return c
		}
		if t.used.plans >= maxUsagePlans {
			return t.otherPlans()
		}
		t.used.plans++
	default:
		t.used.cells++
	}
	// A copy: the request's strings are parts of a larger text.
	key = cellKey{strings.Clone(key.plan), strings.Clone(key.resource)}
	if !named && key.resource != "" {
		t.resources[key.resource] = struct{}{}
	}
	return t.newCell(key)
}

// otherPlans returns the cell of everything that has no other one.
func (t *tenantUsage) otherPlans() *usageCell {
	key := cellKey{plan: OtherPlans}
	if c := t.cells[key]; c != nil {
		return c
	}
	return t.newCell(key)
}

func (t *tenantUsage) newCell(key cellKey) *usageCell {
	c := &usageCell{key: key, row: t.newRow(rowKey{plan: key.plan, resource: key.resource})}
	t.cells[key] = c
	return c
}

func (t *tenantUsage) newRow(key rowKey) int {
	t.keys, t.counts = append(t.keys, key), append(t.counts, Counts{})
	return len(t.keys) - 1
}

// ruleRow returns the row of a rule's verdicts on the checks of a cell. Beyond the limits, it is
// the row of the rule under all other plans, or noRow.
func (t *tenantUsage) ruleRow(c *usageCell, slug string) int {
	key := ruleKey{c.row, slug}
	if row, there := t.rules[key]; there {
		return row
	}
	switch other := c.key.plan == OtherPlans; {
	case !other && t.used.pairs >= maxUsagePairs:
		return t.ruleRow(t.otherPlans(), slug)
	case !other:
		t.used.pairs++
	case t.used.rules >= maxUsageRules:
		return noRow
	default:
		t.used.rules++
	}
	row := t.newRow(rowKey{slug, c.key.plan, c.key.resource})
	t.rules[key] = row
	return row
}

// count counts a decision, and reports whether a rule in shadow mode would have denied it.
func (c *usageCell) count(t *tenantUsage, d *check.Decision) (shadowDenied bool) {
	checks, counts := d.Checks(), t.counts
	c.checks += checks
	for i := range d.Rules {
		r := &d.Rules[i]
		if i >= len(c.rules) || c.rules[i].rule != r.Rule {
			c.see(t, r.Rule, i)
			counts = t.counts
		}
		inShadow := r.Mode == limit.Shadow && !r.Allowed
		shadowDenied = shadowDenied || inShadow
		if row := c.rules[i].row; uint(row) < uint(len(counts)) { // and not noRow
			counts[row].count(checks, r.Allowed || inShadow, inShadow, r.Degraded, d.Cost)
		}
	}
	counts[c.row].count(checks, d.Allowed, shadowDenied, d.Degraded, d.Cost)
	return shadowDenied
}

// see notes a rule at index i, which is at most the number of rules.
func (c *usageCell) see(t *tenantUsage, rule *limit.Rule, i int) {
	seen := usageRule{rule, t.ruleRow(c, rule.Slug)}
	if i == len(c.rules) {
		c.rules = append(c.rules, seen)
		return
	}
	c.rules[i] = seen
}
