package limit

import (
	"errors"
	"fmt"
)

// Problem says what is wrong with a value and how to fix it. The code that finds the problem states
// both.
type Problem struct {
	Message string // completes a sentence that begins with the field: "must be 1 to 63 of a-z, 0-9 and -"
	Fix     string // a sentence that says what to do

	// Repeats means that Fix only repeats Message, so that a form need not show both.
	Repeats bool
	// InForm is what a form shows instead of Fix; "" for Fix. A form does not name the requests of
	// the API.
	InForm string
}

func (p *Problem) Error() string { return p.Message }

// FormFix returns what a form shows as the fix, beside the message. It is "" if the message
// suffices.
func (p *Problem) FormFix() string {
	switch {
	case p.Repeats:
		return ""
	case p.InForm != "":
		return p.InForm
	}
	return p.Fix
}

// With returns the problem with another message, which must contain what the fix repeats.
func (p *Problem) With(message string) *Problem {
	other := *p
	other.Message = message
	return &other
}

// Wrong returns a problem with its fix. The message is formatted.
func Wrong(fix, format string, args ...any) *Problem {
	return &Problem{Message: fmt.Sprintf(format, args...), Fix: fix}
}

// MustBe returns the problem of a value that is not what it must be. The fix has the same text.
func MustBe(format string, args ...any) *Problem {
	what := fmt.Sprintf(format, args...)
	return &Problem{Message: "must be " + what, Fix: "Make it " + what + ".", Repeats: true}
}

// OneOf returns the problem of a value that is not one of names, a list separated by commas.
func OneOf(names string) *Problem {
	return &Problem{Message: "must be one of " + names, Fix: "Use one of " + names + ".", Repeats: true}
}

// NotListed returns the problem of a value that is not in a list of the API. %s in the fix stands
// for how the reader finds the list: NotListed("GET /v1/plans", "Use one %s.", ...) has the fix
// "Use one that GET /v1/plans lists.", and in a form "Use one that exists.".
func NotListed(list, fix, format string, args ...any) *Problem {
	p := Wrong(fmt.Sprintf(fix, "that "+list+" lists"), format, args...)
	p.InForm = fmt.Sprintf(fix, "that exists")
	return p
}

// Problems that occur in several places.
var (
	Duplicate   = Wrong("Remove one of the two.", "is a duplicate")
	InvalidSlug = MustBe("1 to %d of a-z, 0-9 and -", MaxSlugBytes)
	HasControls = Wrong("Remove the control characters.", "must not contain control characters")
)

// ProblemOf returns the Problem of an error of this package.
func ProblemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return &Problem{Message: err.Error(), Fix: "Correct the value."}
}

// FieldError says what is wrong with one field of an input and how to fix it.
type FieldError struct {
	Field string // as in JSON, nested with dots: "by.0", "limits.api.burst"
	Problem
}

// FieldProblem returns the error of a field.
func FieldProblem(field string, p *Problem) FieldError {
	return FieldError{Field: field, Problem: *p}
}

func (e FieldError) Error() string { return e.Field + " " + e.Message }

// FieldErrors are the errors of an input.
type FieldErrors []FieldError

// Add adds the error of a field.
func (e *FieldErrors) Add(field string, p *Problem) { *e = append(*e, FieldProblem(field, p)) }
