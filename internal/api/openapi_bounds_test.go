package api

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The other fields that a field needs for its full range.
var boundsNeed = map[string]obj{
	"limit":       {"algorithm": "fixed_window"},
	"burst":       {"algorithm": "token_bucket", "limit": 1_000_000_000, "window": "1s"},
	"anchor":      {"algorithm": "fixed_window", "window": "month"},
	"meter_event": {"metering": "units"},

	"on_missing_attribute": {"by": []string{"attributes.ip"}},
}

// boundsRefer are the fields that name a version of a plan, which must exist.
var boundsRefer = []string{"plan_version", "from_version"}

// A client generated from the document can send everything that the server accepts, and nothing
// that is out of range. For each field of a body, both sides of each bound are tried, and null.
func TestBounds(t *testing.T) {
	s := newAdminStack(t)
	tried := 0
	for id, op := range s.operations() {
		if op.op.RequestBody == nil || op.op.RequestBody.Value.Content[jsonType] == nil || id == "simulate" || id == "reset-subject" {
			continue // these use the schema itself, and treat null as omitted
		}
		schema := op.op.RequestBody.Value.Content[jsonType].Schema.Value
		for _, field := range slices.Sorted(maps.Keys(schema.Properties)) {
			t.Run(id+"/"+field, func(t *testing.T) {
				b := boundsCase{adminStack: s.in(t), id: id, op: op, field: field}
				b.path = b.prepareFor(field)
				property := schema.Properties[field].Value
				tried += b.try(property)
			})
		}
	}
	require.Greater(t, tried, 100)
}

type boundsCase struct {
	*adminStack
	id, field, path string
	op              documented
}

// prepareFor creates the objects of the case, and returns its path.
func (b boundsCase) prepareFor(field string) string {
	name := b.id + "-" + strings.ReplaceAll(field, "_", "-")
	path := adminCases[b.id].path
	actor := b.a
	if b.ofTiers() {
		platform, err := b.store.EnsurePlatform(b.t.Context())
		require.NoError(b.t, err)
		actor = tenants.AsSystem(platform.ID, "test")
	}
	fill := b.prepareNamed(name, path, map[string]tenants.Actor{"": actor})
	if need := boundsNeed[field]; need != nil && (b.id == "put-plan-limit" || b.id == "put-override") {
		b.call(b.key, http.MethodPatch, fill.Replace("/v1/rules/{rule}"), need).ok(200)
	}
	return fill.Replace(path)
}

// ofTiers reports whether only plans of the operator's tenant may have the field.
func (b boundsCase) ofTiers() bool {
	return strings.HasSuffix(b.id, "-plan") && (b.field == "fail" || b.field == "bounds")
}

// refuses reports whether the server refuses the value of the field.
func (b boundsCase) refuses(value any) bool {
	b.t.Helper()
	body := maps.Clone(adminCases[b.id].body.(obj))
	if strings.HasSuffix(b.id, "-rule") {
		maps.Copy(body, boundsNeed[b.field])
		body["resource"] = "bounds" // few rules match it
		body["mode"] = "off"
	}
	_, isLimit := body["limit"]
	switch {
	case !isLimit || strings.HasSuffix(b.id, "-rule"):
	case b.field == "burst":
		body["limit"] = boundsNeed["burst"]["limit"]
	case b.field == "limit" && value == nil: // which is to leave it out
		body["unlimited"] = true
	}
	body[b.field] = value
	key := b.key
	if strings.HasPrefix(b.op.path, "/v1/tenants") || b.id == "create-key" || b.ofTiers() { // who may give a key of each kind
		key = b.operator
	}
	var a answer
	require.Eventually(b.t, func() bool { // a busy machine may be too slow for the time limits of the database
		a = b.call(key, b.op.method, b.path, body)
		return a.status != http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	require.Contains(b.t, []int{200, 201, 409, 422}, a.status, "%s", a.body)
	if a.status != http.StatusUnprocessableEntity {
		return false
	}
	return slices.ContainsFunc(a.pointers(422, codeInvalidRequest), func(p string) bool {
		return p == "/"+b.field || strings.HasPrefix(p, "/"+b.field+"/")
	})
}

// try tries everything that the schema says about the field, and counts it.
func (b boundsCase) try(s *openapi3.Schema) (tried int) {
	check := func(refused bool, value any, why string) {
		b.t.Helper()
		tried++
		require.Equal(b.t, refused, b.refuses(value), "%s", why)
	}
	check(!s.Type.Includes("null"), nil, "null")
	for _, choice := range s.Enum {
		if choice == nil {
			require.True(b.t, s.Type.Includes("null"))
		}
		check(false, choice, "a choice")
	}
	if len(s.Enum) > 0 {
		require.Equal(b.t, s.Type.Includes("null"), slices.Contains(s.Enum, nil), "null is among the choices where it is taken")
		check(true, "none-of-these", "no choice")
	}
	if s.Min != nil {
		if !slices.Contains(boundsRefer, b.field) {
			check(false, int64(*s.Min), "the minimum")
		}
		check(true, int64(*s.Min)-1, "below the minimum")
	}
	if s.Max != nil {
		if !slices.Contains(boundsRefer, b.field) {
			check(false, int64(*s.Max), "the maximum")
		}
		check(true, int64(*s.Max)+1, "above the maximum")
	}
	if s.MinLength > 0 {
		check(true, strings.Repeat("a", int(s.MinLength)-1), "too short")
	}
	if s.MaxLength != nil {
		longest := strings.Repeat("a", int(*s.MaxLength))
		if b.field == "billing_ref" { // which only one subject may have
			longest = b.id + longest[len(b.id):]
		}
		check(false, longest, "the longest")
		check(true, strings.Repeat("a", int(*s.MaxLength)+1), "too long")
	}
	if s.Pattern != "" {
		check(true, "A*B", "not of the pattern")
	}
	if s.MinItems > 0 {
		check(true, []string{}, "no items")
	}
	if s.MaxItems != nil && b.field == "by" {
		check(false, attributeNames(int(*s.MaxItems)), "the most items")
		check(true, attributeNames(int(*s.MaxItems)+1), "an item too many")
	}
	if s.MaxProps != nil {
		check(false, membersOf(b.field, int(*s.MaxProps)), "the most members")
		check(true, membersOf(b.field, int(*s.MaxProps)+1), "a member too many")
	}
	return tried
}

func attributeNames(n int) (names []string) {
	for i := range n {
		names = append(names, "attributes.a"+strconv.Itoa(i))
	}
	return names
}

// membersOf returns n valid members of the field.
func membersOf(field string, n int) map[string]string {
	value := "v"
	if field == "attributes" {
		value = "ip"
	}
	members := map[string]string{}
	for i := range n {
		members["m"+strconv.Itoa(i)] = value
	}
	return members
}
