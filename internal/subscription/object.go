package subscription

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"weir/internal/limit"
)

// InvalidFields are the invalid fields of an event that can be parsed otherwise.
type InvalidFields struct{ Fields limit.FieldErrors }

func (e *InvalidFields) Error() string {
	var texts []string
	for _, f := range e.Fields {
		texts = append(texts, f.Error())
	}
	return strings.Join(texts, "; ")
}

// object is a JSON object whose fields are read one by one.
type object struct {
	fields map[string]json.RawMessage
	read   []string // names of the fields that were asked for
	wrong  limit.FieldErrors
}

var errNoObject = errors.New("not one JSON object")

// readObject reads one object. Names are compared exactly, and may appear only once.
func readObject(body []byte) (*object, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errNoObject
	}
	o := &object{fields: map[string]json.RawMessage{}}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errNoObject
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errNoObject
		}
		if _, twice := o.fields[name]; twice && len(o.wrong) < maxWrong {
			o.wrong.Add(shortName(name), limit.Duplicate)
		}
		o.fields[name] = value
	}
	if t, err := d.Token(); err != nil || t != json.Delim('}') {
		return nil, errNoObject
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errNoObject
	}
	return o, nil
}

// maxWrong limits the errors about names, which the sender chooses.
const maxWrong = 20

// shortName returns a name for an error.
func shortName(name string) string {
	if len(name) > 64 {
		return name[:64]
	}
	return name
}

// value decodes a field, and reports whether the object has it and it is not null.
func (o *object) value(name string, to any, must *limit.Problem) bool {
	if !slices.Contains(o.read, name) {
		o.read = append(o.read, name)
	}
	raw, ok := o.fields[name]
	if !ok || string(raw) == "null" {
		return false
	}
	if err := json.Unmarshal(raw, to); err != nil {
		o.wrong.Add(name, must)
		return false
	}
	return true
}

// required adds an error if the object lacks a field.
func (o *object) required(name string) bool {
	var any json.RawMessage
	if !o.value(name, &any, nil) {
		o.wrong.Add(name, limit.Wrong("Add the field.", "is required"))
		return false
	}
	return true
}

// text returns a text of 1 to most bytes, or "" without one.
func (o *object) text(name string, most int) (out string) {
	must := limit.MustBe("a text of 1 to %d bytes", most)
	if o.value(name, &out, must) && (out == "" || len(out) > most) {
		o.wrong.Add(name, must)
		return ""
	}
	return out
}

// subject returns the name of a subject.
func (o *object) subject() (out string) {
	if !o.required("subject") {
		return ""
	}
	if o.value("subject", &out, limit.MustBe("a text")) {
		if p := limit.ValidName(out); p != nil {
			o.wrong.Add("subject", p)
		} else if out == "." || out == ".." {
			o.wrong.Add("subject", limit.Wrong("Use another name.", "must not be . or .., which a path cannot contain"))
		}
	}
	return out
}

// integer returns a whole number in a range, or nil without one.
func (o *object) integer(name string, least, most int64) *int64 {
	var out int64
	must := limit.MustBe("a whole number from %d to %d", least, most)
	if !o.value(name, &out, must) {
		return nil
	}
	if out < least || out > most {
		o.wrong.Add(name, must)
		return nil
	}
	return &out
}

// time returns a time in a range of seconds since 1970, or nil without one.
func (o *object) time(name string, least, most int64) *time.Time {
	var out time.Time
	must := limit.MustBe("a time from %s to %s in the form of RFC 3339", rfc3339(least), rfc3339(most))
	if !o.value(name, &out, must) {
		return nil
	}
	if out.Unix() < least || out.Unix() > most {
		o.wrong.Add(name, must)
		return nil
	}
	out = out.UTC()
	return &out
}

func rfc3339(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }

// refuseOthers adds an error for each field that was not asked for.
func (o *object) refuseOthers() {
	var names []string
	for name := range o.fields {
		if !slices.Contains(o.read, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	known := slices.Clone(o.read)
	slices.Sort(known)
	for _, name := range names[:min(len(names), maxWrong)] {
		o.wrong.Add(shortName(name), limit.Wrong("Remove it.", "is unknown; the fields of this event are %s", strings.Join(known, ", ")))
	}
}
