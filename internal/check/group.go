package check

import (
	"slices"
	"strings"

	"weir/internal/limit"
)

// byLists are the different lists of values by which a tenant's rules count.
type byLists struct {
	tenant limit.TenantID
	places *places
	lists  map[string]*byList
}

func (l *byLists) of(by []string) *byList {
	// A part contains no comma, because names of attributes consist of letters, digits, _ . and -.
	name := strings.Join(by, ",")
	list := l.lists[name]
	if list == nil {
		list = newByList(l.tenant, by, l.places)
		l.lists[name] = list
	}
	return list
}

// groupable reports whether counters of the rule can be in a group. In a group, the cost of a check
// is the only change of all counters until their window ends. Rules that match every resource are
// evaluated together in every check. For other rules, a check of one would read and write the
// others, too. Units of a leased rule can be returned, which a sum cannot represent.
func (r *compiledRule) groupable() bool {
	switch r.rule.Algorithm {
	case limit.SlidingWindowCounter, limit.FixedWindow, limit.FixedWindowFirstHit:
		return r.rule.Resource == "*" && r.rule.Penalty.MS == 0 && r.rule.Consistency == limit.Strict
	}
	return false
}

// groupRules marks the rules that are in a group: those of which a tenant has at least two that
// count by the same values.
func groupRules(rules []compiledRule) {
	// If a rule for every resource needs the other script, every check uses that script, which does
	// not use groups.
	if slices.ContainsFunc(rules, func(r compiledRule) bool {
		return r.rule.Resource == "*" && r.rule.Mode != limit.Off && !r.number.numbers.Compact()
	}) {
		return
	}
	count := map[*byList]int{}
	for i := range rules {
		if rules[i].groupable() {
			count[rules[i].by]++
		}
	}
	for i := range rules {
		rules[i].grouped = rules[i].groupable() && count[rules[i].by] > 1
	}
}
