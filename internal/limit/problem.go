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
}

func (p *Problem) Error() string { return p.Message }

// Wrong returns a problem with its fix. The message is formatted.
func Wrong(fix, format string, args ...any) *Problem {
	return &Problem{Message: fmt.Sprintf(format, args...), Fix: fix}
}

// MustBe returns the problem of a value that is not what it must be. The fix has the same text.
func MustBe(format string, args ...any) *Problem {
	what := fmt.Sprintf(format, args...)
	return &Problem{Message: "must be " + what, Fix: "Make it " + what + "."}
}

// OneOf returns the problem of a value that is not one of names, a list separated by commas.
func OneOf(names string) *Problem {
	return &Problem{Message: "must be one of " + names, Fix: "Use one of " + names + "."}
}

// Problems that occur in several places.
var (
	Duplicate   = &Problem{"is a duplicate", "Remove one of the two."}
	InvalidSlug = MustBe("1 to %d of a-z, 0-9 and -", MaxSlugBytes)
	HasControls = &Problem{"must not contain control characters", "Remove the control characters."}
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
	Field   string // as in JSON, nested with dots: "by.0", "limits.api.burst"
	Message string // as in Problem
	Fix     string
}

// FieldProblem returns the error of a field.
func FieldProblem(field string, p *Problem) FieldError {
	return FieldError{Field: field, Message: p.Message, Fix: p.Fix}
}

func (e FieldError) Error() string { return e.Field + " " + e.Message }

// FieldErrors are the errors of an input.
type FieldErrors []FieldError

// Add adds the error of a field.
func (e *FieldErrors) Add(field string, p *Problem) { *e = append(*e, FieldProblem(field, p)) }
