package api

import (
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
)

// Every entry of errors has a fix. The code that finds the problem also states the fix:
// limit.Problem has both. Problems of several handlers are here.
var (
	notRFC3339    = limit.Wrong("Write it with date, time and zone, such as 2026-01-31T12:00:00Z.", "must be a time such as 2026-01-31T12:00:00Z (RFC 3339)")
	notBoolean    = limit.Wrong("Write true or false, without quotes.", "must be true or false")
	notInteger    = limit.MustBe("a whole number")
	notObject     = limit.Wrong("Write it in braces: {...}.", "must be an object")
	notTags       = limit.Wrong("Send the ETag of an earlier answer unchanged.", `must be * or a list of at most %d entity tags such as "v7"`, maxTags)
	notNull       = limit.Wrong("Send a value, or omit it.", "is required and cannot be null")
	isEmpty       = limit.Wrong("Give it a value, or omit it.", "must not be empty")
	isRepeated    = limit.Wrong("Send it once.", "may appear only once")
	isRequired    = limit.Wrong("Send it.", "is required")
	unknownField  = limit.Wrong("Omit it, or correct its name: /openapi.json lists the known ones.", "is not known here")
	isSetByUs     = limit.Wrong("Omit it: the service sets it.", "is read-only")
	isReadOnly    = limit.Wrong("Omit it: it is read-only.", "is read-only")
	notThePath    = limit.Wrong("Omit it, or send the request to the path of that name.", "must be the same as in the path; it cannot be changed")
	noSuchRule    = limit.Wrong("Create the rule first, or use one that GET /v1/rules lists.", "is not a rule of the tenant")
	notSlugOrNull = limit.Wrong("Use the slug of a plan, or null for none.", "must be the slug of a plan, or null")
)

// wrongField returns the entry for a field.
func wrongField(pointer string, p *limit.Problem) ProblemField {
	return ProblemField{Pointer: pointer, Message: p.Message, Fix: p.Fix}
}

// fixName returns the fix for an unknown name.
func fixName(name string, known []string) string {
	if len(known) == 0 {
		return "Omit it: nothing is known here."
	}
	slices.Sort(known)
	nearest, least := "", 3 // edits
	for _, k := range known {
		if d := edits(name, k); d < least {
			nearest, least = k, d
		}
	}
	if nearest != "" {
		return "Did you mean " + nearest + "? Otherwise omit it."
	}
	return "Omit it, or use one of " + strings.Join(known, ", ") + "."
}

// edits returns the number of letters to change, add or remove between a and b, or a large number
// if their lengths differ too much.
func edits(a, b string) int {
	const many = 100
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return many
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// fixUnknown adds fixes for unknown fields of a body: the similar fields that exist in the same
// place.
func fixUnknown(registry huma.Registry, op *huma.Operation, fields []ProblemField) []ProblemField {
	if op == nil || op.RequestBody == nil || op.RequestBody.Content[jsonType] == nil || op.RequestBody.Content[jsonType].Schema == nil {
		return fields
	}
	out := slices.Clone(fields)
	for i, f := range out {
		if !f.unknown || !strings.HasPrefix(f.Pointer, "/") {
			continue
		}
		parts := strings.Split(f.Pointer[1:], "/")
		above := schemaAt(registry, op.RequestBody.Content[jsonType].Schema, parts[:len(parts)-1])
		if above == nil {
			continue
		}
		known := make([]string, 0, len(above.Properties))
		for name := range above.Properties {
			known = append(known, name)
		}
		out[i].Fix = fixName(parts[len(parts)-1], known)
	}
	return out
}

// schemaAt returns the schema at the parts of a pointer, or nil.
func schemaAt(registry huma.Registry, s *huma.Schema, parts []string) *huma.Schema {
	for i := 0; ; i++ {
		if s != nil && s.Ref != "" {
			s = registry.SchemaFromRef(s.Ref)
		}
		if s == nil || i == len(parts) {
			return s
		}
		more, _ := s.AdditionalProperties.(*huma.Schema)
		switch _, err := strconv.Atoi(parts[i]); {
		case s.Items != nil && err == nil:
			s = s.Items
		case s.Properties[parts[i]] != nil:
			s = s.Properties[parts[i]]
		default:
			s = more
		}
	}
}
