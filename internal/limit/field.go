package limit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is the type of a field's values.
type Kind uint8

// The kinds, and the Go type of their values: Field.Get returns it and Field.Set takes it. In JSON,
// a value is a string, a number or a list of strings.
const (
	TextKind     Kind = iota + 1 // string
	NumberKind                   // int64
	DurationKind                 // string, such as "30s"
	WindowKind                   // string: a duration, or a unit of the calendar
	ChoiceKind                   // string: one of Field.Choices
	ListKind                     // []string
	PortionKind                  // float64
)

// Field is one setting of a rule.
type Field struct {
	Name     string // in JSON, documents, the audit trail and errors
	Label    string // on pages
	Hint     string // beside the input in a form, ""
	Sent     string // what a request may send: the description in the OpenAPI document
	Shown    string // what an answer holds, ""
	Choices  []Choice
	Schema   map[string]any // the range, as keywords of JSON Schema
	Required bool           // required; it has no default
	Fixed    bool           // cannot change after the rule is created
	Resets   bool           // a change resets the counters of the rule

	value
	initial func(*Rule) any           // the default; nil: not set
	applies func(*Rule) bool          // whether a rule uses the field; nil: all do
	check   func(*Rule, *FieldErrors) // adds an error if the value is out of range; nil: all values are valid
}

// Choice is one of the values of a field. If Text is not empty, it explains the choice.
type Choice struct{ Value, Label, Text string }

// value reads and writes a field in a rule.
type value struct {
	kind  Kind
	get   func(*Rule) any // nil: not set
	set   func(*Rule, any) error
	clear func(*Rule)
	same  func(a, b *Rule) bool
}

// Kind returns the type of the field's values.
func (f *Field) Kind() Kind { return f.kind }

// Get returns the value that a rule has: a string, an int64, a float64 or a []string, or nil if it
// is not set.
func (f *Field) Get(r *Rule) any { return f.get(r) }

// Set sets the value of a rule; nil is the default. An error is a *Problem.
func (f *Field) Set(r *Rule, v any) error {
	if v == nil {
		f.Reset(r)
		return nil
	}
	return f.set(r, v)
}

// SetJSON is Set with a value in JSON.
func (f *Field) SetJSON(r *Rule, raw []byte) error {
	switch f.kind {
	case NumberKind:
		return setJSON[int64](f, r, raw, MustBe("a whole number"))
	case ListKind:
		return setJSON[[]string](f, r, raw, MustBe("a list of strings"))
	case PortionKind:
		return setJSON[float64](f, r, raw, invalidPortion)
	default:
		return setJSON[string](f, r, raw, MustBe("a string"))
	}
}

func setJSON[T any](f *Field, r *Rule, raw []byte, problem *Problem) error {
	var v *T
	if err := json.Unmarshal(raw, &v); err != nil {
		return problem
	}
	if v == nil {
		return f.Set(r, nil)
	}
	return f.Set(r, *v)
}

// Reset sets a rule to the default value of the field.
func (f *Field) Reset(r *Rule) {
	f.clear(r)
	if f.initial != nil {
		if err := f.set(r, f.initial(r)); err != nil {
			panic(fmt.Sprintf("limit: the default of %s %v", f.Name, err))
		}
	}
}

// Same reports whether the field has the same meaning in two rules: 60s is the same as 1m.
func (f *Field) Same(a, b *Rule) bool { return f.same(a, b) }

// Applies reports whether rules like r use the field, as only bucket algorithms use the burst.
func (f *Field) Applies(r *Rule) bool { return f.applies == nil || f.applies(r) }

// Omitted reports whether documents leave the field out: it is empty, and empty is its default.
func (f *Field) Omitted(r *Rule) bool {
	v := f.Get(r)
	return v == nil || v == "" && (f.initial == nil || f.initial(r) == "")
}

// names lists the values of a choice.
func (f *Field) names() string {
	names := make([]string, len(f.Choices))
	for i, c := range f.Choices {
		names[i] = c.Value
	}
	return strings.Join(names, ", ")
}

// text is a value with free text.
func text(at func(*Rule) *string) value {
	return value{
		kind:  TextKind,
		get:   func(r *Rule) any { return *at(r) },
		set:   func(r *Rule, v any) error { *at(r) = v.(string); return nil },
		clear: func(r *Rule) { *at(r) = "" },
		same:  func(a, b *Rule) bool { return *at(a) == *at(b) },
	}
}

// number is a whole number; 0 is not set.
func number(at func(*Rule) *int64) value {
	return value{
		kind: NumberKind,
		get: func(r *Rule) any {
			if n := *at(r); n != 0 {
				return n
			}
			return nil
		},
		set:   func(r *Rule, v any) error { *at(r) = v.(int64); return nil },
		clear: func(r *Rule) { *at(r) = 0 },
		same:  func(a, b *Rule) bool { return *at(a) == *at(b) },
	}
}

// optionalNumber is a number from 1 to most. 0 means that it is not set, so 0 cannot be sent.
func optionalNumber(at func(*Rule) *int64, most int64) value {
	v := number(at)
	v.set = func(r *Rule, n any) error {
		*at(r) = n.(int64)
		if *at(r) == 0 {
			return MustBe("a whole number from 1 to %d", most)
		}
		return nil
	}
	return v
}

// share is a part of the quota; the zero Portion is not set.
func share(at func(*Rule) *Portion) value {
	return value{
		kind: PortionKind,
		get: func(r *Rule) any {
			if s := *at(r); s != 0 {
				return s.float()
			}
			return nil
		},
		set: func(r *Rule, v any) (err error) {
			*at(r), err = PortionOf(v.(float64))
			return err
		},
		clear: func(r *Rule) { *at(r) = 0 },
		same:  func(a, b *Rule) bool { return *at(a) == *at(b) },
	}
}

// duration is a length of time; the zero Duration is not set.
func duration(at func(*Rule) *Duration) value {
	return value{
		kind: DurationKind,
		get: func(r *Rule) any {
			if d := *at(r); d.MS != 0 || d.Text != "" {
				return d.Written()
			}
			return nil
		},
		set: func(r *Rule, v any) (err error) {
			*at(r), err = ParseDuration(v.(string))
			return err
		},
		clear: func(r *Rule) { *at(r) = Duration{} },
		same:  func(a, b *Rule) bool { return at(a).MS == at(b).MS },
	}
}

// windowValue is the window of a rule.
func windowValue() value {
	return value{
		kind: WindowKind,
		get: func(r *Rule) any {
			if r.Window.Calendar != NoCalendar {
				return r.Window.Calendar.String()
			}
			return r.Window.Written()
		},
		set: func(r *Rule, v any) (err error) {
			r.Window, err = ParseWindow(v.(string))
			return err
		},
		clear: func(r *Rule) { r.Window = Window{} },
		same: func(a, b *Rule) bool {
			return a.Window.MS == b.Window.MS && a.Window.Calendar == b.Window.Calendar
		},
	}
}

// byCalendar reports whether the rule has calendar windows. Only these have a zone and an anchor.
func (r *Rule) byCalendar() bool { return r.Window.Calendar != NoCalendar }

// zoneValue is the time zone of a calendar window.
func zoneValue() value {
	v := text(func(r *Rule) *string { return &r.Zone })
	v.get = func(r *Rule) any {
		if !r.byCalendar() && r.ZoneName() == "UTC" {
			return nil
		}
		return r.ZoneName()
	}
	v.set = func(r *Rule, zone any) error {
		if r.Zone = zone.(string); r.Zone == "UTC" {
			r.Zone = ""
		}
		return nil
	}
	v.same = func(a, b *Rule) bool { return a.ZoneName() == b.ZoneName() }
	return v
}

// anchorValue is the anchor of a calendar window.
func anchorValue() value {
	v := choice(func(r *Rule) *Anchor { return &r.Anchor }, anchorNames)
	v.get = func(r *Rule) any {
		if !r.byCalendar() && r.Anchor == AnchorCalendar {
			return nil
		}
		return r.Anchor.String()
	}
	return v
}

// leaseValue is how long a client may hold units of a leased rule. The default is stored as not
// set.
func leaseValue() value {
	v := duration(func(r *Rule) *Duration { return &r.Lease })
	get, set := v.get, v.set
	v.get = func(r *Rule) any {
		if r.Lease.MS == 0 && r.Consistency == Leased {
			return Duration{MS: LeaseHold.Milliseconds()}.Written()
		}
		return get(r)
	}
	v.set = func(r *Rule, text any) error {
		err := set(r, text)
		if r.Lease.MS == LeaseHold.Milliseconds() {
			r.Lease = Duration{}
		}
		return err
	}
	v.same = func(a, b *Rule) bool { return a.ClientLease() == b.ClientLease() }
	return v
}

// choice is one of a few names.
func choice[E ~uint8](at func(*Rule) *E, names Names[E]) value {
	return value{
		kind: ChoiceKind,
		get:  func(r *Rule) any { return names.Of(*at(r)) },
		set: func(r *Rule, v any) (err error) {
			*at(r), err = names.Parse(v.(string))
			return err
		},
		clear: func(r *Rule) { *at(r) = 0 },
		same:  func(a, b *Rule) bool { return *at(a) == *at(b) },
	}
}

// choices are names without an explanation.
func choices[E ~uint8](names Names[E]) (out []Choice) {
	for _, name := range names {
		if name != "" {
			out = append(out, Choice{Value: name, Label: name})
		}
	}
	return out
}

// list is a list of texts. A rule has its own copy of it.
func list(at func(*Rule) *[]string) value {
	return value{
		kind:  ListKind,
		get:   func(r *Rule) any { return append([]string{}, *at(r)...) },
		set:   func(r *Rule, v any) error { *at(r) = slices.Clone(v.([]string)); return nil },
		clear: func(r *Rule) { *at(r) = nil },
		same:  func(a, b *Rule) bool { return slices.Equal(*at(a), *at(b)) },
	}
}

// Written returns the duration as text. One that was computed has no text of its own.
func (d Duration) Written() string {
	if d.Text == "" && d.MS != 0 {
		return strconv.FormatInt(d.MS, 10) + "ms"
	}
	return d.Text
}
