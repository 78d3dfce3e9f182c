package tenants_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// TestMain fails where a test leaves a goroutine behind, as a server that opens and closes
// stores would.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// two returns a database with two tenants.
func two(t *testing.T) (d *tenantstest.Database, a, b tenants.Actor) {
	t.Helper()
	d = tenantstest.New(t)
	a, _ = d.Tenant("tenant-a")
	b, _ = d.Tenant("tenant-b")
	return d, a, b
}

func rule(slug string) check.Rule {
	window, _ := check.ParseWindow("1m")
	return check.Rule{Slug: slug, Resource: "*", Algorithm: check.TokenBucket, Limit: 100, Window: window, By: []string{"subject"}}
}

func window(t *testing.T, text string) check.Window {
	t.Helper()
	w, err := check.ParseWindow(text)
	require.NoError(t, err)
	return w
}

func duration(t *testing.T, text string) check.Duration {
	t.Helper()
	d, err := check.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func mustRule(t *testing.T, s *tenants.Store, a tenants.Actor, r check.Rule) tenants.Rule {
	t.Helper()
	out, err := s.CreateRule(t.Context(), a, r)
	require.NoError(t, err)
	return out
}

func mustPlan(t *testing.T, s *tenants.Store, a tenants.Actor, slug string) tenants.Plan {
	t.Helper()
	out, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: slug})
	require.NoError(t, err)
	return out
}

func mustSubject(t *testing.T, s *tenants.Store, a tenants.Actor, in tenants.Subject) tenants.Subject {
	t.Helper()
	out, _, err := s.PutSubject(t.Context(), a, in, tenants.Match{})
	require.NoError(t, err)
	return out
}

// requireInvalid requires an InvalidError that names exactly these fields.
func requireInvalid(t *testing.T, err error, fields ...string) {
	t.Helper()
	var invalid *tenants.InvalidError
	require.ErrorAs(t, err, &invalid)
	var got []string
	for _, f := range invalid.Fields {
		require.NotEmpty(t, f.Message)
		got = append(got, f.Field)
	}
	require.ElementsMatch(t, fields, got, "%v", err)
}

func requireConflict(t *testing.T, err error, code string) {
	t.Helper()
	var conflict *tenants.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, code, conflict.Code)
	require.NotEmpty(t, conflict.Detail)
}

// versions are a tenant's, and the deployment's.
type versions struct{ policy, subjects, keys, itself, config int64 }

func versionsOf(t *testing.T, d *tenantstest.Database, a tenants.Actor) (v versions) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		err := conn.QueryRow(ctx, `SELECT policy_version, subjects_version, keys_version, tenants.version, config_version.version
			FROM tenants, config_version WHERE id = $1`, a.TenantID()).Scan(&v.policy, &v.subjects, &v.keys, &v.itself, &v.config)
		require.NoError(t, err)
	})
	return v
}

func at(version int64) tenants.Match { return tenants.Match{Versions: []int64{version}} }

var existing = tenants.Match{Any: true}

func ptr[T any](v T) *T { return &v }

// clock is a time that only the test moves.
type clock struct{ nowMS int64 }

func (c *clock) now() time.Time { return time.UnixMilli(c.nowMS).UTC() }

// system returns what the store is to a reader of policies.
func policyOf(t *testing.T, s *tenants.Store, tenant uuid.UUID) check.PolicyData {
	t.Helper()
	data, err := s.LoadPolicy(t.Context(), tenant)
	require.NoError(t, err)
	return data
}
