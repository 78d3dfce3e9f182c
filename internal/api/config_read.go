package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// configBody is a decoded document: its fields with valid types, and the errors of the others.
type configBody struct {
	document ConfigDocument
	wrong    []ProblemField
}

type configKey struct{}

// readConfig reads the body of PUT /v1/config. A document is long, and its author wants to see all
// errors at once. Values of the wrong type are therefore recorded and removed, and the rest is
// validated further.
func (a *admin) readConfig(r *http.Request, op *huma.Operation) (context.Context, []byte, *Problem) {
	body, p := readDocument(r, op)
	if p != nil {
		return nil, nil, p
	}
	var read configBody
	var tree any
	if err := jsonFormat.Unmarshal(body, &tree); err != nil {
		return nil, nil, problemOf(err) // checkJSON accepted it
	}
	read.wrong = validate(a.api.OpenAPI().Components.Schemas, op.RequestBody.Content[jsonType].Schema, tree)
	document, isObject := tree.(map[string]any)
	if !isObject || len(read.wrong) > maxFoundErrors {
		return nil, nil, manyInvalid(read.wrong)
	}
	if len(read.wrong) > 0 {
		for _, field := range read.wrong {
			takeOut(document, field.Pointer)
		}
		if body, p = remarshal(document); p != nil {
			return nil, nil, p
		}
	}
	if err := json.Unmarshal(body, &read.document); err != nil { // a value of the wrong type was not found by the validation
		if len(read.wrong) > 0 {
			return nil, nil, invalid(read.wrong...)
		}
		return nil, nil, problemOf(err)
	}
	return context.WithValue(r.Context(), configKey{}, &read), body, nil
}

func remarshal(tree any) ([]byte, *Problem) {
	body, err := json.Marshal(tree)
	if err != nil {
		return nil, problemOf(err)
	}
	return body, nil
}

// validate returns the parts of a decoded document that do not match the schema. If there are more
// than maxFoundErrors, the rest of the document is not validated.
func validate(registry huma.Registry, schema *huma.Schema, tree any) []ProblemField {
	if errs := tooManyErrors(registry, schema, tree); errs != nil {
		return validationFields(errs, nil)
	}
	path := huma.NewPathBuffer(make([]byte, 0, 64), 0)
	path.Push("body")
	var found huma.ValidateResult
	huma.Validate(registry, schema, path, huma.ModeWriteToServer, tree, &found)
	return validationFields(found.Errors, nil)
}

// takeOut removes the value at a pointer. An entry of a list of objects becomes an empty object, so
// that the others keep their indexes. Other lists are removed.
func takeOut(tree map[string]any, pointer string) {
	var holder any = tree
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, part := range parts {
		last := i == len(parts)-1
		switch above := holder.(type) {
		case map[string]any:
			part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
			_, isList := above[part].([]any)
			if last || isList && i > 0 && i == len(parts)-2 { // such as /rules/0/by/1
				delete(above, part)
				return
			}
			holder = above[part]
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(above) {
				return
			}
			if last {
				above[n] = map[string]any{}
				return
			}
			holder = above[n]
		default:
			return
		}
	}
}

// besides returns the errors of more that are not about the fields of errs or their contents.
func besides(errs, more []ProblemField) []ProblemField {
	named := make(map[string]bool, len(errs))
	for _, e := range errs {
		named[e.Pointer] = true
	}
	return slices.DeleteFunc(more, func(m ProblemField) bool {
		for at := m.Pointer; ; at = at[:strings.LastIndexByte(at, '/')] {
			if named[at] {
				return true
			}
			if at == "" || at[0] != '/' {
				return false
			}
		}
	})
}
