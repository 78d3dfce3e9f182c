package check

import (
	"weir/internal/limit"
)

// SubjectState tells how a registered subject is treated.
type SubjectState uint8

// A blocked subject is denied every check; for an exempt one every rule acts as in shadow.
const (
	Active SubjectState = iota
	Blocked
	Exempt
)

var subjectStateNames = limit.Names[SubjectState]{Active: "active", Blocked: "blocked", Exempt: "exempt"}

func (s SubjectState) String() string { return subjectStateNames.Of(s) }

// ParseSubjectState returns the state of a name such as "blocked".
func ParseSubjectState(s string) (SubjectState, error) { return subjectStateNames.Parse(s) }
