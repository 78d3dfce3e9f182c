package api

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Optional is a field of a body that may be omitted or null. In a JSON merge patch, null resets the
// field to its default. Elsewhere null is the same as omitting it.
type Optional[T any] struct {
	Set   bool // the body has the field
	Null  bool // the field is null
	Value T
}

// UnmarshalJSON is called only for a field that the body has.
func (o *Optional[T]) UnmarshalJSON(data []byte) error {
	o.Set = true
	if string(data) == "null" {
		o.Null = true
		return nil
	}
	return json.Unmarshal(data, &o.Value)
}

// Schema returns the schema of T, or null.
func (o Optional[T]) Schema(r huma.Registry) *huma.Schema {
	s := r.Schema(reflect.TypeFor[T](), true, "")
	if s.Ref != "" { // a reference cannot be null, so the object is written inline
		s = r.SchemaFromRef(s.Ref)
	}
	nullable := *s
	nullable.Nullable = true
	return &nullable
}

// or returns the value, or def if the body has none.
func (o Optional[T]) or(def T) T {
	if !o.Set || o.Null {
		return def
	}
	return o.Value
}

// orNone returns a pointer to the value, or nil if the body has none.
func (o Optional[T]) orNone() *T {
	if !o.Set || o.Null {
		return nil
	}
	return &o.Value
}

// patch returns the new value: present if the body omits the field, cleared if the body has null.
func (o Optional[T]) patch(present, cleared T) T {
	if !o.Set {
		return present
	}
	return o.or(cleared)
}

// refuseNull records a 422 if the field is null and the object requires it.
func (o Optional[T]) refuseNull(errs *[]ProblemField, pointer string) {
	if o.Null {
		*errs = append(*errs, wrongField(pointer, notNull))
	}
}
