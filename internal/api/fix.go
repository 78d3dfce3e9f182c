package api

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Every entry of errors says how to mend what it points at. Where whoever finds the fault knows best, Fix is
// set there; all others get theirs here, from the message, when the entry is written.

// MarshalJSON writes the field with its fix.
func (f ProblemField) MarshalJSON() ([]byte, error) {
	if f.Fix == "" {
		f.Fix = fixOf(f)
	}
	type plain ProblemField
	body, err := encodeJSON(plain(f))
	return bytes.TrimSuffix(body, []byte("\n")), err
}

// fixes are what to do, by what a message says; the first that fits counts.
var fixes = []struct{ says, fix string }{
	{msgUnknownField, "Leave it out, or correct its name: /openapi.json lists what is taken."},
	{"known are ", "Take one of the known names, or leave it out."},
	{"is no column", "Take one of the known columns, or leave it out."},
	{msgReadOnly, "Leave it out."},
	{"names no plan", "Make the plan first, or take one that GET /v1/plans lists."},
	{"must be the slug of one of the tenant's plans", "Make the plan first, or take one that GET /v1/plans lists."},
	{"names no rule", "Make the rule first, or take one that GET /v1/rules lists."},
	{"is not a rule of the tenant", "Make the rule first, or take one that GET /v1/rules lists."},
	{"is there twice", "Keep one of the two."},
	{"is a duplicate", "Keep one of the two."},
	{"more than once", "Send it once."},
	{"same item twice", "Keep one of the two."},
	{"cannot be null", "Send a value, or leave it out."},
	{"or traffic in its place", "Send one of the two."},
	{"is required", "Send it."},
	{"same as in the path", "Leave it out of the body, or ask for the path that it names."},
	{"is fixed once", "Leave it out, or make another object under the new name."},
	{"is registered already", "Leave the line out, or import with mode=upsert."},
	{"would be one", "Delete one that is no longer needed."},
	{"match one check", "Delete a rule, turn one off, or narrow what its resource matches."},
	{"goes with format=json only", "Leave it out, or ask for format=json."},
	{"goes with subjects only", "Leave it out, or group by subject."},
	{"is only for", "Leave it out, or change the algorithm."},
	{"is not for the pattern", "Leave it out, or take a pattern that has it."},
	{"does not go with", "Leave one of the two out."},
	{"cannot be combined", "Leave one of the two out."},
	{"only by the operator", "Leave it out, or ask the operator of the service."},
	{"is for PUT, PATCH and DELETE", "Leave it out."},
	{"is for GET", "Leave it out."},
	{"entity tag", "Send the ETag of an earlier answer as it was."},
	{"RFC 3339", "Write it with date, time and zone, such as 2026-01-31T12:00:00Z."},
	{"must be in the future", "Take a later time."},
	{"must be after", "Take a later end, or an earlier beginning."},
	{"must not be before", "Take a later time, or a coarser grain."},
	{"must not be empty", "Give it a value, or leave it out."},
	{"must not contain control characters", "Take the control characters out."},
	{"must be true or false", "Write true or false, without quotes."},
	{"must be an object", "Write it in braces: {...}."},
	{"must be an array", "Write it in brackets: [...]."},
	{"must be a string", "Put it in quotes."},
	{"may be at most", "Send fewer."},
	{"may hold at most", "Send fewer."},
	{"may name at most", "Send fewer."},
	{"or fewer items", "Send fewer."},
	{"gives more than", "Ask for less."},
}

// fixOf is what to do about a field: what its message suggests, or else the message turned round.
func fixOf(f ProblemField) string {
	for _, known := range fixes {
		if strings.Contains(f.Message, known.says) {
			return known.fix
		}
	}
	if choices, ok := strings.CutPrefix(f.Message, "must be one of "); ok {
		return "Take one of " + choices + "."
	}
	if bounds, ok := strings.CutPrefix(f.Message, "must be "); ok {
		return "Make it " + bounds + "."
	}
	if strings.HasPrefix(f.Message, "must ") || strings.HasPrefix(f.Message, "may ") {
		return "Change it: it " + f.Message + "."
	}
	return "Correct it and send the request again."
}

// fixName is what to do about a name that is not among the known ones.
func fixName(name string, known []string) string {
	if len(known) == 0 {
		return "Leave it out: nothing is taken here."
	}
	slices.Sort(known)
	nearest, least := "", 3 // edits
	for _, k := range known {
		if d := edits(name, k); d < least {
			nearest, least = k, d
		}
	}
	if nearest != "" {
		return "Did you mean " + nearest + "? Otherwise leave it out."
	}
	return "Leave it out, or take one of " + strings.Join(known, ", ") + "."
}

// edits counts the letters to be changed, added or taken away between a and b; it is large where the lengths tell
// as much.
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

// fixUnknown says of the unknown fields of a body which ones are known where they stand.
func fixUnknown(registry huma.Registry, op *huma.Operation, fields []ProblemField) []ProblemField {
	if op == nil || op.RequestBody == nil || op.RequestBody.Content[jsonType] == nil || op.RequestBody.Content[jsonType].Schema == nil {
		return fields
	}
	out := slices.Clone(fields)
	for i, f := range out {
		if f.Message != msgUnknownField || f.Fix != "" || !strings.HasPrefix(f.Pointer, "/") {
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

// schemaAt is the schema of what the parts of a pointer lead to, or nil.
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
