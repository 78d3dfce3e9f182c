package api

import (
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Optional is a field of a body that may be left out, and may be null: in a JSON merge patch null
// clears the field, which gives it its default again; elsewhere null is the same as leaving it out.
type Optional[T any] struct {
	Set   bool // the body has the field
	Null  bool // ... and it is null
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

// Schema is that of T, or null.
func (o Optional[T]) Schema(r huma.Registry) *huma.Schema {
	s := r.Schema(reflect.TypeFor[T](), true, "")
	if s.Ref != "" { // a reference cannot be null, so the object is spelled out
		s = r.SchemaFromRef(s.Ref)
	}
	nullable := *s
	nullable.Nullable = true
	return &nullable
}

// or returns the value, or def where the body has none.
func (o Optional[T]) or(def T) T {
	if !o.Set || o.Null {
		return def
	}
	return o.Value
}

// patch returns what becomes of the present value: itself where the body leaves the field out,
// cleared where the body has null.
func (o Optional[T]) patch(present, cleared T) T {
	if !o.Set {
		return present
	}
	return o.or(cleared)
}

// refuseNull records a 422 where the field is null and the object cannot be without it.
func (o Optional[T]) refuseNull(errs *[]ProblemField, pointer string) {
	if o.Null {
		*errs = append(*errs, wrongField(pointer, notNull))
	}
}
