package limit

import (
	"cmp"
	"slices"
	"strings"
)

// MaxMatching returns the maximum number of rules, without those that are off, that match one
// resource, and a pattern for which it is reached: the first, if there are several.
func MaxMatching(rules []Rule) (most int, pattern string) {
	sorted := sortedPatterns(rules)
	var enclosing []enclosingPrefix // of the present pattern, from the shortest
	first := len(rules)
	for len(sorted) > 0 {
		same := 1
		for same < len(sorted) && sorted[same].base == sorted[0].base {
			same++
		}
		base, prefixes, exact := sorted[0].base, 0, 0
		for _, p := range sorted[:same] {
			switch r := &rules[p.at]; {
			case r.Mode == Off:
			case len(r.Resource) > len(base):
				prefixes++
			default:
				exact++
			}
		}
		for len(enclosing) > 0 && !strings.HasPrefix(base, enclosing[len(enclosing)-1].base) {
			enclosing = enclosing[:len(enclosing)-1]
		}
		if len(enclosing) > 0 {
			prefixes += enclosing[len(enclosing)-1].rules
		}
		enclosing = append(enclosing, enclosingPrefix{base, prefixes})
		if n, at := prefixes+exact, sorted[0].at; n > most || n == most && n > 0 && at < first {
			most, first, pattern = n, at, rules[at].Resource
		}
		sorted = sorted[same:]
	}
	return most, pattern
}

// enclosingPrefix is what a resource begins with, and the number of rules that match by it or by a
// shorter prefix.
type enclosingPrefix struct {
	base  string
	rules int
}

type patternAt struct {
	base string // without *
	at   int    // among the rules
}

// sortedPatterns returns the patterns of rules so that each prefix is followed by all that begin
// with it.
func sortedPatterns(rules []Rule) []patternAt {
	out := make([]patternAt, len(rules))
	for i := range rules {
		out[i] = patternAt{strings.TrimSuffix(rules[i].Resource, "*"), i}
	}
	slices.SortFunc(out, func(a, b patternAt) int {
		return cmp.Or(strings.Compare(a.base, b.base), a.at-b.at)
	})
	return out
}
