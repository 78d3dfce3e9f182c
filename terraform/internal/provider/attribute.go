package provider

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// A form is the type of an attribute.
type form int

const (
	textForm form = iota
	integerForm
	decimalForm
	booleanForm
	listForm    // of texts
	setForm     // of texts
	textMapForm // of texts
	objectForm
	objectListForm
	objectMapForm
)

// An attribute is one attribute of a resource or a data source. Values of attributes are those of
// encoding/json: nil, string, bool, json.Number, []any and map[string]any, and unknown.
type attribute struct {
	name, doc string
	form      form
	fields    []*attribute // of objects
	required  bool
	// optional attributes may be configured, computed ones get values from the server. An attribute
	// can be both.
	optional, computed bool

	// How to plan an attribute that is not configured: with fallback, or what the server says.
	hasFallback bool
	fallback    any
	// unstable: the server may change the value with each write of the object.
	unstable bool

	immutable bool // a change replaces the object
	sensitive bool
	writeOnly bool // only in the configuration
	inPath    bool // identifies the object, and is not part of its body
	once      bool // only in the answer that creates the object
	opaque    bool // the server stores it in another form
	foldCase  bool // the server stores it in lower case
	unmanaged bool // ignored unless configured
	emptyNull bool // an object whose fields are all null is the same as null
	instant   bool // a time in RFC 3339: equal times are equal values

	choices          []any
	minimum, maximum *float64
}

// unknown is a value that is not known yet.
type unknown struct{}

// plainDocs describe fields whose names say enough for the API.
var plainDocs = map[string]string{
	"created_at": "When it was created, RFC 3339", "updated_at": "When it was changed last, RFC 3339", "published_at": "When it was published, RFC 3339",
	"created_by": "Who created it", "description": "For people", "email": "Address of the person", "id": "Id of the object", "labels": "Labels by name",
	"match": "The requests that it matches", "name": "For people", "next_plan_at": "When the subject gets the next plan, RFC 3339", "number": "Number of the version",
	"provider": "The billing system", "reason": "For people", "role": "Role of the member", "slug": "Name in the API", "state": "State of the object", "subject": "The subject",
	"url": "The address", "version": "Increases with each change", "last_event_at": "When the newest event arrived, RFC 3339; null: never", "revoked_at": "When it was revoked, RFC 3339; null: it is in force",
}

// newAttribute derives an attribute from the schemas of a body and of an answer. One of them may be
// nil.
func newAttribute(all apiSchemas, name string, input, answer *apiSchema) *attribute {
	a := &attribute{name: name, optional: input != nil, computed: answer != nil}
	doc := func(s *apiSchema) string {
		if s == nil {
			return ""
		}
		return s.Description
	}
	if a.doc = doc(input); a.doc == "" {
		a.doc = doc(answer)
	}
	in, out := all.resolve(input), all.resolve(answer)
	if a.doc == "" {
		a.doc = plainDocs[name]
	}
	s := in
	if s == nil {
		s = out
	}
	for _, value := range s.Enum {
		if value != nil {
			a.choices = append(a.choices, value)
		}
	}
	a.minimum, a.maximum = s.Minimum, s.Maximum
	a.instant = s.Format == "date-time"
	items := all.resolve(s.Items)
	values := all.resolve(s.additional())
	switch {
	case s.is("integer"):
		a.form = integerForm
	case s.is("number"):
		a.form = decimalForm
	case s.is("boolean"):
		a.form = booleanForm
	case s.is("array") && items.Properties != nil:
		a.form = objectListForm
		a.fields = newFields(all, items, itemsOf(all, out))
	case s.is("array"):
		a.form = listForm
		for _, value := range items.Enum {
			a.choices = append(a.choices, value)
		}
	case s.Properties != nil:
		a.form = objectForm
		a.fields = newFields(all, s, out)
	case values != nil && values.Properties != nil:
		a.form = objectMapForm
		var shown *apiSchema
		if out != nil {
			shown = all.resolve(out.additional())
		}
		a.fields = newFields(all, values, shown)
	case values != nil:
		a.form = textMapForm
	}
	return a
}

func itemsOf(all apiSchemas, s *apiSchema) *apiSchema {
	if s == nil {
		return nil
	}
	return all.resolve(s.Items)
}

// newFields derives the attributes of nested objects. Without a schema of the body (a data source),
// input and answer are the same.
func newFields(all apiSchemas, input, answer *apiSchema) []*attribute {
	var fields []*attribute
	for _, name := range slices.Sorted(maps.Keys(input.Properties)) {
		if name == "warnings" { // only in answers to writes
			continue
		}
		var shown *apiSchema
		if answer != nil {
			shown = answer.Properties[name]
		}
		f := newAttribute(all, name, input.Properties[name], shown)
		f.computed, f.hasFallback = false, true // except where the kind says otherwise
		f.required = slices.Contains(input.Required, name)
		f.optional = !f.required
		fields = append(fields, f)
	}
	return fields
}

func (a *attribute) field(name string) *attribute { return attributeNamed(a.fields, name) }

func attributeNamed(list []*attribute, name string) *attribute {
	for _, a := range list {
		if a.name == name {
			return a
		}
	}
	return nil
}

// kindName is the type in the reference.
func (a *attribute) kindName() string {
	return [...]string{"String", "Number", "Number", "Boolean", "List of String", "Set of String", "Map of String", "Object", "List of Object", "Map of Object"}[a.form]
}

// tfType returns the type of the attribute's values.
func (a *attribute) tfType() tftypes.Type {
	switch a.form {
	case integerForm, decimalForm:
		return tftypes.Number
	case booleanForm:
		return tftypes.Bool
	case listForm:
		return tftypes.List{ElementType: tftypes.String}
	case setForm:
		return tftypes.Set{ElementType: tftypes.String}
	case textMapForm:
		return tftypes.Map{ElementType: tftypes.String}
	case objectForm:
		return objectType(a.fields)
	case objectListForm:
		return tftypes.List{ElementType: objectType(a.fields)}
	case objectMapForm:
		return tftypes.Map{ElementType: objectType(a.fields)}
	}
	return tftypes.String
}

func objectType(list []*attribute) tftypes.Object {
	types := map[string]tftypes.Type{}
	for _, a := range list {
		types[a.name] = a.tfType()
	}
	return tftypes.Object{AttributeTypes: types}
}

// tfObject returns an object with these values. Missing ones are null.
func tfObject(list []*attribute, values map[string]any) (tftypes.Value, error) {
	out := map[string]tftypes.Value{}
	for _, a := range list {
		v, err := a.tfValue(values[a.name])
		if err != nil {
			return tftypes.Value{}, fmt.Errorf("%s: %w", a.name, err)
		}
		out[a.name] = v
	}
	return tftypes.NewValue(objectType(list), out), nil
}

// tfValue converts a value for Terraform.
func (a *attribute) tfValue(x any) (tftypes.Value, error) {
	t := a.tfType()
	switch x.(type) {
	case nil:
		return tftypes.NewValue(t, nil), nil
	case unknown:
		return tftypes.NewValue(t, tftypes.UnknownValue), nil
	}
	converted, err := a.tfContent(x)
	if err != nil {
		return tftypes.Value{}, err
	}
	if value, isValue := converted.(tftypes.Value); isValue {
		return value, nil
	}
	if err := tftypes.ValidateValue(t, converted); err != nil {
		return tftypes.Value{}, err
	}
	return tftypes.NewValue(t, converted), nil
}

func (a *attribute) tfContent(x any) (any, error) {
	switch a.form {
	case integerForm, decimalForm:
		text, _ := x.(json.Number)
		n, _, err := big.ParseFloat(text.String(), 10, 512, big.ToNearestEven) // as Terraform parses numbers
		return n, err
	case listForm, setForm:
		return tfTexts(x)
	case textMapForm:
		entries, _ := x.(map[string]any)
		out := map[string]tftypes.Value{}
		for name, value := range entries {
			v, err := (&attribute{}).tfValue(value)
			if err != nil {
				return nil, err
			}
			out[name] = v
		}
		return out, nil
	case objectForm:
		object, _ := x.(map[string]any)
		return tfObject(a.fields, object)
	case objectListForm:
		items, _ := x.([]any)
		out := make([]tftypes.Value, len(items))
		for i, item := range items {
			object, _ := item.(map[string]any)
			v, err := tfObject(a.fields, object)
			if err != nil {
				return nil, err
			}
			out[i] = v
		}
		return out, nil
	case objectMapForm:
		entries, _ := x.(map[string]any)
		out := map[string]tftypes.Value{}
		for name, entry := range entries {
			object, _ := entry.(map[string]any)
			v, err := tfObject(a.fields, object)
			if err != nil {
				return nil, err
			}
			out[name] = v
		}
		return out, nil
	}
	return x, nil
}

func tfTexts(x any) (any, error) {
	items, _ := x.([]any)
	out := make([]tftypes.Value, len(items))
	for i, item := range items {
		v, err := (&attribute{}).tfValue(item)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// values converts an object of Terraform.
func values(v tftypes.Value) (map[string]any, error) {
	if v.IsNull() || !v.IsKnown() {
		return map[string]any{}, nil
	}
	x, err := plainValue(v)
	object, _ := x.(map[string]any)
	return object, err
}

func plainValue(v tftypes.Value) (any, error) {
	if !v.IsKnown() {
		return unknown{}, nil
	}
	if v.IsNull() {
		return nil, nil
	}
	t := v.Type()
	switch {
	case t.Is(tftypes.String):
		var s string
		err := v.As(&s)
		return s, err
	case t.Is(tftypes.Bool):
		var b bool
		err := v.As(&b)
		return b, err
	case t.Is(tftypes.Number):
		n := new(big.Float)
		err := v.As(&n)
		return json.Number(n.Text('f', -1)), err
	case t.Is(tftypes.Object{}), t.Is(tftypes.Map{}):
		var members map[string]tftypes.Value
		if err := v.As(&members); err != nil {
			return nil, err
		}
		out := map[string]any{}
		for name, member := range members {
			x, err := plainValue(member)
			if err != nil {
				return nil, err
			}
			out[name] = x
		}
		return out, nil
	}
	var members []tftypes.Value
	if err := v.As(&members); err != nil {
		return nil, err
	}
	out := make([]any, len(members))
	for i, member := range members {
		x, err := plainValue(member)
		if err != nil {
			return nil, err
		}
		out[i] = x
	}
	return out, nil
}

// isKnown reports whether a value is known completely.
func isKnown(x any) bool {
	switch x := x.(type) {
	case unknown:
		return false
	case []any:
		for _, item := range x {
			if !isKnown(item) {
				return false
			}
		}
	case map[string]any:
		for _, member := range x {
			if !isKnown(member) {
				return false
			}
		}
	}
	return true
}

// same reports whether two values of the attribute mean the same.
func (a *attribute) same(x, y any) bool {
	switch {
	case a.emptyNull && allNil(x) && allNil(y):
		return true
	case x == nil || y == nil:
		return x == nil && y == nil
	}
	switch a.form {
	case integerForm, decimalForm:
		return sameNumber(x, y)
	case setForm:
		return reflect.DeepEqual(sorted(x), sorted(y))
	case objectForm:
		return sameObject(a.fields, x, y)
	case objectListForm:
		xs, _ := x.([]any)
		ys, _ := y.([]any)
		return slices.EqualFunc(xs, ys, func(x, y any) bool { return sameObject(a.fields, x, y) })
	case objectMapForm:
		xs, _ := x.(map[string]any)
		ys, _ := y.(map[string]any)
		return maps.EqualFunc(xs, ys, func(x, y any) bool { return sameObject(a.fields, x, y) })
	case textForm:
		xs, _ := x.(string)
		ys, _ := y.(string)
		return xs == ys || a.instant && sameInstant(xs, ys) || a.foldCase && strings.EqualFold(xs, ys)
	}
	return reflect.DeepEqual(x, y)
}

func sameObject(fields []*attribute, x, y any) bool {
	xs, _ := x.(map[string]any)
	ys, _ := y.(map[string]any)
	for _, f := range fields {
		if !f.same(xs[f.name], ys[f.name]) {
			return false
		}
	}
	return true
}

func sameNumber(x, y any) bool {
	xs, _ := x.(json.Number)
	ys, _ := y.(json.Number)
	xn, _, errX := big.ParseFloat(xs.String(), 10, 512, big.ToNearestEven)
	yn, _, errY := big.ParseFloat(ys.String(), 10, 512, big.ToNearestEven)
	return errX == nil && errY == nil && xn.Cmp(yn) == 0
}

func sameInstant(x, y string) bool {
	xt, errX := time.Parse(time.RFC3339Nano, x)
	yt, errY := time.Parse(time.RFC3339Nano, y)
	return errX == nil && errY == nil && xt.Equal(yt)
}

func sorted(x any) []string {
	items, _ := x.([]any)
	out := make([]string, len(items))
	for i, item := range items {
		out[i], _ = item.(string)
	}
	slices.Sort(out)
	return out
}

// allNil reports whether x is null, or an object with only null fields.
func allNil(x any) bool {
	object, isObject := x.(map[string]any)
	for _, member := range object {
		if member != nil {
			return false
		}
	}
	return isObject || x == nil
}

// planned returns the value to plan for a value of the configuration: with defaults in objects.
func (a *attribute) planned(configured any) any {
	fill := func(x any) any {
		object, isObject := x.(map[string]any)
		if !isObject {
			return x
		}
		out := maps.Clone(object)
		for _, f := range a.fields {
			if out[f.name] == nil {
				out[f.name] = f.fallback
			} else {
				out[f.name] = f.planned(out[f.name])
			}
		}
		return out
	}
	switch x := configured.(type) {
	case []any:
		if a.form != objectListForm {
			return x
		}
		out := make([]any, len(x))
		for i := range x {
			out[i] = fill(x[i])
		}
		return out
	case map[string]any:
		switch a.form {
		case objectForm:
			return fill(x)
		case objectMapForm:
			out := map[string]any{}
			for name := range x {
				out[name] = fill(x[name])
			}
			return out
		}
	}
	return configured
}

// stored returns the value for the state: that of an answer, in the notation of the plan or of the
// state before if it means the same.
func (a *attribute) stored(answer, before any) any {
	if a.emptyNull && allNil(answer) && before == nil {
		return nil
	}
	if isKnown(before) && a.same(answer, before) {
		return before
	}
	return answer
}
