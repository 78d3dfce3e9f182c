package tenants_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func fixedRule(slug string) limit.Rule {
	r := limit.NewRule(slug)
	r.Algorithm, r.Limit, r.Window = limit.FixedWindow, 5, limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	return r
}

// A rule for which subjects have credits is not deleted, neither alone nor by a document.
func TestRuleWithCreditsStays(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	for _, slug := range []string{"api", "other"} {
		_, err := s.CreateRule(t.Context(), a, fixedRule(slug))
		require.NoError(t, err)
	}
	var grants []tenants.Credits
	for _, subject := range []string{"ada", "ada", "bob"} {
		g, _, err := s.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		grants = append(grants, g)
	}
	refused := func(words string) {
		t.Helper()
		var conflict *tenants.ConflictError
		require.ErrorAs(t, s.DeleteRule(t.Context(), a, "api", tenants.Match{}), &conflict)
		require.Equal(t, tenants.CodeConflict, conflict.Code)
		require.Contains(t, conflict.Detail, words)
	}
	refused("2 subjects have credits")
	doc, _, err := s.Document(t.Context(), a, false)
	require.NoError(t, err)
	for i := range doc.Rules {
		if doc.Rules[i].Slug == "api" {
			doc.Rules = append(doc.Rules[:i], doc.Rules[i+1:]...)
			break
		}
	}
	for _, preview := range []bool{true, false} {
		_, err = s.ApplyDocument(t.Context(), a, doc, tenants.Apply{Prune: true, DryRun: preview})
		requireInvalid(t, err, "rules")
		require.ErrorContains(t, err, "2 subjects have credits")
	}
	reach, err := s.RuleReach(t.Context(), a, "api")
	require.NoError(t, err)
	require.Equal(t, int64(2), reach.Credits)
	for i, g := range grants {
		require.NoError(t, s.RevokeCredits(t.Context(), a, g.Subject, g.ID, tenants.Match{}))
		if i == 1 {
			refused("1 subject has credits")
		}
	}
	_, err = s.ApplyDocument(t.Context(), a, doc, tenants.Apply{Prune: true, DryRun: true})
	require.NoError(t, err)
	require.NoError(t, s.DeleteRule(t.Context(), a, "api", tenants.Match{}))
	require.NoError(t, s.DeleteRule(t.Context(), a, "other", tenants.Match{}), "nobody has credits for it")
}

// A rule for which subjects have credits is not changed so that checks could not spend them, on any
// way. The error has the field that prevents it, and how many subjects have credits.
func TestRuleKeepsCreditsSpendable(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	_, err := s.CreateRule(t.Context(), a, fixedRule("api"))
	require.NoError(t, err)
	_, err = s.CreateRule(t.Context(), a, fixedRule("other"))
	require.NoError(t, err)
	var grants []tenants.Credits
	for _, subject := range []string{"ada", "bob"} {
		g, _, err := s.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		grants = append(grants, g)
	}
	changes := map[string]func(*limit.Rule){
		"algorithm":   func(r *limit.Rule) { r.Algorithm, r.By = limit.TokenBucket, []string{"subject"} },
		"by":          func(r *limit.Rule) { r.Algorithm, r.By = limit.SlidingWindowCounter, []string{"resource"} },
		"penalty":     func(r *limit.Rule) { r.Penalty = limit.Duration{Text: "1m", MS: 60_000} },
		"consistency": func(r *limit.Rule) { r.Consistency = limit.Leased },
	}
	ways := map[string]func(slug string, change func(*limit.Rule)) error{
		"PATCH": func(slug string, change func(*limit.Rule)) error {
			_, err := s.EditRule(t.Context(), a, slug, tenants.Match{}, func(r *limit.Rule) error { change(r); return nil })
			return err
		},
		"PUT": func(slug string, change func(*limit.Rule)) error {
			r := fixedRule(slug)
			change(&r)
			_, _, err := s.PutRule(t.Context(), a, r, tenants.Match{})
			return err
		},
	}
	for name, preview := range map[string]bool{"document": false, "preview of a document": true} {
		ways[name] = func(slug string, change func(*limit.Rule)) error {
			r := fixedRule(slug)
			change(&r)
			_, err := s.ApplyDocument(t.Context(), a, tenants.Document{Rules: []limit.Rule{r}}, tenants.Apply{DryRun: preview})
			return err
		}
	}
	for way, apply := range ways {
		for field, change := range changes {
			err := apply("api", change)
			var wrong *tenants.InvalidError
			require.ErrorAs(t, err, &wrong, "%s of %s", way, field)
			require.Len(t, wrong.Fields, 1, "%s of %s", way, field)
			require.Contains(t, []string{field, "rules.0." + field}, wrong.Fields[0].Field, way)
			require.Contains(t, wrong.Fields[0].Message, "2 subjects have credits", way)
			_, _, err = s.PutRule(t.Context(), a, fixedRule("other"), tenants.Match{}) // undoes the change before
			require.NoError(t, err)
			require.NoError(t, apply("other", change), "%s of %s: nobody has credits for it", way, field)
		}
		require.NoError(t, apply("api", func(r *limit.Rule) { r.Limit, r.Mode = 7, limit.Off }), way)
	}
	for _, g := range grants {
		require.NoError(t, s.RevokeCredits(t.Context(), a, g.Subject, g.ID, tenants.Match{}))
	}
	require.NoError(t, ways["document"]("api", changes["by"]), "nothing is left of them")
}

// Credits are granted once for a reference, listed newest first, and revoked by an editor. Servers
// load those that may be spent, in the order in which they are.
func TestCredits(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	_, err := s.CreateRule(t.Context(), a, fixedRule("api"))
	require.NoError(t, err)
	_, err = s.CreateRule(t.Context(), a, rule("bucket"))
	require.NoError(t, err)
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	late, created, err := s.GrantCredits(t.Context(), a, "ada", tenants.NewCredits{Rule: "api", Units: 10, Reason: "a gift"})
	require.NoError(t, err)
	require.True(t, created)
	first := tenants.NewCredits{Rule: "api", Units: 5, ExpiresAt: &soon, Reference: "invoice 7"}
	early, _, err := s.GrantCredits(t.Context(), a, "ada", first)
	require.NoError(t, err)
	again, created, err := s.GrantCredits(t.Context(), a, "ada", first)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, early.ID, again.ID)
	var conflict *tenants.ConflictError
	first.Units = 6
	_, _, err = s.GrantCredits(t.Context(), a, "ada", first)
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, tenants.CodeReferenceUsed, conflict.Code)

	past := time.Now().Add(-time.Second)
	for field, n := range map[string]tenants.NewCredits{
		"units":      {Rule: "api"},
		"expires_at": {Rule: "api", Units: 1, ExpiresAt: &past},
		"reference":  {Rule: "api", Units: 1, Reference: "\x00"},
		"rule":       {Rule: "bucket", Units: 1},
	} {
		_, _, err := s.GrantCredits(t.Context(), a, "ada", n)
		var wrong *tenants.InvalidError
		require.ErrorAs(t, err, &wrong, field)
		require.Equal(t, field, wrong.Fields[0].Field)
	}

	loaded := func() (grants []check.GrantData) {
		_, _, err := s.ListSubjects(t.Context(), a.TenantID(), "", func(d check.SubjectData) { grants = append(grants, d.Grants...) })
		require.NoError(t, err)
		return grants
	}
	require.Equal(t, []check.GrantData{
		{Rule: "api", Grant: limit.Grant{ID: limit.GrantID(early.ID), Units: 5, ExpiresMS: soon.UnixMilli()}},
		{Rule: "api", Grant: limit.Grant{ID: limit.GrantID(late.ID), Units: 10}},
	}, loaded())
	list, _, err := s.Credits(t.Context(), a, "ada", tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, []tenants.Credits{early, late}, list)
	_, err = s.EditRule(t.Context(), a, "api", tenants.Match{}, func(r *limit.Rule) error {
		r.Consistency = limit.Leased
		return nil
	})
	var wrong *tenants.InvalidError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "consistency", wrong.Fields[0].Field)

	// Another tenant sees and revokes nothing.
	require.ErrorIs(t, s.RevokeCredits(t.Context(), b, "ada", early.ID, tenants.Match{}), tenants.ErrNotFound)
	_, err = s.CreditsByID(t.Context(), b, "ada", early.ID)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.RevokeCredits(t.Context(), a, "eve", early.ID, tenants.Match{}), tenants.ErrNotFound)

	require.NoError(t, s.RevokeCredits(t.Context(), a, "ada", early.ID, tenants.Match{}))
	require.NoError(t, s.RevokeCredits(t.Context(), a, "ada", early.ID, tenants.Match{}))
	require.Len(t, loaded(), 1)
	gone, err := s.CreditsByID(t.Context(), a, "ada", early.ID)
	require.NoError(t, err)
	require.NotNil(t, gone.RevokedAt)
	require.Zero(t, gone.Balance(time.Now()))
	entries, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Kind: "credits"}, tenants.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.Equal(t, "revoke", entries[0].Action)
	require.Equal(t, "a gift", entries[2].Reason)
}

// What the counters say is stored as it is, once or often, and never less than before.
func TestSettleCredits(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	_, err := s.CreateRule(t.Context(), a, fixedRule("api"))
	require.NoError(t, err)
	grant, _, err := s.GrantCredits(t.Context(), a, "ada", tenants.NewCredits{Rule: "api", Units: 10})
	require.NoError(t, err)
	keys, counters := check.NewKeys([16]byte{3}), engine.NewMemory(engine.MemoryOptions{})
	done, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, tenants.CreditsSettled{Opened: 1}, done)

	key := keys.CreditsKey(a.TenantID(), 1, "ada", "api")
	rule := fixedRule("api")
	call := &engine.Call{Cost: 7, Counters: []engine.Counter{{
		Key: key, Numbers: rule.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: keys.CreditsOutboxes(a.TenantID(), 1)[0], Grants: []limit.Grant{{ID: limit.GrantID(grant.ID), Units: 10}},
		},
	}}}
	counters.Evaluate(t.Context(), call)
	require.True(t, call.Outcome.Allowed)
	spent := func() int64 {
		c, err := s.CreditsByID(t.Context(), a, "ada", grant.ID)
		require.NoError(t, err)
		return c.Spent
	}
	broken := errors.New("gone")
	_, err = s.SettleCredits(t.Context(), keys, &failingCredits{counters, broken}, []uuid.UUID{a.TenantID()})
	require.ErrorIs(t, err, broken, "stored, and not settled")
	require.EqualValues(t, 2, spent())
	done, err = s.SettleCredits(t.Context(), keys, counters, []uuid.UUID{a.TenantID()})
	require.NoError(t, err)
	require.Equal(t, tenants.CreditsSettled{Settled: 1}, done)
	require.EqualValues(t, 2, spent())
	call.Cost = 4 // by a server that was killed before it could store the total
	counters.Evaluate(t.Context(), call)
	done, last, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{Settled: a.TenantID()})
	require.NoError(t, err)
	require.Zero(t, done, "behind the tenant")
	require.Zero(t, last, "no more tenants")
	done, _, err = s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, tenants.CreditsSettled{Settled: 1}, done)
	require.EqualValues(t, 6, spent())

	// A counter store that has lost everything learns what was spent.
	empty := engine.NewMemory(engine.MemoryOptions{})
	opened, err := s.OpenCredits(t.Context(), keys, empty, a.TenantID(), tenants.CreditsOf{Subject: "ada", Rule: "api"})
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	call.Cost = 0
	empty.Evaluate(t.Context(), call)
	require.EqualValues(t, 4, call.Outcome.Verdicts[0].Credits)
}

// failingCredits fails to settle.
type failingCredits struct {
	engine.CreditStore
	err error
}

func (f *failingCredits) SettleCredits(context.Context, string, []limit.Spent) error { return f.err }

// Grants are kept for 400 days after nothing was left of them. An open grant stays, however old.
func TestPurgeCredits(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s, ctx := d.Store, t.Context()
	a, _ := d.Tenant("tenant-a")
	mustRule(t, s, a, fixedRule("api"))
	day := 24 * time.Hour
	grant := func(subject string, n tenants.NewCredits) tenants.Credits {
		n.Rule = "api"
		c, _, err := s.GrantCredits(ctx, a, subject, n)
		require.NoError(t, err)
		return c
	}
	ends := now.now().Add(day)
	grant("expires", tenants.NewCredits{Units: 1, ExpiresAt: &ends, Reference: "invoice 7"})
	revoked := grant("revoked", tenants.NewCredits{Units: 1})
	require.NoError(t, s.RevokeCredits(ctx, a, "revoked", revoked.ID, tenants.Match{}))
	grant("open", tenants.NewCredits{Units: 1})
	spent := grant("spent", tenants.NewCredits{Units: 3})

	left := func() (subjects []string) {
		_, err := s.PurgeCredits(ctx)
		require.NoError(t, err)
		for _, subject := range []string{"expires", "revoked", "open", "spent"} {
			list, _, err := s.Credits(ctx, a, subject, tenants.Page{})
			require.NoError(t, err)
			if len(list) > 0 {
				subjects = append(subjects, subject)
			}
		}
		return subjects
	}
	now.nowMS += (100 * day).Milliseconds()
	keys, counters := check.NewKeys([16]byte{3}), engine.NewMemory(engine.MemoryOptions{})
	_, _, err := s.SweepCredits(ctx, keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	key, r := keys.CreditsKey(a.TenantID(), 1, "spent", "api"), fixedRule("api")
	call := &engine.Call{Cost: 8, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
		Key: key, Outbox: keys.CreditsOutboxes(a.TenantID(), 1)[0], Grants: []limit.Grant{{ID: limit.GrantID(spent.ID), Units: 3}},
	}}}}
	counters.Evaluate(ctx, call)
	require.True(t, call.Outcome.Allowed)
	_, _, err = s.SweepCredits(ctx, keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, []string{"expires", "revoked", "open", "spent"}, left())

	now.nowMS += (300*day + time.Hour).Milliseconds()
	require.Equal(t, []string{"expires", "open", "spent"}, left(), "400 days after it was revoked")
	now.nowMS += day.Milliseconds()
	require.Equal(t, []string{"open", "spent"}, left(), "400 days after it has expired")
	now.nowMS += (100 * day).Milliseconds()
	require.Equal(t, []string{"open"}, left(), "400 days after the last unit was spent")
	now.nowMS += (4000 * day).Milliseconds()
	require.Equal(t, []string{"open"}, left())
}

// totals is a counter store whose totals of all grants are the same, and grow with each round. It
// returns them in the order of the list, as a hash of Redis returns its fields in any order.
type totals struct {
	engine.CreditStore
	of    []limit.GrantID
	units int64
}

func (c *totals) SpentCredits(context.Context, []string, int) ([][]limit.Spent, []error) {
	c.units++
	out := make([]limit.Spent, len(c.of))
	for i, id := range c.of {
		out[i] = limit.Spent{ID: id, Units: c.units}
	}
	return [][]limit.Spent{out}, []error{nil}
}

func (*totals) OpenCredits(context.Context, ...*engine.Opening) (int, error) { return 0, nil }

func (*totals) SettleCredits(context.Context, string, []limit.Spent) error { return nil }

// Two servers store what a tenant has spent, in opposite orders, without a deadlock.
func TestSettleCreditsInAnyOrder(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, keys := d.Store, check.NewKeys([16]byte{1})
	_, err := s.CreateRule(t.Context(), a, fixedRule("api"))
	require.NoError(t, err)
	var ids []limit.GrantID
	for range 20 {
		g, _, err := s.GrantCredits(t.Context(), a, "ada", tenants.NewCredits{Rule: "api", Units: 1_000_000})
		require.NoError(t, err)
		ids = append(ids, limit.GrantID(g.ID))
	}
	backwards := slices.Clone(ids)
	slices.Reverse(backwards)
	var servers errgroup.Group
	for _, order := range [][]limit.GrantID{ids, backwards} {
		counters := &totals{of: order}
		servers.Go(func() error {
			for range 100 {
				if _, err := s.SettleCredits(t.Context(), keys, counters, []uuid.UUID{a.TenantID()}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, servers.Wait())
	list, _, err := s.Credits(t.Context(), a, "ada", tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 20)
	for _, c := range list {
		require.EqualValues(t, 100, c.Spent)
	}
}

// probed calls probe while totals are being settled.
type probed struct {
	engine.CreditStore
	probe func()
}

func (c *probed) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	c.probe()
	return c.CreditStore.SpentCredits(ctx, outboxes, most)
}

// A sweep that settles totals holds no locks of grants that it has opened: another server could
// wait for them, and hold those that the sweep waits for.
func TestSweepHoldsNoOpenedGrants(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, keys := d.Store, check.NewKeys([16]byte{1})
	_, err := s.CreateRule(t.Context(), a, fixedRule("api"))
	require.NoError(t, err)
	g, _, err := s.GrantCredits(t.Context(), a, "ada", tenants.NewCredits{Rule: "api", Units: 5})
	require.NoError(t, err)
	probes := 0
	counters := &probed{engine.NewMemory(engine.MemoryOptions{}), func() {
		probes++
		d.Exec("SELECT FROM credit_grants WHERE id = $1 FOR UPDATE NOWAIT", g.ID)
	}}
	done, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{done.Opened, probes})
}

// A tenant whose grants are locked, as while it deletes many subjects, keeps nobody's totals from
// being stored. Its own stay in the outbox, and are stored when the lock has ended. Before, a
// statement for all tenants waited for the lock, and failed.
func TestLockedCreditsHoldUpNobody(t *testing.T) {
	t.Parallel()
	d, a, b, grants := grantsOf(t)
	s, keys, counters := d.Store, check.NewKeys([16]byte{3}), engine.NewMemory(engine.MemoryOptions{})
	_, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	rule, actors := fixedRule("api"), []tenants.Actor{a, b}
	for i, actor := range actors {
		key := keys.CreditsKey(actor.TenantID(), 1, "ada", "api")
		call := &engine.Call{Cost: 7, Counters: []engine.Counter{{Key: key, Numbers: rule.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: keys.CreditsOutboxes(actor.TenantID(), 1)[0], Grants: []limit.Grant{{ID: limit.GrantID(grants[i].ID), Units: 10}},
		}}}}
		counters.Evaluate(t.Context(), call)
		require.True(t, call.Outcome.Allowed)
	}
	spent := func(i int) int64 {
		c, err := s.CreditsByID(t.Context(), actors[i], "ada", grants[i].ID)
		require.NoError(t, err)
		return c.Spent
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "DELETE FROM credit_grants WHERE tenant_id = $1", a.TenantID())
		require.NoError(t, err)
		done, err := s.SettleCredits(t.Context(), keys, counters, []uuid.UUID{a.TenantID(), b.TenantID()})
		require.NoError(t, err)
		require.Equal(t, tenants.CreditsSettled{Settled: 1}, done)
		require.Equal(t, []int64{0, 2}, []int64{spent(0), spent(1)})
		require.NoError(t, tx.Rollback(ctx))
	})
	done, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, tenants.CreditsSettled{Settled: 1}, done)
	require.Equal(t, []int64{2, 2}, []int64{spent(0), spent(1)})
}
