package tenants

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"weir/internal/limit"
)

// Conversions of limits, durations and texts between Go, where 0 and "" mean none, and the
// database, where null does.

func orNull(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func limitOf(lim, burst *int64, unlimited bool) limit.Limit {
	return limit.Limit{Limit: orZero(lim), Burst: orZero(burst), Unlimited: unlimited}
}

// planLimitOf returns the limit of a plan, which also says what happens near it.
func planLimitOf(lim, burst *int64, unlimited bool, warnAt *float64, overage, metering *string) limit.Limit {
	l := limitOf(lim, burst, unlimited)
	l.WarnAt = limit.PortionOrNone(warnAt)
	l.Overage = overageOf(overage)
	l.Metering = meteringOf(metering)
	return l
}

// meteringOf returns the metering of a plan's limit from a column.
func meteringOf(name *string) limit.PlanMetering {
	if name == nil {
		return limit.MeterAsRule
	}
	metering, err := limit.ParsePlanMetering(*name)
	if err != nil {
		return limit.MeterAsRule // the database has no other names
	}
	return metering
}

// overageOf returns the overage of a column.
func overageOf(name *string) limit.Overage {
	if name == nil {
		return limit.OverageUnset
	}
	overage, err := limit.ParseOverage(*name)
	if err != nil {
		return limit.OverageUnset // the database has no other names
	}
	return overage
}

// overageName returns the column of an overage.
func overageName(o limit.Overage) *string {
	return nameOrNull(o.String())
}

// nameOrNull returns the column of a choice that may not be made.
func nameOrNull(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

func durationOf(text string, ms *int64) limit.Duration {
	return limit.Duration{Text: text, MS: orZero(ms)}
}

// prefixed adds the field of the outer object to the errors of an inner object.
func prefixed(prefix string, fields []limit.FieldError) []limit.FieldError {
	for i := range fields {
		fields[i].Field = prefix + fields[i].Field
	}
	return fields
}

// ValidText returns what is wrong with a text of up to most characters, or nil.
func ValidText(s string, most int) *limit.Problem {
	switch {
	case utf8.RuneCountInString(s) > most || !utf8.ValidString(s):
		return limit.MustBe("at most %d characters of UTF-8", most)
	case strings.ContainsFunc(s, func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }):
		return limit.HasControls
	}
	return nil
}

// checkText adds an error for a text that is too long or has invalid characters.
func checkText(fields *[]limit.FieldError, field, s string, most int) {
	if problem := ValidText(s, most); problem != nil {
		*fields = append(*fields, limit.FieldProblem(field, problem))
	}
}

// checkLine adds an error for a text that is no line of up to most characters, or that would turn
// the text around it, because people outside of the tenant read it.
func checkLine(fields *[]limit.FieldError, field, s string, most int) {
	broken := func(c rune) bool {
		return unicode.IsControl(c) || c == '\u2028' || c == '\u2029' || unicode.Is(unicode.Bidi_Control, c)
	}
	problem := ValidText(s, most)
	if problem == nil && strings.ContainsFunc(s, broken) {
		problem = limit.Wrong("Remove line breaks and characters that change the direction of text.", "must be one line of visible text")
	}
	if problem != nil {
		*fields = append(*fields, limit.FieldProblem(field, problem))
	}
}

// maxYear is the last year that RFC 3339 can represent.
const maxYear = 9999

// stored returns the instant in the precision of Postgres.
func stored(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC().Truncate(time.Microsecond)
	return &u
}

// inUTC returns an instant of the database in UTC.
func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

func sameInstant(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}
