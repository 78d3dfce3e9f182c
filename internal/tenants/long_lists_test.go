package tenants_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Lists in which each entry is compared with those before it are cut at their maximum length.
// Before, all of a list was compared: a document of 4 MiB has 250 000 short origins, and took a
// minute, in a transaction that locked its tenant.
func TestLongListsAreCut(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	many := make([]string, 100) // all wrong, so that each entry that is looked at has an error
	for i := range many {
		many[i] = fmt.Sprintf("!%d", i)
	}
	fields := func(err error) map[string]int {
		t.Helper()
		var invalid *tenants.InvalidError
		require.ErrorAs(t, err, &invalid)
		return lists(invalid.Fields)
	}
	_, err := d.Store.EditPortal(t.Context(), a, tenants.Match{}, func(p *tenants.Portal) error {
		p.FrameOrigins, p.OfferedPlans = many, many
		return nil
	})
	want := map[string]int{"frame_origins": 1 + tenants.MaxFrameOrigins, "offered_plans": 1 + tenants.MaxOfferedPlans}
	require.Equal(t, want, fields(err))
	_, err = d.Store.ApplyDocument(t.Context(), a, tenants.Document{EditPortal: func(p *tenants.Portal) {
		p.FrameOrigins, p.OfferedPlans = many, many
	}}, tenants.Apply{})
	require.Equal(t, map[string]int{"portal": 2 + tenants.MaxFrameOrigins + tenants.MaxOfferedPlans}, fields(err))
	asterisks := make([]string, len(many))
	for i := range asterisks {
		asterisks[i] = fmt.Sprintf("*%d", i)
	}
	_, _, err = d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{
		Name: "k", Scopes: []tenants.Scope{tenants.ScopeCheck}, Bounds: tenants.KeyBounds{Addresses: many, Resources: asterisks},
	})
	require.Equal(t, map[string]int{"addresses": 1 + tenants.MaxKeyBounds, "resources": 1 + tenants.MaxKeyBounds}, fields(err))
	r := route.Route{Slug: "r", Subject: many}
	require.Equal(t, 1+route.MaxSources, lists(r.Validate())["subject"])
}

// lists counts the errors by the first part of their fields.
func lists(fields []limit.FieldError) map[string]int {
	out := map[string]int{}
	for _, f := range fields {
		name := f.Field
		for i, c := range name {
			if c == '.' {
				name = name[:i]
				break
			}
		}
		out[name]++
	}
	return out
}
