package limit

import (
	"fmt"
	"slices"
	"strings"
)

// enumNames are names by value, "" where there is none: a list is searched in no time.
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
	return zero, fmt.Errorf("must be one of %s", strings.Join(names, ", "))
}
