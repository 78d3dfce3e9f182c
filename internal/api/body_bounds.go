package api

import (
	"maps"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
)

// huma's validator collects an error for every invalid value, some 500 bytes each, also for the
// items of a list that is too long. A body of 4 MiB could take gigabytes. Therefore, larger
// documents are first validated in parts, until there are too many errors.
const (
	// smallDocument is the size of documents whose errors need no bound, in bytes.
	smallDocument = 4 << 10
	// maxFoundErrors is the number of errors after which the validation of a document ends. An
	// answer has the first maxProblemFields of them.
	maxFoundErrors = 10_000
	// partSize is the number of values that are validated at once.
	partSize = 1000
)

// boundErrors refuses a body that the validator must not see, because it would find too many
// errors. body has passed checkJSON.
func boundErrors(registry huma.Registry, op *huma.Operation, body []byte) *Problem {
	media := op.RequestBody.Content[jsonType]
	if len(body) <= smallDocument || media == nil || media.Schema == nil {
		return nil
	}
	var tree any
	if err := jsonFormat.Unmarshal(body, &tree); err != nil {
		return problemOf(err) // checkJSON accepted it
	}
	if errs := tooManyErrors(registry, media.Schema, tree); errs != nil {
		return manyInvalid(shownFields(errs, op))
	}
	return nil
}

// manyInvalid is invalid for fields of which some may be missing.
func manyInvalid(fields []ProblemField) *Problem {
	p := invalid(fields...)
	if len(fields) > maxFoundErrors {
		p.Detail = "More than " + itoa(maxFoundErrors) + " fields are not valid; errors names " + itoa(maxProblemFields) + " of them."
	}
	return p
}

// tooManyErrors returns the errors of a decoded document if it has very many, or if a list or map
// in a large part of it is too long. Otherwise it returns nil, and the validator finds at most
// maxFoundErrors and those of a few values more.
func tooManyErrors(registry huma.Registry, schema *huma.Schema, tree any) []error {
	v := partValidator{registry: registry, path: huma.NewPathBuffer(make([]byte, 0, 64), 0)}
	v.path.Push("body")
	v.value(schema, tree)
	if v.tooLong || v.full() {
		return v.found.Errors
	}
	return nil
}

// partValidator validates the parts of a document, with the schemas and messages of the validator.
// It leaves out errors of the large parts themselves, such as missing members, because there are
// few large parts.
type partValidator struct {
	registry huma.Registry
	path     *huma.PathBuffer
	found    huma.ValidateResult
	tooLong  bool
}

func (v *partValidator) full() bool { return len(v.found.Errors) > maxFoundErrors }

func (v *partValidator) value(s *huma.Schema, value any) {
	for s.Ref != "" {
		s = v.registry.SchemaFromRef(s.Ref)
	}
	left := partSize
	combined := s.OneOf != nil || s.AnyOf != nil || s.AllOf != nil || s.Not != nil
	switch large := value.(type) {
	case []any:
		if s.Type == huma.TypeArray && !combined && isLarge(value, &left) {
			v.list(s, large)
			return
		}
	case map[string]any:
		if s.Type == huma.TypeObject && !combined && isLarge(value, &left) {
			v.object(s, large)
			return
		}
	}
	huma.Validate(v.registry, s, v.path, huma.ModeWriteToServer, value, &v.found)
}

// isLarge reports whether a value has more than left values in it.
func isLarge(value any, left *int) bool {
	*left--
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			if *left < 0 || isLarge(item, left) {
				return true
			}
		}
	case map[string]any:
		for _, member := range value {
			if *left < 0 || isLarge(member, left) {
				return true
			}
		}
	}
	return *left < 0
}

func (v *partValidator) list(s *huma.Schema, list []any) {
	if v.exceeds(s.MaxItems, len(list), validation.MsgExpectedMaxItems) {
		return
	}
	for i := 0; i < len(list) && !v.full(); i++ {
		v.path.PushIndex(i)
		v.value(s.Items, list[i])
		v.path.Pop()
	}
}

func (v *partValidator) object(s *huma.Schema, members map[string]any) {
	if v.exceeds(s.MaxProperties, len(members), validation.MsgExpectedMaxProperties) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) { // in order, so that equal documents have equal errors
		if v.full() {
			return
		}
		v.path.Push(name)
		if field, known := s.Properties[name]; known {
			if members[name] != nil { // whether null is valid depends on the object
				v.value(field, members[name])
			}
		} else if others, ok := s.AdditionalProperties.(*huma.Schema); ok {
			v.value(others, members[name])
		} else if allowed, ok := s.AdditionalProperties.(bool); ok && !allowed {
			v.found.Add(v.path, members, validation.MsgUnexpectedProperty)
		}
		v.path.Pop()
	}
}

// exceeds notes that a list or map is too long. Its contents are not validated then.
func (v *partValidator) exceeds(most *int, length int, message string) bool {
	if most == nil || length <= *most {
		return false
	}
	v.tooLong = true
	v.found.Add(v.path, nil, huma.ErrorFormatter(message, *most))
	return true
}
