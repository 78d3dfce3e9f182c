package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/a-h/templ"

	"weir/internal/limit"
)

// Pages show the fields of a rule as limit.Fields defines them. Only fields that need a control or
// a text of their own are named here.

// labelOf returns the label of a rule's field, or of the part of one that the form has.
func labelOf(name string) string {
	if f := limit.FieldNamed(name); f != nil {
		return f.Label
	}
	if name == attributesField {
		return "Attributes"
	}
	return name
}

// attributesField is the part of the field by that the form has as a text.
const attributesField = "attributes"

// ruleInput is the input of a field, with its label, its hint and its error.
func ruleInput(f *form, name string, attrs templ.Attributes) field {
	x := field{Form: f, Name: name, Label: labelOf(name), Attrs: attrs}
	if known := limit.FieldNamed(name); known != nil {
		x.Hint = nameOr(formHints[name], known.Hint)
		if most, bounded := known.Schema["maxLength"]; bounded {
			attrs["maxlength"] = fmt.Sprint(most)
		}
	}
	return x
}

// formHints are about what only the form does.
var formHints = map[string]string{"precision": "Default: window ÷ " + itoa(mostSteps) + "."}

// placedFields have a place of their own in the form of a rule. Others are under "Advanced".
var placedFields = []string{
	"slug", "name", "resource", "limit", "window", "zone", "anchor", "by", "algorithm", "burst", "precision", "mode", "description",
}

// unplacedFields are the other fields: those with one line first.
func unplacedFields() (lines, explained []*limit.Field) {
	for i := range limit.Fields {
		f := &limit.Fields[i]
		switch {
		case slices.Contains(placedFields, f.Name):
		case isExplained(f):
			explained = append(explained, f)
		default:
			lines = append(lines, f)
		}
	}
	return lines, explained
}

// isExplained reports whether each choice of a field has a text, so that a list cannot show them.
func isExplained(f *limit.Field) bool { return len(f.Choices) > 0 && f.Choices[0].Text != "" }

// choicesOf returns the choices of a field as options of a list.
func choicesOf(name string) []option {
	var out []option
	for _, c := range limit.FieldNamed(name).Choices {
		out = append(out, option{c.Value, c.Label})
	}
	return out
}

// formFields are the inputs of the form that show what is wrong with them.
func formFields() []string {
	out := []string{attributesField}
	for i := range limit.Fields {
		if name := limit.Fields[i].Name; name != "by" {
			out = append(out, name)
		}
	}
	return out
}

// defaultUnits are the units of time that the form suggests.
var defaultUnits = map[string]string{"precision": "s", "lease": "ms"}

// ruleValues returns the values of the form's inputs for a rule.
func ruleValues(r *limit.Rule) map[string]string {
	values := map[string]string{}
	for i := range limit.Fields {
		f := &limit.Fields[i]
		text := plainText(f.Get(r))
		switch f.Kind() {
		case limit.ListKind:
		case limit.WindowKind, limit.DurationKind:
			values[f.Name], values[f.Name+"_unit"] = splitDuration(text, nameOr(defaultUnits[f.Name], "m"))
		case limit.ChoiceKind: // a rule that does not use the field has none
			values[f.Name] = nameOr(text, f.Choices[0].Value)
		default:
			values[f.Name] = text
		}
	}
	for _, by := range r.By {
		if _, isAttribute := limit.AttributeOf(by); !isAttribute {
			values["by_"+by] = "on"
		}
	}
	values[attributesField] = strings.Join(r.Attributes(), ", ")
	return values
}

// plainText returns a value in the form in which a user types it; a value that is not set is empty.
func plainText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []string:
		return strings.Join(v, ", ")
	}
	return ""
}

// splitDuration returns the number and the unit of a duration or a calendar unit. unit is the unit
// of an empty duration.
func splitDuration(text, unit string) (number, unitOf string) {
	if _, err := limit.ParseCalendar(text); err == nil {
		return "1", text
	}
	digits := strings.TrimRight(text, "msdh")
	if digits == "" {
		return "", unit
	}
	return digits, text[len(digits):]
}

// ruleOf reads a rule from its form. before is the rule as it was: an input that the form does not
// have changes nothing. What is wrong is recorded in the form.
func ruleOf(f *form, before limit.Rule) limit.Rule {
	r := before
	for i := range limit.Fields {
		field := &limit.Fields[i]
		switch {
		case field.Kind() == limit.ListKind:
			r.By = byOf(f, before.By)
		case field.Fixed && before.Slug != "":
		case !field.Applies(&r):
			field.Reset(&r)
		case f.values.Has(field.Name):
			readField(f, field, &r)
		}
	}
	if r.Algorithm == limit.SlidingWindowBuckets && f.Get("precision") == "" && f.Error("window") == "" {
		r.Precision = stepOf(r.Window.MS)
	}
	return r
}

// mostSteps is the largest number of parts of a window that the form chooses.
const mostSteps = 60

// stepOf returns the precision of a window for which the form has none: the window in as many equal
// parts as possible, at most mostSteps.
func stepOf(windowMS int64) limit.Duration {
	for parts := int64(mostSteps); parts > 0; parts-- {
		if windowMS%parts != 0 {
			continue
		}
		step := windowMS / parts
		for _, unit := range []string{"d", "h", "m", "s", "ms"} {
			one, err := limit.ParseDuration("1" + unit)
			if err == nil && one.MS > 0 && step%one.MS == 0 {
				d, _ := limit.ParseDuration(itoa(step/one.MS) + unit)
				return d
			}
		}
	}
	return limit.Duration{}
}

// readField reads one field from its input.
func readField(f *form, field *limit.Field, r *limit.Rule) {
	text := f.Get(field.Name)
	switch field.Kind() {
	case limit.WindowKind:
		r.Window = windowOf(f, r.Algorithm)
	case limit.TextKind:
		// A browser sends line breaks as two characters.
		setField(f, field, r, strings.ReplaceAll(text, "\r\n", "\n"))
		if field.Name == "resource" && text == "" {
			field.Reset(r)
		}
	case limit.ChoiceKind:
		setField(f, field, r, text)
	case limit.NumberKind:
		readNumber(f, field, r)
	case limit.PortionKind:
		if share := f.share(field.Name); share != nil {
			setField(f, field, r, *share)
		} else {
			field.Reset(r)
		}
	case limit.DurationKind:
		field.Reset(r)
		if d := durationOf(f, field.Name); d.MS != 0 {
			setField(f, field, r, d.Text)
		}
	}
}

// readNumber reads a number. 0 cannot be sent, because it is how a rule stores that it is not set.
func readNumber(f *form, field *limit.Field, r *limit.Rule) {
	if f.Get(field.Name) == "" && !field.Required {
		field.Reset(r)
		return
	}
	n := f.integer(field.Name)
	if most, bounded := field.Schema["maximum"].(int64); bounded && n < 1 && !field.Required {
		f.wrong(field.Name, limit.MustBe("a whole number from 1 to %s", grouped(most)))
	}
	setField(f, field, r, n)
}

func setField(f *form, field *limit.Field, r *limit.Rule, v any) {
	if err := field.Set(r, v); err != nil {
		f.wrong(field.Name, limit.ProblemOf(err))
	}
}

// ruleFacts are the fields that the page of a rule lists.
func ruleFacts(r *limit.Rule) (out []fact) {
	for i := range limit.Fields {
		f := &limit.Fields[i]
		value := f.Get(r)
		shown := fact{Name: f.Label, Value: plainText(value), Mono: true}
		switch v := value.(type) {
		case int64:
			shown.Value, shown.Mono = grouped(v), false
		case float64:
			shown.Mono = false
		case []string:
			if len(v) == 0 {
				shown.Value, shown.Mono = "one counter for the tenant", false
			}
		}
		for _, c := range f.Choices {
			if c.Value == shown.Value {
				shown.Value, shown.Mono = c.Label, false
			}
		}
		switch f.Name {
		case "algorithm":
			shown.Value, shown.Mono = algorithmTitle(r.Algorithm.String()), false
		case "window":
			shown.Value, shown.Mono = exactly(r.Window.MS, true), false
			if r.Window.Calendar != limit.NoCalendar {
				shown.Value = "Calendar " + r.Window.Calendar.String()
			}
		}
		if f.Name == "burst" && f.Applies(r) { // by default, it is the limit
			shown.Value, shown.Mono = grouped(r.Numbers().Burst), false
			shown.Name = burstLabel(r.Algorithm)
		}
		if shown.Value != "" && f.Name != "name" && f.Name != "description" {
			out = append(out, shown)
		}
	}
	return out
}

// burstLabel returns the label of the burst: of a queue it is the capacity, as in the rule editor.
func burstLabel(a limit.Algorithm) string {
	if a == limit.LeakyBucketQueue {
		return "Queue"
	}
	return labelOf("burst")
}

// ruleFields writes a rule as the audit trail does, without empty fields.
func ruleFields(r *limit.Rule) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	for i := range limit.Fields {
		f := &limit.Fields[i]
		if v := f.Get(r); v != nil && v != "" {
			fields[f.Name], _ = json.Marshal(v) // texts and numbers
		}
	}
	return fields
}

// ruleFromFields reads a rule from the audit trail. The trail has no empty fields, and no fields
// that rules did not have yet.
func ruleFromFields(fields map[string]json.RawMessage) (r limit.Rule, err error) {
	var errs []error
	for i := range limit.Fields {
		f := &limit.Fields[i]
		if raw := fields[f.Name]; len(raw) > 0 && string(raw) != "null" {
			if err := f.SetJSON(&r, raw); err != nil {
				errs = append(errs, fmt.Errorf("%s %w", f.Name, err))
			}
		}
	}
	if r.Algorithm.String() == "" {
		errs = append(errs, errors.New("the rule is unknown"))
	}
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("read a rule from the audit trail: %w", err)
	}
	return r, nil
}
