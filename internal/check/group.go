package check

import (
	"slices"
	"strings"

	"weir/internal/limit"
)

// byLists are the different lists of values that a tenant's rules count by.
type byLists struct {
	tenant    limit.TenantID
	keyPrefix string
	lists     map[string]*byList
}

func (l *byLists) of(by []string) *byList {
	// A part holds no comma: attributes have names of letters, digits, _ . and -.
	name := strings.Join(by, ",")
	list := l.lists[name]
	if list == nil {
		list = newByList(l.tenant, by, l.keyPrefix)
		l.lists[name] = list
	}
	return list
}

// groupable reports whether counters of the rule can be kept in a group: all of them rise by what a
// check costs, and by nothing else, until their window ends. Rules that match every resource are
// asked in every check together; of others one would be read and written for the sake of
// the other. Of a leased rule units come back, which a sum cannot say.
func (r *compiledRule) groupable() bool {
	switch r.rule.Algorithm {
	case limit.SlidingWindowCounter, limit.FixedWindow, limit.FixedWindowFirstHit:
		return r.rule.Resource == "*" && r.rule.Penalty.MS == 0 && r.rule.Consistency == limit.Strict
	}
	return false
}

// groupRules has those rules grouped of which a tenant has at least two that count by the same.
func groupRules(rules []compiledRule) {
	// Where some rule for every resource needs the other script, each check does, and that script
	// keeps no groups.
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
