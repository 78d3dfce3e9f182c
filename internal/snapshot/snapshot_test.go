package snapshot_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/snapshot"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// fixture is a database with two tenants, and a writer.
type fixture struct {
	t        *testing.T
	d        *tenantstest.Database
	a, b     tenants.Actor
	key      tenants.Key // of a
	store    *countingStore
	registry *prometheus.Registry
	ring     *seal.Ring
	path     string
	now      time.Time
	writer   *snapshot.Writer
	of       snapshot.Deployment
}

// countingStore counts the policies that are read from Postgres, and fails as a test wants.
type countingStore struct {
	*tenants.Store
	read   []limit.TenantID
	before func(tenant limit.TenantID) // called before each; nil: nothing
	away   bool                        // the versions of no tenant can be read

	// of which the subjects, and which the keys, cannot be read
	fails, keysFail map[limit.TenantID]bool
}

func (s *countingStore) LoadPolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	s.read = append(s.read, tenant)
	if s.before != nil {
		s.before(tenant)
	}
	return s.Store.LoadPolicy(ctx, tenant)
}

const maxBytes = 1 << 20

func newFixture(t *testing.T, bytes int64) *fixture {
	t.Helper()
	f := &fixture{t: t, d: tenantstest.New(t), path: filepath.Join(t.TempDir(), "snapshot"), now: time.Now()}
	f.a, f.key = f.d.Tenant("acme")
	f.b, _ = f.d.Tenant("other")
	f.d.Exec("UPDATE api_keys SET last_used_at = now() WHERE tenant_id = $1", f.a.TenantID())
	rule := limit.NewRule("api")
	rule.Algorithm, rule.Limit, rule.Window = limit.FixedWindow, 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
	_, err := f.d.Store.CreateRule(t.Context(), f.a, rule)
	require.NoError(t, err)
	// A subject with an override, an anchor and credits, and more of them than a page has.
	_, _, err = f.d.Store.GrantCredits(t.Context(), f.a, "ada", tenants.NewCredits{Rule: "api", Units: 5})
	require.NoError(t, err)
	f.d.Exec("UPDATE subjects SET cycle_anchor = '2026-01-31 12:00:00.001+00', multiplier = 3 WHERE subject = 'ada'")
	f.d.Exec(`INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, starts_at, expires_at, version)
		SELECT tenant_id, 'ada', id, 77, now(), now() + interval '1 hour', 1 FROM rules WHERE slug = 'api'`)
	f.ring, err = seal.Parse(seal.NewKey())
	require.NoError(t, err)
	f.of.Secrets, err = f.d.Store.Secrets(t.Context())
	require.NoError(t, err)
	f.of.Platform = f.b.TenantID()
	f.store = &countingStore{Store: f.d.Store}
	f.restart(bytes)
	return f
}

// restart continues with the writer of a new process.
func (f *fixture) restart(bytes int64) {
	f.registry = prometheus.NewRegistry()
	f.writer = snapshot.NewWriter(snapshot.WriterOptions{
		Path: f.path, MaxBytes: bytes, MaxAge: time.Hour, Deployment: f.of, Store: f.store, Ring: f.ring, Clock: func() time.Time { return f.now },
		Logger: slog.New(slog.DiscardHandler), Registerer: f.registry,
	})
}

// write writes the file if it must be, and returns which tenants were read.
func (f *fixture) write(want bool) []limit.TenantID {
	f.t.Helper()
	f.store.read = nil
	written, err := f.writer.Write(f.t.Context())
	require.NoError(f.t, err)
	require.Equal(f.t, want, written)
	return f.store.read
}

func (f *fixture) open() (*snapshot.File, error) {
	file, err := snapshot.Open(f.path, f.ring, f.now, time.Hour, maxBytes)
	if err == nil {
		f.t.Cleanup(func() { require.NoError(f.t, file.Close()) })
	}
	return file, err
}

// same requires that the file and Postgres have the same of a tenant.
func (f *fixture) same(file *snapshot.File, tenant limit.TenantID) {
	f.t.Helper()
	type all struct {
		keys            []tenants.StoredKey
		policy          check.PolicyData
		subjects        []check.SubjectData
		version, listed int64
	}
	read := func(s check.PolicySource, keys func() ([]tenants.StoredKey, int64, error)) (out all) {
		var err error
		out.keys, out.version, err = keys()
		require.NoError(f.t, err)
		out.policy, err = s.LoadPolicy(f.t.Context(), tenant)
		require.NoError(f.t, err)
		more := false
		out.listed, more, err = s.ListSubjects(f.t.Context(), tenant, "", func(d check.SubjectData) { out.subjects = append(out.subjects, d) })
		require.NoError(f.t, err)
		require.False(f.t, more)
		return out
	}
	require.Equal(f.t,
		read(f.d.Store, func() ([]tenants.StoredKey, int64, error) { return f.d.Store.StoredKeys(f.t.Context(), tenant) }),
		read(snapshot.NewSource(nil, file), func() ([]tenants.StoredKey, int64, error) { return file.Keys(tenant) }))
}

// A file has what Postgres has, is written again only when something has changed, and then reads
// only the tenants that have.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	require.Equal(t, []limit.TenantID{f.b.TenantID(), f.a.TenantID()}, f.write(true), "the platform is the first")
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, f.of, file.Deployment)
	require.WithinDuration(t, f.now, file.TakenAt, 0)
	require.Equal(t, []limit.TenantID{f.b.TenantID(), f.a.TenantID()}, file.Tenants)
	f.same(file, f.a.TenantID())
	f.same(file, f.b.TenantID())
	_, err = snapshot.NewSource(f.d.Store, file).LoadPolicy(t.Context(), limit.TenantID{1})
	require.ErrorIs(t, err, check.ErrUnknownTenant, "Postgres answers for others")
	require.Empty(t, f.write(false))

	_, err = f.d.Store.EditRule(t.Context(), f.a, "api", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 11; return nil })
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.a.TenantID()}, f.write(true))
	newer, err := f.open()
	require.NoError(t, err)
	f.same(newer, f.a.TenantID())
	f.same(newer, f.b.TenantID())
	policy, err := file.Policy(f.a.TenantID())
	require.NoError(t, err, "an open file stays readable when it is replaced")
	require.EqualValues(t, 10, policy.Rules[0].Limit)

	f.now = f.now.Add(time.Hour)
	require.Empty(t, f.write(true), "copied, so that the age says when it was verified")

	source := snapshot.NewSource(f.d.Store, file)
	source.UseStore()
	policy, err = source.LoadPolicy(t.Context(), f.a.TenantID())
	require.NoError(t, err)
	require.EqualValues(t, 11, policy.Rules[0].Limit)
	info, err := os.Stat(f.path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	left, err := filepath.Glob(f.path + ".*")
	require.NoError(t, err)
	require.Empty(t, left)
}

// The keys of a file authenticate, and what Postgres says later replaces them.
func TestRestoreKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	authenticator := tenants.NewAuthenticator(f.d.Store)
	for _, tenant := range file.Tenants {
		keys, version, err := file.Keys(tenant)
		require.NoError(t, err)
		authenticator.Restore(tenant, keys, version)
	}
	actor, err := authenticator.Authenticate(t.Context(), f.key.Secret())
	require.NoError(t, err)
	require.Equal(t, f.a.TenantID(), actor.TenantID())
	require.Zero(t, authenticator.Lookups())

	require.NoError(t, f.d.Store.DeleteTenant(t.Context(), tenants.AsOperator("test"), "acme", tenants.Match{}))
	require.NoError(t, authenticator.Load(t.Context()))
	_, err = authenticator.Authenticate(t.Context(), f.key.Secret())
	require.ErrorIs(t, err, tenants.ErrUnknownKey, "the tenant is gone")
}

// A tenant that does not fit is left out, and the others are in the file.
func TestSnapshotIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 20_000)
	f.d.Exec(`INSERT INTO subjects (tenant_id, subject, id, version)
		SELECT $1, 'customer' || lpad(n::text, 8, '0'), gen_random_uuid(), 1 FROM generate_series(1, 1000) n`, f.a.TenantID())
	f.write(true)
	file, err := f.open()
	require.NoError(t, err)
	require.Equal(t, []limit.TenantID{f.b.TenantID()}, file.Tenants)
	f.same(file, f.b.TenantID())
	info, err := os.Stat(f.path)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(20_000))
	require.NoError(t, testutil.GatherAndCompare(f.registry, strings.NewReader(`
# HELP weir_snapshot_omitted_tenants Tenants that are not in WEIR_SNAPSHOT_FILE, because it would exceed WEIR_SNAPSHOT_SIZE.
# TYPE weir_snapshot_omitted_tenants gauge
weir_snapshot_omitted_tenants 1
`), "weir_snapshot_omitted_tenants"))
}

// A file that was changed in any place, cut or continued is refused, and so are one that others can
// read, an old one, one of the future and one of another deployment.
func TestRefusedSnapshots(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	valid, err := os.ReadFile(f.path)
	require.NoError(t, err)
	refused := func(why string, content []byte, mode os.FileMode) {
		t.Helper()
		require.NoError(t, os.Remove(f.path))
		require.NoError(t, os.WriteFile(f.path, content, mode))
		require.NoError(t, os.Chmod(f.path, mode))
		_, err := f.open()
		require.Error(t, err)
		require.Contains(t, err.Error(), why)
	}
	for _, at := range []int{1, len(valid) / 3, len(valid) / 2, len(valid) - 20} {
		damaged := bytes.Clone(valid)
		damaged[at] ^= 1
		refused("", damaged, 0o600)
	}
	lines := bytes.SplitAfter(valid, []byte("\n"))
	refused("its checksum is wrong", bytes.Join(append(append([][]byte{}, lines[:3]...), lines[4:]...), nil), 0o600)
	refused("its end is missing", valid[:len(valid)-100], 0o600)
	refused("something follows", append(bytes.Clone(valid), '\n'), 0o600)
	refused("its end is missing", nil, 0o600)
	refused("not a configuration snapshot", []byte("{}\n"), 0o600)
	refused("another version of the program", bytes.Replace(valid, []byte(`"shape":"`), []byte(`"shape":"x`), 1), 0o600)
	refused("set it to 0600", valid, 0o640)
	refused("more than", append(bytes.Clone(valid), make([]byte, maxBytes)...), 0o600)

	require.NoError(t, os.WriteFile(f.path, valid, 0o600))
	require.NoError(t, os.Chmod(f.path, 0o600))
	_, err = f.open()
	require.NoError(t, err)
	f.now = f.now.Add(time.Hour + time.Second)
	_, err = f.open()
	require.ErrorContains(t, err, "old, more than 1h0m0s")
	taken := f.now.Add(-time.Hour - time.Second)
	f.now = taken.Add(-5 * time.Minute)
	_, err = f.open()
	require.NoError(t, err, "the clock was corrected")
	f.now = f.now.Add(-time.Second)
	_, err = f.open()
	require.ErrorContains(t, err, "written 5m1s in the future")
	f.now = taken
	other, err := seal.Parse(seal.NewKey())
	require.NoError(t, err)
	f.ring = other
	_, err = f.open()
	require.ErrorContains(t, err, "cannot be decrypted")
	for _, secret := range []string{f.key.Secret(), fmt.Sprintf("%x", f.of.Secrets.CounterKey), string(f.of.Secrets.CounterKey[:])} {
		require.NotContains(t, string(valid), secret)
	}
}

// With an error, no file is returned, whose reads would fail. This is also so if all of it is valid
// but what its secrets contain.
func TestRefusedSnapshotIsNoFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, maxBytes)
	f.write(true)
	content, err := os.ReadFile(f.path)
	require.NoError(t, err)
	sealed, err := f.ring.Seal([]byte(`{"Unknown":1}`), "configuration snapshot")
	require.NoError(t, err)
	lines := bytes.SplitAfter(content, []byte("\n"))
	var head map[string]any
	require.NoError(t, json.Unmarshal(lines[0], &head))
	head["sealed"] = sealed
	lines[0], err = json.Marshal(head)
	require.NoError(t, err)
	text := bytes.Join(append([][]byte{append(lines[0], '\n')}, lines[1:len(lines)-2]...), nil)
	text = fmt.Appendf(text, "{\"sha256\":\"%x\"}\n", sha256.Sum256(text))
	require.NoError(t, os.WriteFile(f.path, text, 0o600))
	file, err := snapshot.Open(f.path, f.ring, f.now, time.Hour, maxBytes)
	require.ErrorContains(t, err, "unknown field")
	require.Nil(t, file)
}
