package api

import (
	"bytes"
	"encoding/json"
	"maps"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
)

// Bodies and answers have the fields of a rule as defined in limit.Fields, which also reads, writes
// and describes them.

// ruleBody has the fields of a rule in a body, each in JSON.
type ruleBody struct{ fields map[string]json.RawMessage }

// UnmarshalJSON reads a body that has passed validation.
func (b *ruleBody) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &b.fields) }

// given reports whether the body has a field.
func (b *ruleBody) given(name string) bool { return b.fields[name] != nil }

// slug returns the slug of the body, or "" if it has none.
func (b *ruleBody) slug() (slug string) {
	_ = json.Unmarshal(b.fields["slug"], &slug) // no slug, or a string
	return slug
}

// newRule returns the rule that the body of a POST or PUT describes.
func (b *ruleBody) newRule(slug string) (limit.Rule, []ProblemField) {
	r := limit.NewRule(slug)
	return r, b.apply(&r)
}

// apply sets the fields of the body in r. A field that is null gets its default.
func (b *ruleBody) apply(r *limit.Rule) (errs []ProblemField) {
	for i := range limit.Fields {
		f := &limit.Fields[i]
		if f.Fixed || !b.given(f.Name) {
			continue
		}
		if f.Required && string(b.fields[f.Name]) == "null" {
			errs = append(errs, wrongField("/"+f.Name, notNull))
		} else if err := f.SetJSON(r, b.fields[f.Name]); err != nil {
			errs = append(errs, wrongField("/"+f.Name, limit.ProblemOf(err)))
		}
	}
	return errs
}

// sameSlug refuses a body that names another rule than its path.
func (b *ruleBody) sameSlug(path string) []ProblemField {
	slug := Optional[string]{Set: b.given("slug"), Value: b.slug()}
	return mismatch(slug, "/slug", path)
}

// addFields adds the fields of a rule to an answer.
func addFields(o *jsonObject, r *limit.Rule) {
	for i := range limit.Fields {
		o.add(limit.Fields[i].Name, limit.Fields[i].Get(r))
	}
}

// describeRule adds the fields of a rule to the schema of a body. slugDoc, if not empty, describes
// the slug; required are the required fields.
func describeRule(s *huma.Schema, slugDoc string, required ...string) *huma.Schema {
	for i := range limit.Fields {
		f := &limit.Fields[i]
		schema := fieldSchema(f)
		schema.Description = f.Sent
		schema.Nullable = !f.Required && !f.Fixed
		if f.Fixed && slugDoc != "" {
			schema.Description = slugDoc
		}
		s.Properties[f.Name] = schema
	}
	s.Required = required
	return s
}

// describeShownRule adds the fields of a rule to the schema of an answer, which always has all
// fields.
func describeShownRule(s *huma.Schema) *huma.Schema {
	empty := limit.Rule{}
	for i := range limit.Fields {
		f := &limit.Fields[i]
		schema := fieldSchema(f)
		schema.Description = f.Shown
		schema.Nullable = !f.Required && f.Get(&empty) == nil
		s.Properties[f.Name] = schema
		s.Required = append(s.Required, f.Name)
	}
	return s
}

// fieldSchema returns the type of a field and its choices. describeBounds adds the range.
func fieldSchema(f *limit.Field) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	switch f.Kind() {
	case limit.NumberKind:
		s.Type, s.Format = huma.TypeInteger, "int64"
	case limit.PortionKind:
		s.Type, s.Format = huma.TypeNumber, "double"
	case limit.ListKind:
		s.Type, s.Items = huma.TypeArray, &huma.Schema{Type: huma.TypeString}
	case limit.ChoiceKind:
		for _, c := range f.Choices {
			s.Enum = append(s.Enum, c.Value)
		}
	}
	return s
}

// ruleBounds returns the ranges of all fields, with slug instead of that of the slug.
func ruleBounds(slug keywords) map[string]keywords {
	out := map[string]keywords{}
	for i := range limit.Fields {
		out[limit.Fields[i].Name] = maps.Clone(limit.Fields[i].Schema)
	}
	if slug != nil {
		out["slug"] = slug
	}
	return out
}

// jsonObject is a JSON object with ordered members.
type jsonObject struct{ buf bytes.Buffer }

func (o *jsonObject) add(name string, value any) {
	encoded, err := encodeJSON(value)
	if err != nil { // only names, numbers and times
		panic("api: encode " + name + ": " + err.Error())
	}
	if o.buf.Len() > 0 {
		o.buf.WriteByte(',')
	}
	o.buf.WriteString(`"` + name + `":`)
	o.buf.Write(bytes.TrimSuffix(encoded, []byte("\n")))
}

// bytes returns the object as JSON.
func (o *jsonObject) bytes() []byte { return append(append([]byte{'{'}, o.buf.Bytes()...), '}') }
