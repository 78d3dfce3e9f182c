package tenants_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// The list of all overrides finds those that expire soon, and each page continues where the
// previous one ended.
func TestListOverrides(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s := d.Store
	mustRule(t, s, a, rule("q"))
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, b, rule("r"))
	in := func(hours int) *time.Time { return ptr(now.now().Add(time.Duration(hours) * time.Hour)) }
	put := func(actor tenants.Actor, subject, rule string, starts, ends *time.Time) {
		t.Helper()
		_, _, err := s.PutOverride(t.Context(), actor, subject, tenants.Override{Rule: rule, Limit: limit.Limit{Limit: 5}, StartsAt: starts, ExpiresAt: ends}, tenants.Match{})
		require.NoError(t, err)
	}
	put(a, "over/1", "r", nil, in(1))
	now.nowMS += 2 * 3600 * 1000
	put(a, "b", "r", nil, in(3))
	put(a, "b", "q", nil, nil)
	put(a, "a", "r", nil, in(5))
	put(a, "a", "q", in(2), in(3))
	put(b, "a", "r", nil, in(1))
	for name, c := range map[string]struct {
		filter tenants.OverrideFilter
		want   string
	}{
		"all, by subject": {tenants.OverrideFilter{}, "a:q a:r b:q b:r over/1:r"},
		"rule":            {tenants.OverrideFilter{Rule: "q"}, "a:q b:q"},
		"prefix":          {tenants.OverrideFilter{Prefix: "over/"}, "over/1:r"},
		"% is itself":     {tenants.OverrideFilter{Prefix: "%"}, ""},
		"in force":        {tenants.OverrideFilter{Active: ptr(true)}, "a:r b:q b:r"},
		"not in force":    {tenants.OverrideFilter{Active: ptr(false)}, "a:q over/1:r"},
		"about to end":    {tenants.OverrideFilter{EndingBefore: in(6)}, "a:q b:r a:r"},
		"sooner":          {tenants.OverrideFilter{EndingBefore: in(5)}, "a:q b:r"},
		"in force, too":   {tenants.OverrideFilter{EndingBefore: in(6), Active: ptr(true)}, "b:r a:r"},
	} {
		for _, size := range []int{1, 2, 50} {
			var got []string
			for page := (tenants.Page{Limit: size}); ; {
				items, next, err := s.Overrides(t.Context(), a, c.filter, page)
				require.NoError(t, err, name)
				require.LessOrEqual(t, len(items), size)
				for _, o := range items {
					got = append(got, o.Subject+":"+o.Rule)
					require.Equal(t, o.Subject == "b" || o.Subject == "a" && o.Rule == "r", o.Active)
				}
				if next == "" {
					break
				}
				page.After = next
			}
			require.Equal(t, c.want, strings.Join(got, " "), "%s, %d a page", name, size)
		}
	}
	for _, f := range []tenants.OverrideFilter{{Rule: "\x00"}, {EndingBefore: ptr(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC))}} {
		_, _, err := s.Overrides(t.Context(), a, f, tenants.Page{})
		require.Error(t, err)
	}
	for _, after := range []string{"x", "1/2/3", "x/01a1feba-34cd-788b-b87d-cd52a7e28eb2/s"} {
		_, _, err := s.Overrides(t.Context(), a, tenants.OverrideFilter{}, tenants.Page{After: after})
		requireInvalid(t, err, "cursor")
	}
}
