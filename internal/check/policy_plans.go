package check

import (
	"fmt"
	"math"
	"slices"

	"weir/internal/limit"
)

// planNumbers are the limits of one version of a plan. A tenant may have 51 000 versions of plans
// and 100 000 limits in them, and most versions change a few limits of the one before. So the
// versions of a plan share the limits that are equal, and have places only for the rules for which
// some version has a limit.
type planNumbers struct {
	slug     string
	version  int            // of an older version its number, else that of the newest
	older    []*planNumbers // of the newest version: the others
	failOpen bool           // PlanData.FailOpen
	bounds   TierBounds     // PlanData.Counters and RecordBytes
	// columns has for each rule its index in at; 0 if no version has a limit for it. It is nil if
	// the plan has no limits. Like numbers, it is shared by all versions.
	columns []uint16
	at      []uint16 // the index in numbers, from 1; 0 if this version has no limit
	numbers []number
}

// ofVersion returns a version of the plan, or the newest one for a number that the plan lacks:
// a version that was just published or deleted may reach subjects and plans in either order.
func (p *planNumbers) ofVersion(number int32) *planNumbers {
	if number == int32(p.version) { // as of nearly all subjects; at most the 2^31 of the database
		return p
	}
	for _, older := range p.older {
		if older.version == int(number) {
			return older
		}
	}
	return p
}

// number returns the limit that the plan sets for rule i, or nil.
func (p *planNumbers) number(i int32) *number {
	if p == nil || p.columns == nil {
		return nil
	}
	n := p.at[p.columns[i]]
	if n == 0 {
		return nil
	}
	return &p.numbers[n-1]
}

// planCompiler compiles the versions of one plan.
type planCompiler struct {
	policy  *Policy // its rules are compiled already
	bySlug  map[string]int
	slug    string
	source  string
	columns []uint16
	width   int // how many columns there are, with the one of no rule
	numbers []number
}

// compilePlan compiles a plan with all its versions.
func (p *Policy) compilePlan(data *PlanData, bySlug map[string]int) (*planNumbers, error) {
	c := planCompiler{policy: p, bySlug: bySlug, slug: data.Slug, source: "plan:" + data.Slug, width: 1}
	all := append(slices.Clone(data.Older), PlanVersionData{data.Version, data.Limits})
	for _, version := range all {
		if err := c.addColumns(version.Limits); err != nil {
			return nil, err
		}
	}
	versions := make([]*planNumbers, len(all))
	var before *planNumbers
	for i, version := range all {
		var err error
		if before, err = c.version(version, before); err != nil {
			return nil, err
		}
		versions[i] = before
	}
	c.numbers = slices.Clone(c.numbers) // without the space to grow
	for _, version := range versions {
		version.columns, version.numbers = c.columns, c.numbers
		version.failOpen, version.bounds = data.FailOpen, TierBounds{data.Counters, data.RecordBytes}
	}
	last := len(versions) - 1
	newest := versions[last]
	newest.older = slices.Clone(versions[:last])
	return newest, nil
}

// addColumns gives a column to each rule with a limit.
func (c *planCompiler) addColumns(limits map[string]limit.Limit) error {
	if len(limits) > 0 && c.columns == nil {
		c.columns = make([]uint16, len(c.policy.rules))
	}
	for rule := range limits {
		i, known := c.bySlug[rule]
		if !known {
			return fmt.Errorf("plan %s: there is no rule %s", c.slug, rule)
		}
		if c.columns[i] == 0 {
			c.columns[i] = uint16(c.width) // at most MaxRules
			c.width++
		}
	}
	return nil
}

// version compiles a version, which shares limits with the one before.
func (c *planCompiler) version(data PlanVersionData, before *planNumbers) (*planNumbers, error) {
	out := &planNumbers{slug: c.slug, version: data.Number}
	if c.columns != nil {
		out.at = make([]uint16, c.width)
	}
	for rule, lim := range data.Limits {
		i := c.bySlug[rule]
		r := &c.policy.rules[i]
		if errs := lim.Validate(&r.rule); len(errs) > 0 {
			return nil, fmt.Errorf("plan %s: rule %s: %w", c.slug, rule, errs[0])
		}
		n, column := r.number.with(lim, c.source), c.columns[i]
		if before != nil && before.at[column] > 0 && c.numbers[before.at[column]-1] == n {
			out.at[column] = before.at[column]
			continue
		}
		if len(c.numbers) == math.MaxUint16 { // more than 50 older versions of MaxRules limits have
			return nil, fmt.Errorf("plan %s has too many limits", c.slug)
		}
		c.numbers = append(c.numbers, n)
		out.at[column] = uint16(len(c.numbers))
	}
	return out, nil
}

// bytes returns how much memory a plan with all its versions takes, with so many bytes for each
// allocation.
func (p *planNumbers) bytes(object int) int {
	n := 2*cap(p.columns) + cap(p.numbers)*sizeOf[number]() + 8*cap(p.older) + 3*object
	n += sizeOf[planNumbers]() + 2*cap(p.at) + 2*object
	for _, older := range p.older {
		n += sizeOf[planNumbers]() + 2*cap(older.at) + 2*object
	}
	return n
}
