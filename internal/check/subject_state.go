package check

import (
	"weir/internal/limit"
)

// SubjectState is the state of a registered subject.
type SubjectState uint8

// Every check of a blocked subject is denied. For an exempt subject, every rule acts as in shadow
// mode.
const (
	Active SubjectState = iota
	Blocked
	Exempt
)

var subjectStateNames = limit.Names[SubjectState]{Active: "active", Blocked: "blocked", Exempt: "exempt"}

func (s SubjectState) String() string { return subjectStateNames.Of(s) }

// ParseSubjectState returns the state with a name such as "blocked".
func ParseSubjectState(s string) (SubjectState, error) { return subjectStateNames.Parse(s) }
