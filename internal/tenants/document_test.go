package tenants_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

func documentOf(t *testing.T, s *tenants.Store, a tenants.Actor) (tenants.Document, int64) {
	t.Helper()
	d, version, err := s.Document(t.Context(), a, true)
	require.NoError(t, err)
	return d, version
}

func mustApply(t *testing.T, s *tenants.Store, a tenants.Actor, d tenants.Document, how tenants.Apply) []string {
	t.Helper()
	applied, err := s.ApplyDocument(t.Context(), a, d, how)
	require.NoError(t, err)
	return textsOf(applied)
}

func textsOf(a tenants.Applied) []string {
	texts := []string{}
	for _, c := range a.Changes {
		texts = append(texts, c.Text)
	}
	return texts
}

// sample returns a document with all kinds of objects.
func sample(t *testing.T) tenants.Document {
	t.Helper()
	counted := rule("api")
	counted.Name, counted.Burst = "The API", 500
	monthly := rule("monthly")
	monthly.Algorithm, monthly.Window, monthly.By = limit.FixedWindow, window(t, "month"), []string{}
	end := time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC)
	return tenants.Document{
		TenantName: ptr("Acme"),
		Rules:      []limit.Rule{counted, monthly},
		Plans: []tenants.Plan{
			{Slug: "free", Name: "Free", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 10}}},
			{Slug: "pro", Name: "Pro", Limits: map[string]limit.Limit{"api": {Limit: 1000, Burst: 2000}, "monthly": {Unlimited: true}}},
		},
		Subjects: []tenants.Subject{
			{Subject: "alice", Plan: "pro", Labels: map[string]string{"a.b/c": "d"}, Overrides: []tenants.Override{
				{Rule: "api", Limit: limit.Limit{Limit: 7}, Reason: "trial", ExpiresAt: &end},
			}},
			{Subject: "mallory", State: check.Blocked, BillingRef: "m-1"},
		},
	}
}

// A document is applied, applied again, and undone: what is written is what is read, under one
// version.
func TestApplyDocument(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	before := versionsOf(t, d, a)
	want := []string{
		`Change tenant tenant-a: name from "" to "Acme".`, "Create rule api.", "Create rule monthly.",
		"Create plan free.", "Create plan pro.", `Create subject "alice".`, `Create subject "mallory".`,
	}
	require.Equal(t, want, mustApply(t, s, a, sample(t), tenants.Apply{DryRun: true}))
	require.Equal(t, before, versionsOf(t, d, a), "a dry run writes nothing")

	applied, err := s.ApplyDocument(t.Context(), a, sample(t), tenants.Apply{})
	require.NoError(t, err)
	require.Equal(t, want, textsOf(applied))
	after := versionsOf(t, d, a)
	require.Equal(t, before.config+1, after.config, "one version for all of it")
	require.Equal(t, versions{
		policy: after.config, subjects: after.config, keys: before.keys, itself: after.config, config: after.config,
	}, after)
	require.Equal(t, after.config, applied.Version)

	got, version := documentOf(t, s, a)
	require.Equal(t, applied.Version, version)
	require.Equal(t, sample(t).Rules, got.Rules)
	require.Equal(t, limit.Limit{Limit: 1000, Burst: 2000}, got.Plans[1].Limits["api"])
	require.True(t, got.Plans[0].Default)
	require.Equal(t, "trial", got.Subjects[0].Overrides[0].Reason)
	require.Equal(t, check.Blocked, got.Subjects[1].State)

	for _, prune := range []bool{false, true} {
		again, err := s.ApplyDocument(t.Context(), a, got, tenants.Apply{Prune: prune})
		require.NoError(t, err)
		require.Equal(t, tenants.Applied{Version: version}, again)
	}
	require.Equal(t, after, versionsOf(t, d, a), "nothing changed")

	// Another tenant is not affected, and may have the same names.
	empty, _ := documentOf(t, s, b)
	require.Empty(t, empty.Rules)
	require.Empty(t, empty.Subjects)
	require.Equal(t, want[1:], mustApply(t, s, b, got, tenants.Apply{})[1:])
	policy := policyOf(t, s, b.TenantID())
	require.Len(t, policy.Rules, 2)
	require.Len(t, policy.Plans, 2)
}

// Omitted objects are kept, and deleted only with prune.
func TestApplyPrunes(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustApply(t, s, a, sample(t), tenants.Apply{})
	full, version := documentOf(t, s, a)

	less := sample(t)
	less.Rules = less.Rules[:1]
	less.Plans = []tenants.Plan{{Slug: "free", Name: "Free", Limits: map[string]limit.Limit{}}}
	less.Subjects = []tenants.Subject{{Subject: "alice", Labels: map[string]string{"a.b/c": "d"}, Overrides: []tenants.Override{}}}
	require.Equal(t, []string{`Change subject "alice": plan from "pro" to none.`}, mustApply(t, s, a, less, tenants.Apply{}))
	require.Equal(t, []string{
		"Delete rule monthly, with the limits that plans give it and its overrides.",
		"Delete the limit of plan free for rule api.", "Delete plan pro, with its limits.",
		`Delete the override of subject "alice" for rule api.`, `Delete subject "mallory", with its overrides.`,
	}, mustApply(t, s, a, less, tenants.Apply{Prune: true}))
	got, after := documentOf(t, s, a)
	require.Greater(t, after, version)
	require.Len(t, got.Rules, 1)
	require.Len(t, got.Plans, 1)
	require.Empty(t, got.Plans[0].Limits)
	require.Len(t, got.Subjects, 1)
	require.Empty(t, got.Subjects[0].Overrides)

	// Instances that load only changes are notified of the deletions.
	var loaded []check.SubjectData
	_, err := s.LoadSubjects(t.Context(), a.TenantID(), version, func(in check.SubjectData) { loaded = append(loaded, in) })
	require.NoError(t, err)
	require.Len(t, loaded, 2)

	require.Len(t, mustApply(t, s, a, full, tenants.Apply{Prune: true}), 6, "and back")
	back, _ := documentOf(t, s, a)
	require.Equal(t, full.Rules, back.Rules)
	require.Len(t, back.Subjects, 2)

	require.Empty(t, mustApply(t, s, a, tenants.Document{}, tenants.Apply{Prune: true}), "a missing section changes nothing")
	require.Len(t, mustApply(t, s, a, tenants.Document{
		Rules: []limit.Rule{}, Plans: []tenants.Plan{}, Subjects: []tenants.Subject{},
	}, tenants.Apply{Prune: true}), 6)
}

// If only a rule is deleted, instances are notified of the subjects that lose an override.
func TestApplyDropsOverriddenRule(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustApply(t, d.Store, a, sample(t), tenants.Apply{})
	before := versionsOf(t, d, a)
	mustApply(t, d.Store, a, tenants.Document{Rules: sample(t).Rules[1:]}, tenants.Apply{Prune: true})
	after := versionsOf(t, d, a)
	require.Equal(t, after.config, after.subjects)
	require.Equal(t, before.config+1, after.config)
	got, _ := documentOf(t, d.Store, a)
	require.Empty(t, got.Subjects[0].Overrides)
	require.Equal(t, after.config, got.Plans[0].Version, "deleting a limit changes the plan")
}

// A document can change the default plan, but a tenant always has one.
func TestApplyDefaultPlan(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustApply(t, s, a, sample(t), tenants.Apply{})
	pro := tenants.Document{Plans: []tenants.Plan{{Slug: "pro", Name: "Pro", Default: true}}}
	require.Equal(t, []string{
		"Change plan pro: default from false to true.", "Change plan free: default from true to false.",
	}, mustApply(t, s, a, pro, tenants.Apply{}))
	got, _ := documentOf(t, s, a)
	require.False(t, got.Plans[0].Default)
	require.True(t, got.Plans[1].Default)
	require.Len(t, got.Plans[1].Limits, 2, "omitted limits are kept")

	_, err := s.ApplyDocument(t.Context(), a, tenants.Document{Plans: []tenants.Plan{{Slug: "free", Name: "Free"}}}, tenants.Apply{Prune: true})
	var invalid *tenants.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Fields, 2)
	require.Contains(t, invalid.Fields[0].Message, "omit the default plan pro")
	require.Contains(t, invalid.Fields[1].Message, "omit plan pro, which subjects have")
	// One document can change the subject's plan and delete the plan.
	mustApply(t, s, a, tenants.Document{
		Plans:    []tenants.Plan{{Slug: "free", Name: "Free", Default: true}},
		Subjects: []tenants.Subject{{Subject: "alice"}},
	}, tenants.Apply{Prune: true})
	got, _ = documentOf(t, s, a)
	require.Len(t, got.Plans, 1)
	require.True(t, got.Plans[0].Default)
}

// All errors are reported at once, with their place, and nothing is written.
func TestApplyInvalid(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustApply(t, s, a, sample(t), tenants.Apply{})
	before := versionsOf(t, d, a)
	refused := func(in tenants.Document, prune bool, fields ...string) {
		t.Helper()
		for _, dryRun := range []bool{true, false} {
			_, err := s.ApplyDocument(t.Context(), a, in, tenants.Apply{Prune: prune, DryRun: dryRun})
			requireInvalid(t, err, fields...)
		}
		require.Equal(t, before, versionsOf(t, d, a))
	}
	bad := rule("Bad Slug")
	bad.Limit = 0
	past := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	refused(tenants.Document{
		TenantName: ptr("a\x00b"),
		Rules:      []limit.Rule{rule("twice"), bad, rule("twice")},
		Plans: []tenants.Plan{
			{Slug: "free", Default: true, Limits: map[string]limit.Limit{"no-such-rule": {Limit: 1}, "api": {Limit: -1}}},
			{Slug: "pro", Default: true},
		},
		Subjects: []tenants.Subject{
			{Subject: "alice", Plan: "no-such-plan", Labels: map[string]string{"a.b": "\x01"}},
			{Subject: "bob", Overrides: []tenants.Override{
				{Rule: "no-such-rule", Limit: limit.Limit{Limit: 1}}, {Rule: "api", Limit: limit.Limit{Limit: 5}, ExpiresAt: &past},
			}},
			{Subject: "bob"},
		},
	}, false,
		"tenant.name", "rules.1.slug", "rules.1.limit", "rules.2.slug", "plans.1.default", "plans.0.limits.no-such-rule", "plans.0.limits.api.limit",
		"subjects.0.plan", "subjects.0.labels.a.b", "subjects.1.overrides.no-such-rule", "subjects.1.overrides.api.expires_at", "subjects.2.subject")
	refused(tenants.Document{Subjects: []tenants.Subject{{Subject: "a\x00"}, {Subject: "bob", Plan: "\x00"}}}, true, "subjects.0.subject")
	refused(tenants.Document{Rules: make([]limit.Rule, limit.MaxRules+1)}, false, "rules")
	refused(tenants.Document{Subjects: make([]tenants.Subject, tenants.MaxDocumentSubjects+1)}, false, "subjects")
}

// A rule must fit the existing limits, and those of the document must fit the rule after the
// change.
func TestApplyMisfits(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	mustApply(t, s, a, sample(t), tenants.Apply{})
	refused := func(in tenants.Document, field string) {
		t.Helper()
		before := versionsOf(t, d, a)
		_, err := s.ApplyDocument(t.Context(), a, in, tenants.Apply{})
		requireInvalid(t, err, field)
		require.Equal(t, before, versionsOf(t, d, a))
	}
	pro := func(l limit.Limit) []tenants.Plan {
		return []tenants.Plan{{Slug: "pro", Name: "Pro", Limits: map[string]limit.Limit{"api": l}}}
	}
	alice := func(o tenants.Override) []tenants.Subject {
		return []tenants.Subject{{Subject: "alice", Plan: "pro", Overrides: []tenants.Override{o}}}
	}
	logged := rule("api")
	logged.Algorithm = limit.SlidingWindowLog
	refused(tenants.Document{Rules: []limit.Rule{logged}}, "rules.0.algorithm")
	refused(tenants.Document{Rules: []limit.Rule{logged}, Plans: pro(limit.Limit{Limit: limit.MaxLogLimit + 1})}, "plans.0.limits.api.limit")
	mustApply(t, s, a, tenants.Document{Rules: []limit.Rule{logged}, Plans: pro(limit.Limit{Limit: limit.MaxLogLimit})}, tenants.Apply{})

	mustApply(t, s, a, tenants.Document{Subjects: alice(tenants.Override{Rule: "monthly", Limit: limit.Limit{Limit: limit.MaxFixedLimit}})}, tenants.Apply{})
	bucket := rule("monthly")
	refused(tenants.Document{Rules: []limit.Rule{bucket}}, "rules.0.algorithm")
	// ... unless the same document gives the subject a valid limit.
	mustApply(t, s, a, tenants.Document{
		Rules: []limit.Rule{bucket}, Subjects: alice(tenants.Override{Rule: "monthly", Limit: limit.Limit{Limit: 3}}),
	}, tenants.Apply{})

	crowd := tenants.Document{}
	for i := range 31 {
		in := rule(fmt.Sprintf("crowd-%d", i))
		in.Resource = "orders:*"
		crowd.Rules = append(crowd.Rules, in)
	}
	refused(crowd, "rules.0.resource")
	crowd.Rules = crowd.Rules[:30]
	mustApply(t, s, a, crowd, tenants.Apply{})
	refused(tenants.Document{Rules: []limit.Rule{rule("everywhere")}}, "rules.0.resource")
}

// An expired override is omitted, and a document that contains it unchanged can still be applied.
func TestDocumentOverrideThatIsOver(t *testing.T) {
	t.Parallel()
	clock := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d, a, b := two(t)
	s := d.Open(tenants.Config{Now: clock.now})
	end := clock.now().Add(time.Hour)
	in := tenants.Document{
		Rules: []limit.Rule{rule("api")},
		Subjects: []tenants.Subject{{
			Subject: "alice", Overrides: []tenants.Override{{Rule: "api", Limit: limit.Limit{Limit: 7}, ExpiresAt: &end}},
		}},
	}
	mustApply(t, s, a, in, tenants.Apply{})
	got, _ := documentOf(t, s, a)
	require.Len(t, got.Subjects[0].Overrides, 1)
	clock.nowMS += time.Hour.Milliseconds()
	got, _ = documentOf(t, s, a)
	require.Empty(t, got.Subjects[0].Overrides)
	require.Empty(t, mustApply(t, s, a, got, tenants.Apply{Prune: true}))
	require.Empty(t, mustApply(t, s, a, in, tenants.Apply{Prune: true}))
	_, err := s.ApplyDocument(t.Context(), b, in, tenants.Apply{})
	requireInvalid(t, err, "subjects.0.overrides.api.expires_at")
}

// The version covers everything in a document: every edit in between is detected.
func TestApplyMatch(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	applied, err := s.ApplyDocument(t.Context(), a, sample(t), tenants.Apply{})
	require.NoError(t, err)
	without, v0, err := s.Document(t.Context(), a, false)
	require.NoError(t, err)
	require.Nil(t, without.Subjects)
	require.Equal(t, applied.Version, v0)
	mustSubject(t, s, a, tenants.Subject{Subject: "new"})
	full, v1 := documentOf(t, s, a)
	require.Greater(t, v1, v0)
	mustApply(t, s, a, without, tenants.Apply{Match: at(v0)})
	mustApply(t, s, a, without, tenants.Apply{Match: at(v1)})
	mustApply(t, s, a, full, tenants.Apply{Match: at(v1)})
	_, err = s.ApplyDocument(t.Context(), a, full, tenants.Apply{Match: at(v0), DryRun: true})
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed, "a subject was created after it")
	mustRule(t, s, a, rule("later"))
	for _, v := range []int64{v0, v1} {
		_, err = s.ApplyDocument(t.Context(), a, without, tenants.Apply{Match: at(v), Prune: true})
		require.ErrorIs(t, err, tenants.ErrPreconditionFailed, "pruning would delete unknown subjects")
	}
	mustApply(t, s, a, without, tenants.Apply{Match: existing})
}

// Concurrent applies are serialized: the result is one of the documents, completely.
func TestConcurrentApplies(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Open(tenants.Config{MaxConns: 8})
	documents := make([]tenants.Document, 6)
	for i := range documents {
		for j := range 20 {
			in := rule(fmt.Sprintf("rule-%d-%d", i, j))
			in.Limit = int64(i + 1)
			documents[i].Rules = append(documents[i].Rules, in)
		}
		documents[i].Plans = []tenants.Plan{{
			Slug: fmt.Sprintf("plan-%d", i), Default: true, Limits: map[string]limit.Limit{documents[i].Rules[0].Slug: {Limit: int64(i + 1)}},
		}}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(documents))
	for i := range documents {
		wg.Go(func() { _, errs[i] = s.ApplyDocument(t.Context(), a, documents[i], tenants.Apply{Prune: true}) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	got, _ := documentOf(t, s, a)
	require.Len(t, got.Plans, 1)
	var last int
	_, err := fmt.Sscanf(got.Plans[0].Slug, "plan-%d", &last)
	require.NoError(t, err)
	require.Len(t, got.Rules, 20)
	for _, r := range got.Rules {
		require.Equal(t, int64(last+1), r.Limit)
	}
}

// The limits are usable: 1 000 rules and 10 000 subjects. It takes two seconds on a quiet machine,
// and may take longer than a request on a busy one.
func TestLargeDocument(t *testing.T) {
	d, a, _ := two(t)
	s := d.Store
	in := tenants.Document{Plans: []tenants.Plan{{Slug: "free", Limits: map[string]limit.Limit{}}}}
	for i := range limit.MaxRules {
		r := rule(fmt.Sprintf("rule-%04d", i))
		r.Resource = r.Slug
		in.Rules = append(in.Rules, r)
		in.Plans[0].Limits[r.Slug] = limit.Limit{Limit: int64(i + 1)}
	}
	for i := range tenants.MaxDocumentSubjects {
		in.Subjects = append(in.Subjects, tenants.Subject{
			Subject: fmt.Sprintf("subject-%05d", i), Plan: "free",
			Overrides: []tenants.Override{{Rule: in.Rules[i%limit.MaxRules].Slug, Limit: limit.Limit{Limit: int64(i + 1)}}},
		})
	}
	require.Len(t, mustApply(t, s, a, in, tenants.Apply{}), 1+limit.MaxRules+tenants.MaxDocumentSubjects)
	got, _ := documentOf(t, s, a)
	require.Empty(t, mustApply(t, s, a, got, tenants.Apply{Prune: true}))

	_, err := s.ApplyDocument(t.Context(), a, tenants.Document{Rules: []limit.Rule{rule("more")}}, tenants.Apply{})
	requireInvalid(t, err, "rules")
	mustSubject(t, s, a, tenants.Subject{Subject: "one too many"})
	_, _, err = s.Document(t.Context(), a, true)
	requireInvalid(t, err, "subjects")
	_, err = s.ApplyDocument(t.Context(), a, tenants.Document{Subjects: []tenants.Subject{}}, tenants.Apply{Prune: true})
	requireInvalid(t, err, "subjects")
	_, _, err = s.Document(t.Context(), a, false)
	require.NoError(t, err)
}

// A write that fails halfway leaves no changes.
func TestApplyIsAllOrNothing(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
			CREATE TRIGGER refuse BEFORE INSERT ON subjects FOR EACH ROW WHEN (NEW.subject = 'mallory') EXECUTE FUNCTION refuse()`)
		require.NoError(t, err)
	})
	before := versionsOf(t, d, a)
	_, err := d.Store.ApplyDocument(t.Context(), a, sample(t), tenants.Apply{})
	require.ErrorContains(t, err, "refused")
	require.Equal(t, before, versionsOf(t, d, a))
	got, _ := documentOf(t, d.Store, a)
	require.Empty(t, got.Rules)
}

// Changes of all tenants are serialized once they have their versions. A document has many writes,
// so it takes its version after them, so that nothing waits for them.
func TestApplyTakesItsNumberLast(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	ended := make(chan error, 1)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx) // another tenant's change, which has its number
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "UPDATE config_version SET version = version + 1")
		require.NoError(t, err)
		go func() {
			_, err := d.Store.ApplyDocument(ctx, a, sample(t), tenants.Apply{})
			ended <- err
		}()
		require.Eventually(t, func() bool {
			var waits bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))`).Scan(&waits)
			return err == nil && waits
		}, time.Minute, 5*time.Millisecond)
		for _, statement := range []string{"SET LOCAL ROLE weir_app", "SELECT set_config('weir.tenant_id', '" + a.TenantID().String() + "', true)"} {
			_, err = tx.Exec(ctx, statement)
			require.NoError(t, err)
		}
		_, err = tx.Exec(ctx, "SELECT FROM audit_heads FOR UPDATE NOWAIT")
		require.ErrorContains(t, err, "could not obtain lock", "its trail is not written yet")
	})
	require.NoError(t, <-ended)
	_, version := documentOf(t, d.Store, a)
	require.Equal(t, version, versionsOf(t, d, a).policy)
	r, err := d.Store.RuleBySlug(t.Context(), a, sample(t).Rules[0].Slug)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Version, version)
}
