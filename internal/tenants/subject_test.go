package tenants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// Subjects are arbitrary strings of the tenant: they are returned with the same bytes.
func TestSubjectRoundTrip(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustPlan(t, s, a, "pro")
	for i, name := range []string{"user_42", "a/b", "..a", "%2F", "'; DROP TABLE subjects; --", "{tenant}", "Ünï", "\u202eabc", strings.Repeat("x", 256)} {
		in := tenants.Subject{
			Subject: name, Plan: "pro", State: check.Blocked, BillingRef: fmt.Sprint("cus_", i), Multiplier: 7,
			Labels: map[string]string{"team": "a", "x.y/z-1_2": "ü"},
		}
		put, created, err := s.PutSubject(ctx, a, in, tenants.Match{})
		require.NoError(t, err, name)
		require.True(t, created)
		got, err := s.SubjectByName(ctx, a, name)
		require.NoError(t, err)
		require.Equal(t, put, got)
		in.PlanVersion = 1
		in.Version, in.CreatedAt, in.UpdatedAt = got.Version, got.CreatedAt, got.UpdatedAt
		require.Equal(t, in, got)
		_, err = s.SubjectByName(ctx, b, name)
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}
	for _, name := range []string{"user_42 ", "USER_42", "a\x00b", "\xff", "", strings.Repeat("x", 257)} {
		_, err := s.SubjectByName(ctx, a, name)
		require.ErrorIs(t, err, tenants.ErrNotFound, "%q", name)
	}
}

func TestSubjectInvalid(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	mustPlan(t, d.Store, b, "theirs")
	many := map[string]string{}
	for i := range 33 {
		many[fmt.Sprint("k", i)] = ""
	}
	for name, c := range map[string]struct {
		in    tenants.Subject
		field string
	}{
		"empty":          {tenants.Subject{}, "subject"},
		"control":        {tenants.Subject{Subject: "a\nb"}, "subject"},
		"many labels":    {tenants.Subject{Subject: "s", Labels: many}, "labels"},
		"label key":      {tenants.Subject{Subject: "s", Labels: map[string]string{"a b": ""}}, "labels"},
		"label value":    {tenants.Subject{Subject: "s", Labels: map[string]string{"k": strings.Repeat("x", 257)}}, "labels.k"},
		"label control":  {tenants.Subject{Subject: "s", Labels: map[string]string{"k": "\x00"}}, "labels.k"},
		"billing ref":    {tenants.Subject{Subject: "s", BillingRef: strings.Repeat("x", 257)}, "billing_ref"},
		"unknown plan":   {tenants.Subject{Subject: "s", Plan: "none"}, "plan"},
		"another's plan": {tenants.Subject{Subject: "s", Plan: "theirs"}, "plan"},
	} {
		_, _, err := d.Store.PutSubject(t.Context(), a, c.in, tenants.Match{})
		requireInvalid(t, err, c.field)
		require.NotEmpty(t, name)
	}
}

func TestSubjectPutAndEdit(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	_, _, err := s.PutSubject(ctx, a, tenants.Subject{Subject: "s"}, existing)
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	first := mustSubject(t, s, a, tenants.Subject{Subject: "s", Labels: map[string]string{"k": "v"}})
	before := versionsOf(t, d, a)
	require.Equal(t, first.Version, before.subjects)
	require.Equal(t, first, mustSubject(t, s, a, tenants.Subject{Subject: "s", Labels: map[string]string{"k": "v"}}))
	require.Equal(t, before, versionsOf(t, d, a))

	edited, err := s.EditSubject(ctx, a, "s", at(first.Version), func(in *tenants.Subject) error {
		in.State = check.Exempt
		in.Labels["more"] = "x"
		delete(in.Labels, "k")
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"more": "x"}, edited.Labels)
	after := versionsOf(t, d, a)
	require.Equal(t, edited.Version, after.subjects)
	require.Equal(t, before.policy, after.policy, "subjects must not make policies compile again")
	_, err = s.EditSubject(ctx, a, "s", at(first.Version), func(*tenants.Subject) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	_, err = s.EditSubject(ctx, a, "s", tenants.Match{}, func(in *tenants.Subject) error { in.Subject = "t"; return nil })
	requireInvalid(t, err, "subject")
	_, err = s.EditSubject(ctx, b, "s", tenants.Match{}, func(*tenants.Subject) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteSubject(ctx, b, "s", tenants.Match{}), tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteSubject(ctx, a, "s", at(first.Version)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeleteSubject(ctx, a, "s", at(edited.Version)))
	require.ErrorIs(t, s.DeleteSubject(ctx, a, "s", tenants.Match{}), tenants.ErrNotFound)
	_, err = s.EditSubject(ctx, a, "s", tenants.Match{}, func(*tenants.Subject) error { return nil })
	require.ErrorIs(t, err, tenants.ErrNotFound, "deleted, then patched")
}

// A search treats its texts literally, and only in its own tenant.
func TestSubjectsFilters(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	mustPlan(t, s, a, "free")
	mustPlan(t, s, a, "pro")
	mustSubject(t, s, a, tenants.Subject{Subject: "user_1", Plan: "pro", Labels: map[string]string{"team": "x"}})
	mustSubject(t, s, a, tenants.Subject{Subject: "userA1", State: check.Blocked, Labels: map[string]string{"team": "y"}})
	mustSubject(t, s, a, tenants.Subject{Subject: "100%"})
	mustSubject(t, s, b, tenants.Subject{Subject: "user_1", Labels: map[string]string{"team": "x"}})
	for name, c := range map[string]struct {
		filter tenants.SubjectFilter
		want   []string
	}{
		"all, newest first":        {tenants.SubjectFilter{}, []string{"100%", "userA1", "user_1"}},
		"prefix":                   {tenants.SubjectFilter{Prefix: "user"}, []string{"userA1", "user_1"}},
		"_ is no wildcard":         {tenants.SubjectFilter{Prefix: "user_"}, []string{"user_1"}},
		"% is no wildcard":         {tenants.SubjectFilter{Prefix: "%"}, nil},
		"% inside":                 {tenants.SubjectFilter{Prefix: "100%"}, []string{"100%"}},
		"backslash":                {tenants.SubjectFilter{Prefix: `\`}, nil},
		"quotes":                   {tenants.SubjectFilter{Prefix: "' OR true --"}, nil},
		"plan":                     {tenants.SubjectFilter{Plan: "pro"}, []string{"user_1"}},
		"plan without subjects":    {tenants.SubjectFilter{Plan: "free"}, nil},
		"state":                    {tenants.SubjectFilter{State: ptr(check.Blocked)}, []string{"userA1"}},
		"label":                    {tenants.SubjectFilter{LabelKey: "team"}, []string{"userA1", "user_1"}},
		"label and value":          {tenants.SubjectFilter{LabelKey: "team", LabelValue: ptr("x")}, []string{"user_1"}},
		"label with another value": {tenants.SubjectFilter{LabelKey: "team", LabelValue: ptr("")}, nil},
		"all together":             {tenants.SubjectFilter{Prefix: "u", Plan: "pro", State: ptr(check.Active), LabelKey: "team"}, []string{"user_1"}},
	} {
		got, _, err := s.Subjects(t.Context(), a, c.filter, tenants.Page{})
		require.NoError(t, err, name)
		var names []string
		for _, subject := range got {
			names = append(names, subject.Subject)
		}
		require.Equal(t, c.want, names, name)
	}
	_, _, err := s.Subjects(t.Context(), a, tenants.SubjectFilter{Prefix: "a\x00"}, tenants.Page{})
	requireInvalid(t, err, "prefix")
}

func TestSubjectsPages(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for i := range 5 {
		mustSubject(t, d.Store, a, tenants.Subject{Subject: fmt.Sprint("s", i)})
	}
	var names []string
	for page := (tenants.Page{Limit: 2}); ; {
		got, next, err := d.Store.Subjects(t.Context(), a, tenants.SubjectFilter{}, page)
		require.NoError(t, err)
		for _, subject := range got {
			names = append(names, subject.Subject)
		}
		if next == "" {
			break
		}
		page.After = next
		mustSubject(t, d.Store, a, tenants.Subject{Subject: "later" + next})
	}
	require.Equal(t, []string{"s4", "s3", "s2", "s1", "s0"}, names)
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, key := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, b, rule("theirs"))
	in := tenants.Override{
		Rule: "r", Limit: limit.Limit{Limit: 500, Burst: 600}, Reason: "<script>asked for it</script>",
		StartsAt: ptr(now.now()), ExpiresAt: ptr(now.now().Add(time.Hour)),
	}
	_, _, err := s.PutOverride(ctx, a, "alice", in, existing)
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	o, created, err := s.PutOverride(ctx, d.Actor(key), "alice", in, tenants.Match{})
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, "key:first key", o.CreatedBy)
	alice, err := s.SubjectByName(ctx, a, "alice")
	require.NoError(t, err, "an override registers its subject")
	require.Equal(t, []tenants.Override{o}, alice.Overrides)
	require.Equal(t, o.Version, alice.Version)
	before := versionsOf(t, d, a)
	same, created, err := s.PutOverride(ctx, a, "alice", in, at(o.Version))
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, o, same)
	require.Equal(t, before, versionsOf(t, d, a))

	in.Limit = limit.Limit{Unlimited: true}
	second, _, err := s.PutOverride(ctx, a, "alice", in, at(alice.Version))
	require.NoError(t, err, "the subject's version includes its overrides")
	require.Greater(t, second.Version, o.Version)
	_, _, err = s.PutOverride(ctx, a, "alice", in, at(o.Version))
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)

	_, _, err = s.PutOverride(ctx, a, "alice", tenants.Override{Rule: "theirs", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
	require.ErrorIs(t, err, tenants.ErrNotFound, "another tenant's rule")
	for field, change := range map[string]func(*tenants.Override){
		"limit":      func(o *tenants.Override) { o.Limit = limit.Limit{Limit: -1} },
		"unlimited":  func(o *tenants.Override) { o.Limit.Limit = 5 },
		"reason":     func(o *tenants.Override) { o.Reason = strings.Repeat("x", 501) },
		"expires_at": func(o *tenants.Override) { o.StartsAt, o.ExpiresAt = nil, ptr(now.now()) },
		"starts_at": func(o *tenants.Override) {
			o.StartsAt, o.ExpiresAt = ptr(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)), nil
		},
	} {
		bad := in
		change(&bad)
		_, _, err := s.PutOverride(ctx, a, "alice", bad, tenants.Match{})
		requireInvalid(t, err, field)
	}
	bad := in
	bad.StartsAt = in.ExpiresAt
	_, _, err = s.PutOverride(ctx, a, "alice", bad, tenants.Match{})
	requireInvalid(t, err, "expires_at")
	_, _, err = s.PutOverride(ctx, a, "a\x00", in, tenants.Match{})
	requireInvalid(t, err, "subject")

	require.ErrorIs(t, s.DeleteOverride(ctx, b, "alice", "r", tenants.Match{}), tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteOverride(ctx, a, "alice", "none", tenants.Match{}), tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteOverride(ctx, a, "alice", "r", at(o.Version)), tenants.ErrPreconditionFailed)
	require.NoError(t, s.DeleteOverride(ctx, a, "alice", "r", at(second.Version)))
	alice, err = s.SubjectByName(ctx, a, "alice")
	require.NoError(t, err)
	require.Empty(t, alice.Overrides)
	require.Greater(t, alice.Version, second.Version)
}

// Instances load only changes: of subjects, of overrides, deletions, and new registrations.
func TestLoadSubjects(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustRule(t, s, a, rule("r"))
	mustRule(t, s, a, rule("q"))
	mustPlan(t, s, a, "pro")
	mustSubject(t, s, b, tenants.Subject{Subject: "theirs"})
	load := func(since int64) (map[string]check.SubjectData, int64) {
		t.Helper()
		got := map[string]check.SubjectData{}
		upTo, err := s.LoadSubjects(ctx, a.TenantID(), since, func(d check.SubjectData) {
			require.NotContains(t, got, d.Subject)
			got[d.Subject] = d
		})
		require.NoError(t, err)
		return got, upTo
	}
	got, upTo := load(0)
	require.Empty(t, got)
	require.Positive(t, upTo)
	got, _ = load(upTo)
	require.Empty(t, got)

	mustSubject(t, s, a, tenants.Subject{Subject: "alice", Plan: "pro", State: check.Exempt})
	mustSubject(t, s, a, tenants.Subject{Subject: "bob"})
	ends := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	for _, rule := range []string{"r", "q"} {
		_, _, err := s.PutOverride(ctx, a, "alice", tenants.Override{Rule: rule, Limit: limit.Limit{Limit: 5}, ExpiresAt: &ends}, tenants.Match{})
		require.NoError(t, err)
	}
	got, upTo = load(upTo)
	alice := check.SubjectData{Subject: "alice", Plan: "pro", PlanVersion: 1, State: check.Exempt, Overrides: got["alice"].Overrides}
	require.ElementsMatch(t, []check.OverrideData{
		{Rule: "r", Limit: limit.Limit{Limit: 5}, ExpiresAt: ends}, {Rule: "q", Limit: limit.Limit{Limit: 5}, ExpiresAt: ends},
	}, alice.Overrides)
	require.Equal(t, map[string]check.SubjectData{"alice": alice, "bob": {Subject: "bob"}}, got)
	all, _ := load(0)
	require.Equal(t, got, all)

	require.NoError(t, s.DeleteOverride(ctx, a, "alice", "q", tenants.Match{}))
	require.NoError(t, s.DeleteSubject(ctx, a, "bob", tenants.Match{}))
	got, upTo = load(upTo)
	require.Len(t, got, 2)
	require.Len(t, got["alice"].Overrides, 1)
	require.Equal(t, check.SubjectData{Subject: "bob", Deleted: true}, got["bob"])
	all, _ = load(0)
	require.NotContains(t, all, "bob", "a full load needs no deletions")

	mustSubject(t, s, a, tenants.Subject{Subject: "bob", State: check.Blocked})
	got, _ = load(upTo)
	require.Equal(t, map[string]check.SubjectData{"bob": {Subject: "bob", State: check.Blocked}}, got)
}

// Deletions are kept for a day. A reader of older changes must read all subjects again, so that it
// does not keep a deleted subject forever.
func TestPurgedSubjectHistory(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	nothing := func(check.SubjectData) {}
	mustSubject(t, s, a, tenants.Subject{Subject: "old"})
	mustSubject(t, s, a, tenants.Subject{Subject: "young"})
	before, err := s.LoadSubjects(ctx, a.TenantID(), 0, nothing)
	require.NoError(t, err)
	require.NoError(t, s.DeleteSubject(ctx, a, "old", tenants.Match{}))
	between, err := s.LoadSubjects(ctx, a.TenantID(), before, nothing)
	require.NoError(t, err)
	require.NoError(t, s.DeleteSubject(ctx, a, "young", tenants.Match{}))
	d.Exec("ALTER TABLE subject_tombstones NO FORCE ROW LEVEL SECURITY")
	d.Exec("UPDATE subject_tombstones SET deleted_at = now() - interval '25 hours' WHERE subject = 'old'")
	d.Exec("ALTER TABLE subject_tombstones FORCE ROW LEVEL SECURITY")
	require.NoError(t, s.Purge(ctx))
	_, err = s.LoadSubjects(ctx, a.TenantID(), before, nothing)
	require.ErrorIs(t, err, check.ErrHistoryGone)
	var loaded []check.SubjectData
	_, err = s.LoadSubjects(ctx, a.TenantID(), between, func(d check.SubjectData) { loaded = append(loaded, d) })
	require.NoError(t, err)
	require.Equal(t, []check.SubjectData{{Subject: "young", Deleted: true}}, loaded)
	_, err = s.LoadSubjects(ctx, a.TenantID(), 1<<40, nothing)
	require.ErrorIs(t, err, check.ErrHistoryGone, "a version that the database has not reached is of another history")
}

// A tenant with more subjects than one read returns is read completely, with every override, and is
// up to date at the end.
func TestListSubjects(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	ctx := t.Context()
	_ = mustRule(t, d.Store, a, rule("api"))
	mustSubject(t, d.Store, b, tenants.Subject{Subject: "another tenant's"})
	mustSubject(t, d.Store, a, tenants.Subject{Subject: "zz"})
	_, _, err := d.Store.PutOverride(ctx, a, "zz", tenants.Override{Rule: "api", Limit: limit.Limit{Limit: 7}, Reason: "agreed"}, tenants.Match{})
	require.NoError(t, err)
	const many = 2*10_000 + 1
	d.Exec("INSERT INTO subjects (tenant_id, subject, id, version) SELECT $1, 'customer' || lpad(n::text, 8, '0'), gen_random_uuid(), 1 FROM generate_series(1, $2::int) n", a.TenantID(), many)
	loaded := map[string]check.SubjectData{}
	pages, after := 0, ""
	for more := true; more; pages++ {
		var version int64
		version, more, err = d.Store.ListSubjects(ctx, a.TenantID(), after, func(s check.SubjectData) {
			require.Greater(t, s.Subject, after)
			loaded[s.Subject], after = s, s.Subject
		})
		require.NoError(t, err)
		require.Equal(t, versionsOf(t, d, a).subjects, version)
	}
	require.Equal(t, 3, pages)
	require.Len(t, loaded, many+1)
	require.Equal(t, []check.OverrideData{{Rule: "api", Limit: limit.Limit{Limit: 7}}}, loaded["zz"].Overrides)
	_, _, err = d.Store.ListSubjects(ctx, uuid.New(), "", func(check.SubjectData) {})
	require.ErrorIs(t, err, check.ErrUnknownTenant)
}
