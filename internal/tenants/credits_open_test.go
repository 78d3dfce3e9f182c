package tenants_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// insertGrants inserts grants of one unit of a registered subject for its rule "api", as they are
// after years of use. column has a value in each of them.
func insertGrants(d *tenantstest.Database, a tenants.Actor, subject string, count int, column, value string) {
	d.Exec(fmt.Sprintf(`INSERT INTO credit_grants (tenant_id, id, subject, rule_id, units, created_at, %s)
		SELECT $1, overlay(gen_random_uuid()::text PLACING
			substr(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - n), 12, '0'), 1, 8) || '-' ||
			substr(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - n), 12, '0'), 9, 4) FROM 1 FOR 13)::uuid,
			$2, r.id, 1, now(), %s
		FROM generate_series(1, $3::int) n, rules r WHERE r.tenant_id = $1 AND r.slug = 'api'`, column, value),
		a.TenantID(), subject, count)
}

// openings is a counter store that notes how grants are opened, and fails for some keys.
type openings struct {
	engine.CreditStore
	broken string
	seen   []*engine.Opening
	calls  int
}

func (o *openings) OpenCredits(ctx context.Context, openings ...*engine.Opening) (int, error) {
	o.calls++
	var others []*engine.Opening
	var err error
	for _, opening := range openings {
		if opening.Key == o.broken {
			opening.Err = errors.New("gone")
			err = opening.Err
			continue
		}
		others = append(others, opening)
	}
	o.seen = append(o.seen, others...)
	opened, failed := o.CreditStore.OpenCredits(ctx, others...)
	return opened, cmp.Or(err, failed)
}

// grantsOf returns two tenants with a rule and a grant.
func grantsOf(t *testing.T) (d *tenantstest.Database, a, b tenants.Actor, grants []tenants.Credits) {
	t.Helper()
	d, a, b = two(t)
	for _, actor := range []tenants.Actor{a, b} {
		mustRule(t, d.Store, actor, fixedRule("api"))
		g, _, err := d.Store.GrantCredits(t.Context(), actor, "ada", tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		grants = append(grants, g)
	}
	return d, a, b, grants
}

// New grants of all tenants are opened in each round, however many older ones a tenant has. Those
// of which nothing is left are not opened.
func TestNewCreditsOfManyTenants(t *testing.T) {
	t.Parallel()
	d, a, b, grants := grantsOf(t)
	insertGrants(d, a, "ada", 2000, "revoked_at", "now()")
	keys := check.NewKeys([16]byte{3})
	counters := &openings{CreditStore: engine.NewMemory(engine.MemoryOptions{})}
	done, at, err := d.Store.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.True(t, done.More)
	require.Len(t, counters.seen, 1)
	require.Equal(t, keys.CreditsKey(b.TenantID(), 1, "ada", "api"), counters.seen[0].Key)
	rounds := 1
	for ; done.More; rounds++ {
		done, at, err = d.Store.SweepCredits(t.Context(), keys, counters, at)
		require.NoError(t, err)
	}
	require.InDelta(t, 41, rounds, 2)
	require.Len(t, counters.seen, 2)
	require.Equal(t, keys.CreditsKey(a.TenantID(), 1, "ada", "api"), counters.seen[1].Key)
	require.Equal(t, []limit.Spent{{ID: limit.GrantID(grants[0].ID)}}, counters.seen[1].Grants)
	require.True(t, counters.seen[1].Whole)
}

// A tenant whose grants cannot be opened stops neither those of others nor the settlement.
func TestNewCreditsOfABrokenTenant(t *testing.T) {
	t.Parallel()
	d, a, b, grants := grantsOf(t)
	keys := check.NewKeys([16]byte{3})
	for i, broken := range []tenants.Actor{a, b} {
		other, of := b, grants[1]
		if i == 1 {
			other, of = a, grants[0]
		}
		d.Exec("UPDATE credit_grants SET opened = false")
		memory := engine.NewMemory(engine.MemoryOptions{})
		counters := &openings{CreditStore: memory, broken: keys.CreditsKey(broken.TenantID(), 1, "ada", "api")}
		_, _, err := d.Store.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
		require.ErrorContains(t, err, "of 1 tenants, the last one "+broken.TenantID().String())
		require.Len(t, counters.seen, 1)

		r, key := fixedRule("api"), counters.seen[0].Key
		call := &engine.Call{Cost: 8, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: counters.seen[0].Outbox, Grants: []limit.Grant{{ID: limit.GrantID(of.ID), Units: 10}},
		}}}}
		memory.Evaluate(t.Context(), call)
		require.True(t, call.Outcome.Allowed)
		done, _, err := d.Store.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
		require.Error(t, err)
		require.Equal(t, 1, done.Settled)
		settled, err := d.Store.CreditsByID(t.Context(), other, "ada", of.ID)
		require.NoError(t, err)
		require.EqualValues(t, 3, settled.Spent)
	}
}

// silent is a counter store that cannot be reached, for some of its operations.
type silent struct {
	engine.CreditStore
	opens, closes, reads, settles bool
}

// errSilent is as of a connection to Redis.
var errSilent = &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}

func (s *silent) OpenCredits(ctx context.Context, o ...*engine.Opening) (int, error) {
	if s.opens {
		for _, opening := range o {
			opening.Err = errSilent
		}
		return 0, errSilent
	}
	return s.CreditStore.OpenCredits(ctx, o...)
}

func (s *silent) CloseCredits(ctx context.Context, o ...*engine.Opening) []error {
	if s.closes {
		return slices.Repeat([]error{errSilent}, len(o))
	}
	return s.CreditStore.CloseCredits(ctx, o...)
}

func (s *silent) SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error) {
	if s.reads {
		return make([][]limit.Spent, len(outboxes)), slices.Repeat([]error{errSilent}, len(outboxes))
	}
	return s.CreditStore.SpentCredits(ctx, outboxes, most)
}

func (s *silent) SettleCredits(ctx context.Context, outbox string, totals []limit.Spent) error {
	if s.settles {
		return errSilent
	}
	return s.CreditStore.SettleCredits(ctx, outbox, totals)
}

// Counters that cannot be reached are not taken for Postgres, also in one of its transactions.
func TestCreditsNameWhatIsUnavailable(t *testing.T) {
	t.Parallel()
	d, a, _, grants := grantsOf(t)
	keys := check.NewKeys([16]byte{3})
	memory := engine.NewMemory(engine.MemoryOptions{})
	counters := &silent{CreditStore: memory}
	sweep := func() error {
		_, _, err := d.Store.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
		return err
	}
	isSilent := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, check.ErrCountersUnavailable)
		require.ErrorIs(t, err, errSilent)
		require.NotErrorIs(t, err, tenants.ErrUnavailable)
	}
	counters.opens = true
	isSilent(sweep())
	of := tenants.CreditsOf{Subject: "ada", Rule: "api"}
	_, err := d.Store.OpenCredits(t.Context(), keys, counters, a.TenantID(), of)
	isSilent(err)
	counters.opens, counters.reads = false, true
	isSilent(sweep())

	counters.reads, counters.settles = false, true
	key, outbox := keys.CreditsKey(a.TenantID(), 1, "ada", "api"), keys.CreditsOutboxes(a.TenantID(), 1)[0]
	r := fixedRule("api")
	call := &engine.Call{Cost: r.Limit + 1, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
		Key: key, Outbox: outbox, Grants: []limit.Grant{{ID: limit.GrantID(grants[0].ID), Units: 10}},
	}}}}
	memory.Evaluate(t.Context(), call)
	require.True(t, call.Outcome.Allowed)
	isSilent(sweep())

	counters.settles, counters.closes = false, true
	d.Exec("UPDATE tenants SET partitions = 64, partitions_before = 1, partitions_changed_at = now() WHERE id = $1", a.TenantID())
	for n := 0; of.Subject == "ada"; n++ {
		subject := fmt.Sprint("s", n)
		if keys.CreditsKey(a.TenantID(), 1, subject, "api") != keys.CreditsKey(a.TenantID(), 64, subject, "api") {
			of.Subject = subject
		}
	}
	_, _, err = d.Store.GrantCredits(t.Context(), a, of.Subject, tenants.NewCredits{Rule: "api", Units: 10})
	require.NoError(t, err)
	_, err = d.Store.OpenCredits(t.Context(), keys, counters, a.TenantID(), of)
	isSilent(err)
	isSilent(sweep())
	counters.closes = false
	require.NoError(t, sweep())
}

// New grants that a tenant has locked, such as by the deletion of many subjects, keep neither those
// of others waiting nor the round from its end. They are opened, and opened again when the lock has
// ended.
func TestLockedNewCreditsHoldUpNobody(t *testing.T) {
	t.Parallel()
	d, a, _, _ := grantsOf(t)
	keys := check.NewKeys([16]byte{3})
	counters := &openings{CreditStore: engine.NewMemory(engine.MemoryOptions{})}
	sweep := func() tenants.CreditsSettled {
		done, _, err := d.Store.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
		require.NoError(t, err)
		return done
	}
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "DELETE FROM credit_grants WHERE tenant_id = $1", a.TenantID())
		require.NoError(t, err)
		require.Equal(t, tenants.CreditsSettled{Opened: 1}, sweep(), "that of the other tenant; no round follows at once")
		require.NoError(t, tx.Rollback(ctx))
	})
	require.Len(t, counters.seen, 2)
	require.Equal(t, tenants.CreditsSettled{Opened: 1}, sweep())
	require.Equal(t, tenants.CreditsSettled{}, sweep())
	require.Equal(t, keys.CreditsKey(a.TenantID(), 1, "ada", "api"), counters.seen[2].Key)
}

// The counters are told of what is left, and of a few grants that were spent last, however many
// grants were spent before.
func TestCreditsToOpenAreFew(t *testing.T) {
	t.Parallel()
	d, a, _, grants := grantsOf(t)
	insertGrants(d, a, "ada", 3000, "spent, spent_at", "1, now() - n * interval '1 second'")
	counters := &openings{CreditStore: engine.NewMemory(engine.MemoryOptions{})}
	opened, err := d.Store.OpenCredits(t.Context(), check.NewKeys([16]byte{3}), counters, a.TenantID(), tenants.CreditsOf{Subject: "ada", Rule: "api"})
	require.NoError(t, err)
	require.Equal(t, 1+limit.MaxGrants, opened)
	require.Len(t, counters.seen, 1)
	o := counters.seen[0]
	require.Contains(t, o.Grants, limit.Spent{ID: limit.GrantID(grants[0].ID)})
	require.True(t, o.Whole)
	require.Less(t, o.AskedUS, o.ReadUS)
}

// The grants of several subjects of a tenant are read together and opened together. A subject
// without grants, and one of another tenant, is left out.
func TestCreditsOfManySubjects(t *testing.T) {
	t.Parallel()
	d, a, b, grants := grantsOf(t)
	of := []tenants.CreditsOf{{Subject: "ada", Rule: "api"}, {Subject: "nobody", Rule: "api"}, {Subject: "ada", Rule: "none"}, {Subject: "theirs", Rule: "api"}}
	want := map[string]limit.GrantID{}
	keys := check.NewKeys([16]byte{3})
	want[keys.CreditsKey(a.TenantID(), 1, "ada", "api")] = limit.GrantID(grants[0].ID)
	for i := range 20 {
		subject := fmt.Sprintf("user_%d", i)
		g, _, err := d.Store.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		want[keys.CreditsKey(a.TenantID(), 1, subject, "api")] = limit.GrantID(g.ID)
		of = append(of, tenants.CreditsOf{Subject: subject, Rule: "api"})
	}
	_, _, err := d.Store.GrantCredits(t.Context(), b, "theirs", tenants.NewCredits{Rule: "api", Units: 10})
	require.NoError(t, err)
	counters := &openings{CreditStore: engine.NewMemory(engine.MemoryOptions{})}
	opened, err := d.Store.OpenCredits(t.Context(), keys, counters, a.TenantID(), of...)
	require.NoError(t, err)
	require.Equal(t, len(want), opened)
	require.Equal(t, 1, counters.calls)
	got := map[string]limit.GrantID{}
	for _, o := range counters.seen {
		require.Len(t, o.Grants, 1)
		require.True(t, o.Whole)
		require.Less(t, o.AskedUS, o.ReadUS)
		got[o.Key] = o.Grants[0].ID
	}
	require.Equal(t, want, got)
}

// A subject gets a bounded number of grants a day. An old one counts no more.
func TestGrantsOfADay(t *testing.T) {
	t.Parallel()
	d, a, b, _ := grantsOf(t)
	for _, actor := range []tenants.Actor{a, b} {
		insertGrants(d, actor, "ada", 4999, "revoked_at", "now()")
	}
	grant := func(a tenants.Actor, subject string) error {
		_, _, err := d.Store.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 1})
		return err
	}
	err := grant(a, "ada")
	requireInvalid(t, err, "subject")
	require.ErrorContains(t, err, "has had 5000 grants in the last 24 hours")
	require.NoError(t, grant(a, "bob"), "another subject")
	d.Exec(`UPDATE credit_grants SET id = overlay(id::text PLACING '00' FROM 1 FOR 2)::uuid WHERE tenant_id = $1`, b.TenantID())
	require.NoError(t, grant(b, "ada"), "long ago")
}

// Counters that have returned with smaller totals than were settled are told of the greater ones,
// also for many subjects and if it fails at first.
func TestCreditsBehindAreToldAgain(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRule(t, d.Store, a, fixedRule("api"))
	keys := check.NewKeys([16]byte{3})
	memory := engine.NewMemory(engine.MemoryOptions{})
	const subjects = 25
	left := func(subject string, cost int64) (left int64) {
		list, _, err := d.Store.Credits(t.Context(), a, subject, tenants.Page{Limit: 10})
		require.NoError(t, err)
		r, key := fixedRule("api"), keys.CreditsKey(a.TenantID(), 1, subject, "api")
		call := &engine.Call{Cost: cost, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: keys.CreditsOutboxes(a.TenantID(), 1)[0], Grants: []limit.Grant{{ID: limit.GrantID(list[0].ID), Units: 10}},
		}}}}
		memory.Evaluate(t.Context(), call)
		require.NoError(t, call.Err)
		return call.Outcome.Verdicts[0].Credits
	}
	settle := func(counters engine.CreditStore) tenants.CreditsSettled {
		done, err := d.Store.SettleCredits(t.Context(), keys, counters, []limit.TenantID{a.TenantID()})
		if counters == memory {
			require.NoError(t, err)
		} else {
			require.Error(t, err)
		}
		return done
	}
	name := func(n int) string { return fmt.Sprintf("subject-%02d", n) }
	for n := range subjects {
		_, _, err := d.Store.GrantCredits(t.Context(), a, name(n), tenants.NewCredits{Rule: "api", Units: 10})
		require.NoError(t, err)
		_, err = d.Store.OpenCredits(t.Context(), keys, memory, a.TenantID(), tenants.CreditsOf{Subject: name(n), Rule: "api"})
		require.NoError(t, err)
		require.EqualValues(t, 9, left(name(n), 6), "the window has 5")
	}
	d.Exec("UPDATE credit_grants SET spent = 7")
	broken := &openings{CreditStore: memory, broken: keys.CreditsKey(a.TenantID(), 1, name(0), "api")}
	require.Equal(t, tenants.CreditsSettled{Settled: 19, Reopened: 19}, settle(broken))
	require.Equal(t, tenants.CreditsSettled{Settled: 6, Reopened: 6}, settle(memory))
	require.Zero(t, settle(memory))
	for n := range subjects {
		require.EqualValues(t, 3, left(name(n), 0))
	}

	// What others have settled in the meantime is told once more, which changes nothing. A total
	// that is greater is settled as ever.
	require.EqualValues(t, 2, left(name(0), 1))
	require.EqualValues(t, 1, left(name(1), 2))
	d.Exec("UPDATE credit_grants SET spent = 8 WHERE subject = $1", name(0))
	require.Equal(t, tenants.CreditsSettled{Settled: 2}, settle(memory))

	// A round tells few of them, and the next one the others.
	d.Exec("UPDATE credit_grants SET spent = 9")
	for n := range subjects {
		left(name(n), 1)
	}
	require.Equal(t, tenants.CreditsSettled{Settled: 22, Reopened: 20, More: true}, settle(memory))
	require.Equal(t, tenants.CreditsSettled{Settled: 3, Reopened: 3}, settle(memory))
}

// While a change of partitions is in progress, credits are opened at the place that decides. What
// was spent there counts when they are opened at the new place, whether it is settled or not, and
// an opening that was read before then opens nothing at the old one.
func TestCreditsOfAChangeOfPartitions(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, keys := d.Store, check.NewKeys([16]byte{3})
	mustRule(t, s, a, fixedRule("api"))
	d.Exec("UPDATE tenants SET partitions = 64, partitions_before = 1, partitions_changed_at = now() WHERE id = $1", a.TenantID())
	memory := engine.NewMemory(engine.MemoryOptions{})
	old, next := "", ""
	subject := ""
	for n := 0; old == next; n++ {
		subject = fmt.Sprint("s", n)
		old, next = keys.CreditsKey(a.TenantID(), 1, subject, "api"), keys.CreditsKey(a.TenantID(), 64, subject, "api")
	}
	g, _, err := s.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 10})
	require.NoError(t, err)
	outbox := func(key string) string { return engine.Retag(keys.CreditsOutboxes(a.TenantID(), 1)[0], key) }
	nowMS := int64(0)
	check := func(key string, cost int64) limit.Verdict {
		nowMS++
		r := fixedRule("api")
		call := &engine.Call{Cost: cost, NowMS: nowMS, Counters: []engine.Counter{{Key: key, Numbers: r.Numbers(), Credits: &engine.Credits{
			Key: key, Outbox: outbox(key), Grants: []limit.Grant{{ID: limit.GrantID(g.ID), Units: 10}},
		}}}}
		memory.Evaluate(t.Context(), call)
		require.NoError(t, call.Err)
		return call.Outcome.Verdicts[0]
	}
	counters := &openings{CreditStore: memory}
	swept, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
	require.NoError(t, err)
	require.Equal(t, 1, swept.Opened)
	stale := *counters.seen[0]
	require.Equal(t, old, stale.Key)
	r := fixedRule("api")
	require.EqualValues(t, 3, check(old, r.Limit+3).CreditsSpent)
	require.True(t, check(next, 0).Unopened)

	d.Exec("UPDATE tenants SET partitions_changed_at = now() - interval '400 days' WHERE id = $1", a.TenantID())
	of := tenants.CreditsOf{Subject: subject, Rule: "api"}
	_, err = s.OpenCredits(t.Context(), keys, counters, a.TenantID(), of)
	require.NoError(t, err)
	require.True(t, check(old, 0).Unopened)
	v := check(next, 0)
	require.False(t, v.Unopened)
	require.EqualValues(t, 7, v.Credits, "what was spent at the old place is not settled, and counts")
	_, err = memory.OpenCredits(t.Context(), &stale)
	require.ErrorIs(t, err, engine.ErrOpenedSince)
	require.True(t, check(old, 0).Unopened)

	_, err = s.SettleCredits(t.Context(), keys, counters, []limit.TenantID{a.TenantID()})
	require.NoError(t, err)
	boxes, errs := memory.SpentCredits(t.Context(), []string{outbox(old), outbox(next)}, 10)
	require.Equal(t, []error{nil, nil}, errs)
	require.Equal(t, [][]limit.Spent{nil, nil}, boxes)
	settled, err := s.CreditsByID(t.Context(), a, subject, g.ID)
	require.NoError(t, err)
	require.EqualValues(t, 3, settled.Spent)
}

// After a change of partitions, the rules of a tenant are read once for all grants of a round whose
// place has changed, and not at all if none has.
func TestCreditsReadRulesOnce(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, keys := d.Store, check.NewKeys([16]byte{3})
	mustRule(t, s, a, fixedRule("api"))
	d.Exec("UPDATE tenants SET partitions = 64, partitions_before = 32, partitions_changed_at = now() WHERE id = $1", a.TenantID())
	place := func(subject string, partitions int) string {
		return keys.CreditsKey(a.TenantID(), partitions, subject, "api")
	}
	moved, others := map[string]string{}, map[string]string{} // the place that decides, by its subject
	for n := 0; len(moved) < 20 || len(others) < 20; n++ {
		subject := fmt.Sprint("s", n)
		of := moved
		if place(subject, 32) == place(subject, 64) {
			of = others
		}
		if len(of) < 20 {
			of[subject] = place(subject, 32)
		}
	}
	statements, err := tenants.CountStatements(t.Context(), s)
	require.NoError(t, err)
	for _, c := range []struct {
		subjects map[string]string
		reads    int
	}{{others, 0}, {moved, 1}} {
		want := map[string]bool{}
		for subject, key := range c.subjects {
			_, _, err := s.GrantCredits(t.Context(), a, subject, tenants.NewCredits{Rule: "api", Units: 10})
			require.NoError(t, err)
			want[key] = true
		}
		counters := &openings{CreditStore: engine.NewMemory(engine.MemoryOptions{})}
		opened := func() map[string]bool {
			got := map[string]bool{}
			for _, o := range counters.seen {
				got[o.Key] = true
			}
			counters.seen = nil
			return got
		}
		statements.Times("PolicyRules")
		done, _, err := s.SweepCredits(t.Context(), keys, counters, tenants.CreditsSweep{})
		require.NoError(t, err)
		require.Equal(t, 20, done.Opened)
		require.Equal(t, want, opened())
		require.Equal(t, c.reads, statements.Times("PolicyRules"))

		var of []tenants.CreditsOf
		for subject := range c.subjects {
			of = append(of, tenants.CreditsOf{Subject: subject, Rule: "api"})
		}
		_, err = s.OpenCredits(t.Context(), keys, counters, a.TenantID(), of...)
		require.NoError(t, err)
		require.Equal(t, want, opened())
		require.Equal(t, c.reads, statements.Times("PolicyRules"))
	}
}
