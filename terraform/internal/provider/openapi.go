package provider

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// schemas.json has the schemas of the OpenAPI document from which the attributes of resources and
// data sources are derived: their types, ranges and descriptions. A test compares it with the
// document of the server.
//
//go:embed schemas.json
var schemasFile []byte

// An apiSchema is a JSON schema, as far as the API uses them.
type apiSchema struct {
	Type                 any                   `json:"type,omitempty"`
	Ref                  string                `json:"$ref,omitempty"`
	Description          string                `json:"description,omitempty"`
	Format               string                `json:"format,omitempty"`
	Properties           map[string]*apiSchema `json:"properties,omitempty"`
	Required             []string              `json:"required,omitempty"`
	Items                *apiSchema            `json:"items,omitempty"`
	AdditionalProperties any                   `json:"additionalProperties,omitempty"`
	Enum                 []any                 `json:"enum,omitempty"`
	Minimum              *float64              `json:"minimum,omitempty"`
	Maximum              *float64              `json:"maximum,omitempty"`
}

type apiSchemas map[string]*apiSchema

const refPrefix = "#/components/schemas/"

func readSchemas(content []byte) (apiSchemas, error) {
	var s apiSchemas
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	return s, nil
}

// ExtractSchemas returns the content of schemas.json for an OpenAPI document.
func ExtractSchemas(document []byte) ([]byte, error) {
	var d struct {
		Components struct {
			Schemas apiSchemas `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, err
	}
	out := apiSchemas{}
	var add func(name string) error
	var walk func(s *apiSchema) error
	add = func(name string) error {
		if name == "" || out[name] != nil {
			return nil
		}
		s := d.Components.Schemas[name]
		if s == nil {
			return fmt.Errorf("the OpenAPI document has no schema %s", name)
		}
		out[name] = s
		return walk(s)
	}
	walk = func(s *apiSchema) error {
		if s == nil {
			return nil
		}
		if s.Ref != "" {
			return add(strings.TrimPrefix(s.Ref, refPrefix))
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if err := walk(s.Properties[name]); err != nil {
				return err
			}
		}
		if err := walk(s.Items); err != nil {
			return err
		}
		return walk(s.additional())
	}
	for _, k := range kinds {
		for _, name := range []string{k.input, k.answer, k.shown} {
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	encoded, err := json.MarshalIndent(out, "", "  ")
	return append(encoded, '\n'), err
}

// additional returns the schema of the values of a map, or nil.
func (s *apiSchema) additional() *apiSchema {
	values, isSchema := s.AdditionalProperties.(map[string]any)
	if !isSchema {
		return nil
	}
	encoded, err := json.Marshal(values)
	if err != nil { // it was JSON before
		panic(err)
	}
	var out apiSchema
	if err := json.Unmarshal(encoded, &out); err != nil {
		panic(err)
	}
	return &out
}

// is reports whether a value may have the type.
func (s *apiSchema) is(name string) bool {
	switch types := s.Type.(type) {
	case string:
		return types == name
	case []any:
		return slices.Contains(types, any(name))
	}
	return false
}

// resolve returns the schema that s refers to, or s.
func (all apiSchemas) resolve(s *apiSchema) *apiSchema {
	if s == nil || s.Ref == "" {
		return s
	}
	return all[strings.TrimPrefix(s.Ref, refPrefix)]
}
