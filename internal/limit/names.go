package limit

import (
	"slices"
	"strings"
)

// Names are the names of values, by value; "" if there is none. The lists are short, so searching
// them is fast.
type Names[E ~uint8] []string

func (n Names[E]) Of(e E) string {
	if int(e) < len(n) {
		return n[e]
	}
	return ""
}

func (n Names[E]) Parse(s string) (E, error) {
	var names []string
	for e, name := range n {
		if name == "" {
			continue
		}
		if name == s {
			return E(e), nil // as many as names
		}
		names = append(names, name)
	}
	var zero E
	slices.Sort(names)
	return zero, OneOf(strings.Join(names, ", "))
}
