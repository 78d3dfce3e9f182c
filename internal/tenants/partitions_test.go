package tenants_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// The operator changes the partitions of a tenant. The policy then says what they were, until no
// unit counts any more that was counted before.
func TestPartitions(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	hourly := rule("hourly")
	hourly.Algorithm = limit.FixedWindow
	hourly.Window, _ = limit.ParseWindow("1h")
	mustRule(t, s, a, hourly)
	set := func(n int) (tenants.Tenant, error) {
		return s.EditTenantByRef(ctx, operator, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error { in.Partitions = n; return nil })
	}
	data := policyOf(t, s, a.TenantID())
	require.Equal(t, 1, data.Partitions)
	require.Zero(t, data.PartitionsBefore)
	for _, n := range []int{-1, 0, 65} {
		_, err := set(n)
		requireInvalid(t, err, "partitions")
	}
	before := versionsOf(t, d, a)
	changed, err := set(16)
	require.NoError(t, err)
	require.Equal(t, 16, changed.Partitions)
	require.Greater(t, versionsOf(t, d, a).policy, before.policy, "instances read the policy again")
	data = policyOf(t, s, a.TenantID())
	require.Equal(t, []int{16, 1}, []int{data.Partitions, data.PartitionsBefore})
	require.WithinDuration(t, time.Now(), data.PartitionsChanged, time.Minute)
	require.Equal(t, time.Hour+2*time.Minute, check.PartitionsSettled(&data).Sub(data.PartitionsChanged))

	_, err = set(8)
	requireConflict(t, err, tenants.CodeConflict)
	renamed, err := s.EditTenantByRef(ctx, operator, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error { in.Name = "A"; return nil })
	require.NoError(t, err, "other fields can be changed meanwhile")
	require.Equal(t, 16, renamed.Partitions)
	require.Equal(t, 1, policyOf(t, s, a.TenantID()).PartitionsBefore)

	d.Exec("UPDATE tenants SET partitions_changed_at = now() - interval '63 minutes' WHERE slug = 'tenant-a'")
	data = policyOf(t, s, a.TenantID())
	require.Equal(t, []int{16, 0}, []int{data.Partitions, data.PartitionsBefore}, "the change has ended")
	_, err = set(8)
	require.NoError(t, err)
	require.Equal(t, 16, policyOf(t, s, a.TenantID()).PartitionsBefore)

	d.Exec("UPDATE tenants SET partitions_changed_at = now() - interval '63 minutes' WHERE slug = 'tenant-a'")
	_, _, err = s.GrantCredits(ctx, a, "ada", tenants.NewCredits{Rule: "hourly", Units: 10})
	require.NoError(t, err)
	_, err = set(4)
	requireConflict(t, err, tenants.CodeConflict)
}

// Neither a tenant itself nor anybody for the operator's tenant changes partitions.
func TestPartitionsAreTheOperators(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	more := func(in *tenants.Tenant) error { in.Partitions = 2; return nil }
	_, err := s.EditTenant(ctx, a, tenants.Match{}, more)
	requireInvalid(t, err, "partitions")
	platform, err := s.EnsurePlatform(ctx)
	require.NoError(t, err)
	_, err = s.EditTenantByRef(ctx, operator, platform.ID.String(), tenants.Match{}, more)
	requireConflict(t, err, tenants.CodePlatform)
	_, _, _, err = s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "large", Partitions: 65})
	requireInvalid(t, err, "partitions")
	large, _, _, err := s.CreateTenant(ctx, operator, tenants.NewTenant{Slug: "large", Partitions: 32})
	require.NoError(t, err)
	require.Equal(t, 32, large.Partitions)
	require.Equal(t, 32, policyOf(t, s, large.ID).Partitions)
}
