package dashboard

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// fieldChange is one field of an object before and after a change, in words.
type fieldChange struct {
	Path          string // "limits.free.limit"
	Name          string // "Limit in plan free"
	Before, After string // "": not set
}

// maxCompared is the size of two objects whose fields are compared, in bytes. A plan with a
// thousand limits has less. Rows from before the trail had counts and digests of older versions can
// have megabytes, and a page of such rows gigabytes. Pages read fewer (tenants.Page.Fields).
const maxCompared = 256 << 10

// changesOf returns the changes of an entry, or the sizes of what is not compared.
func changesOf(e *tenants.AuditEntry) []fieldChange {
	if e.Omitted() {
		return sizesOf(e.BeforeBytes, e.AfterBytes)
	}
	return fieldChanges(e.Before, e.After)
}

// fieldChanges compares two JSON objects field by field, including nested objects. Either may be
// missing. It opens no nested object that did not change: most changes of a plan with hundreds of
// limits are of one of them.
func fieldChanges(before, after json.RawMessage) []fieldChange {
	if len(before)+len(after) > maxCompared {
		return sizesOf(len(before), len(after))
	}
	found := map[string]*fieldChange{}
	compare("", before, after, found)
	var out []fieldChange
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if c := found[path]; c.Before != c.After {
			c.Path, c.Name = path, fieldName(path)
			out = append(out, *c)
		}
	}
	return out
}

// sizesOf stands for the changes of objects that are too large to be shown.
func sizesOf(before, after int) []fieldChange {
	return []fieldChange{{Name: "All fields; the export has them", Before: lengthOf(before), After: lengthOf(after)}}
}

// lengthOf stands for an object that is too long to be shown.
func lengthOf(size int) string {
	if size == 0 {
		return ""
	}
	return grouped(int64(size)) + " bytes"
}

// compare adds the leaves that two JSON values do not have in common to found, by path. A value
// that is missing is nil.
func compare(path string, before, after json.RawMessage, found map[string]*fieldChange) {
	if bytes.Equal(before, after) {
		return
	}
	was, is := objectOf(before), objectOf(after)
	if was == nil {
		note(path, before, found, func(c *fieldChange) *string { return &c.Before })
	}
	if is == nil {
		note(path, after, found, func(c *fieldChange) *string { return &c.After })
	}
	for name, value := range was {
		compare(inner(path, name), value, is[name], found)
	}
	for name, value := range is {
		if _, both := was[name]; !both {
			compare(inner(path, name), nil, value, found)
		}
	}
}

// objectOf returns the members of a JSON object; nil: it is none.
func objectOf(raw json.RawMessage) (members map[string]json.RawMessage) {
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &members) != nil {
		return nil
	}
	return members
}

// inner returns the path of a member. Keys of labels and limits may contain dots.
func inner(path, name string) string {
	if path == "" {
		return name
	}
	return path + "\x00" + name
}

// note sets one side of a leaf, unless it is nothing.
func note(path string, raw json.RawMessage, found map[string]*fieldChange, side func(*fieldChange) *string) {
	text := leaf(raw)
	if text == "" || path == "" {
		return
	}
	c := found[path]
	if c == nil {
		c = &fieldChange{}
		found[path] = c
	}
	*side(c) = text
}

// leaf returns a value in the form for people.
func leaf(raw json.RawMessage) string {
	switch n, err := strconv.ParseInt(string(raw), 10, 64); { // most leaves, without a decoder
	case len(raw) == 0:
		return ""
	case err == nil:
		return grouped(n)
	}
	var value any
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return ""
	}
	switch v := value.(type) {
	case nil:
		return ""
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return grouped(n)
		}
		return v.String()
	case string:
		if t, err := time.Parse(time.RFC3339, v); err == nil {
			return moment{t}.Human()
		}
		return v
	case []any:
		texts := make([]string, len(v))
		for i, item := range v {
			encoded, err := json.Marshal(item)
			if err != nil {
				return string(raw)
			}
			texts[i] = leaf(encoded)
		}
		if len(texts) == 0 {
			return "none"
		}
		return strings.Join(texts, ", ")
	}
	return string(raw)
}

// fieldWords are the labels of fields that are not fields of a rule, if they differ from the name.
var fieldWords = map[string]string{
	"last4": "Last four characters", "billing_ref": "Billing reference", "cycle_anchor": "Cycle anchor", "on_change": "When a subject gets the plan", "next_plan_at_cycle_end": "At the end of the cycle", "next_plan_at": "Plan changes at",
	"expires_at": "Expires", "starts_at": "Starts", "is_default": "Default plan", "default": "Default plan", "id": "ID", "rotated_to": "Replaced by",
	"revoked_at": "Revoked", "fields": "Number of fields", "sha256": "SHA-256 of the fields",
}

// digestWords are the labels of what stands for limits that are too many for a row.
var digestWords = map[string]string{"limits": "Number of limits", "sha256": "SHA-256 of the limits"}

// nameFields replaces the slugs of rules and plans in changes by their names.
func nameFields(changes []fieldChange, rules ruleNames, plans planNames) {
	for i := range changes {
		c := &changes[i]
		parts := strings.Split(c.Path, "\x00")
		switch {
		case len(parts) == 3 && (parts[0] == "limits" || parts[0] == "overrides"):
			parts[1] = rules.Of(parts[1])
			c.Name = fieldName(strings.Join(parts, "\x00"))
		case len(parts) == 2 && parts[0] == "replaced_limits":
			c.Name = fieldName(parts[0] + "\x00" + rules.Of(parts[1]))
		case len(parts) == 4 && parts[0] == "older_versions":
			parts[2] = rules.Of(parts[2])
			c.Name = fieldName(strings.Join(parts, "\x00"))
		case len(parts) == 3 && parts[0] == "plan_limits":
			parts[1] = plans.Of(parts[1])
			c.Name = fieldName(strings.Join(parts, "\x00"))
		case c.Path == "plan" || c.Path == "next_plan":
			c.Before, c.After = plans.Of(c.Before), plans.Of(c.After)
		case c.Path == "rule" || c.Path == "rules":
			c.Before, c.After = eachNamed(c.Before, rules), eachNamed(c.After, rules)
		}
	}
}

// eachNamed replaces slugs of rules, separated by commas, by their names.
func eachNamed(slugs string, rules ruleNames) string {
	if slugs == "" {
		return ""
	}
	names := strings.Split(slugs, ", ")
	for i, slug := range names {
		names[i] = rules.Of(slug)
	}
	return strings.Join(names, ", ")
}

// fieldName returns the label of a field, with the object that it belongs to.
func fieldName(path string) string {
	parts := strings.Split(path, "\x00")
	name := func(field string) string {
		if known := fieldWords[field]; known != "" {
			return known
		}
		if known := limit.FieldNamed(field); known != nil {
			return known.Label
		}
		text := strings.ReplaceAll(field, "_", " ")
		if text == "" {
			return "(no name)"
		}
		return strings.ToUpper(text[:1]) + text[1:]
	}
	switch {
	case len(parts) == 3 && (parts[0] == "limits" || parts[0] == "overrides" || parts[0] == "plan_limits"):
		of := map[string]string{"limits": " for ", "overrides": " of the override for ", "plan_limits": " in plan "}[parts[0]]
		return name(parts[2]) + of + parts[1]
	case len(parts) == 4 && parts[0] == "older_versions":
		return name(parts[3]) + " for " + parts[2] + " in version " + parts[1]
	case len(parts) == 3 && parts[0] == "older_versions" && digestWords[parts[2]] != "":
		return digestWords[parts[2]] + " of version " + parts[1]
	case len(parts) == 2 && parts[0] == "older_plan_limits" && digestWords[parts[1]] != "":
		return digestWords[parts[1]] + " in older versions of plans"
	case len(parts) == 2 && parts[0] == "replaced_limits":
		return "Limit before the override for " + parts[1]
	case len(parts) == 2 && parts[0] == "labels":
		return "Label " + parts[1]
	case len(parts) == 2 && parts[0] == "attributes":
		return "Attribute " + parts[1]
	}
	for i := range parts {
		if i == 0 {
			parts[i] = name(parts[i])
		}
	}
	return strings.Join(parts, " ")
}
