package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// insertCounterChanges gives a tenant a number of pending changes, of subjects s1, s2 and so on.
const insertCounterChanges = `INSERT INTO counter_changes (tenant_id, subject, action, from_plan, from_version, to_plan, to_version)
	SELECT $1, 's' || n, 'reset', 'free', 1, 'pro', 1 FROM generate_series(1, $2::int) AS n`

// Every way to give a subject another plan creates a task for its counters, if the plan requires
// it, until the task is executed.
func TestCounterChanges(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for slug, onChange := range map[string]string{"free": "", "pro": tenants.OnChangeScale, "max": tenants.OnChangeReset} {
		for _, actor := range []tenants.Actor{a, b} {
			p, err := s.CreatePlan(t.Context(), actor, tenants.Plan{Slug: slug, OnChange: onChange})
			require.NoError(t, err)
			require.NotEmpty(t, p.OnChange)
		}
	}
	for _, actor := range []tenants.Actor{a, b} {
		_, err := s.EditPlan(t.Context(), actor, "free", tenants.Match{}, func(p *tenants.Plan) error { p.Default = true; return nil })
		require.NoError(t, err)
	}
	put := func(subject, plan string) {
		_, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: subject, Plan: plan}, tenants.Match{})
		require.NoError(t, err)
	}
	put("ada", "free") // the default plan, which it had
	put("ada", "pro")
	put("ada", "pro")
	put("ada", "max")
	put("bob", "max")
	require.NoError(t, s.DeleteSubject(t.Context(), a, "bob", tenants.Match{})) // free carries
	pro := "pro"
	_, err := s.ImportSubjects(t.Context(), a, []tenants.SubjectLine{{Line: 1, Subject: "ada", Plan: &pro}, {Line: 2, Subject: "eve", Plan: &pro}}, tenants.ImportMode{})
	require.NoError(t, err)
	_, err = s.ApplyDocument(t.Context(), b, tenants.Document{Subjects: []tenants.Subject{{Subject: "zoe", Plan: "max"}}}, tenants.Apply{})
	require.NoError(t, err)

	type change struct {
		tenant   uuid.UUID
		subject  string
		reset    bool
		from, to string
	}
	var got []change
	failing := true
	var mu sync.Mutex
	carry := func(tenant uuid.UUID, c check.CounterChange) error {
		mu.Lock()
		defer mu.Unlock()
		if failing && len(got) == 2 {
			return errors.New("no counters")
		}
		got = append(got, change{tenant, c.Subject, c.Reset, c.From, c.To})
		return nil
	}
	_, _, err = s.CarryOutCounterChanges(t.Context(), carry)
	require.ErrorContains(t, err, "no counters")
	failing = false
	_, _, err = s.CarryOutCounterChanges(t.Context(), carry)
	require.NoError(t, err)
	done, _, err := s.CarryOutCounterChanges(t.Context(), carry)
	require.NoError(t, err)
	require.Zero(t, done)
	require.Len(t, got, 6)
	of := func(actor tenants.Actor) (out []change) {
		for _, c := range got {
			if c.tenant == actor.TenantID() {
				out = append(out, c)
			}
		}
		return out
	}
	require.Equal(t, []change{
		{a.TenantID(), "ada", false, "free", "pro"}, {a.TenantID(), "ada", true, "pro", "max"}, {a.TenantID(), "bob", true, "free", "max"},
	}, of(a)[:3])
	require.ElementsMatch(t, []change{{a.TenantID(), "ada", false, "max", "pro"}, {a.TenantID(), "eve", false, "free", "pro"}}, of(a)[3:])
	require.Equal(t, []change{{b.TenantID(), "zoe", true, "free", "max"}}, of(b))

	_, err = s.CreatePlan(t.Context(), a, tenants.Plan{Slug: "bad", OnChange: "double", Limits: map[string]limit.Limit{}})
	require.ErrorContains(t, err, "on_change")
}

// A task has the multipliers before and after the change, which may be of both at once. A change of
// the multiplier alone is no change of the plan, whatever its on_change is: the usage is kept.
func TestCounterChangesMultiplied(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	for slug, onChange := range map[string]string{"free": tenants.OnChangeScale, "pro": tenants.OnChangeScale, "max": tenants.OnChangeReset} {
		_, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: slug, OnChange: onChange, Default: slug == "free"})
		require.NoError(t, err)
	}
	changes := func() (out []check.CounterChange) {
		t.Helper()
		_, _, err := s.CarryOutCounterChanges(t.Context(), func(_ uuid.UUID, c check.CounterChange) error {
			require.Equal(t, "ada", c.Subject)
			c.ID, c.Subject, c.FromLimits, c.ToLimits, c.OwnLimits = 0, "", nil, nil, nil
			out = append(out, c)
			return nil
		})
		require.NoError(t, err)
		return out
	}
	put := func(plan string, multiplier int) []check.CounterChange {
		t.Helper()
		_, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: "ada", Plan: plan, Multiplier: multiplier}, tenants.Match{})
		require.NoError(t, err)
		return changes()
	}
	require.Equal(t, []check.CounterChange{{From: "free", To: "pro", ToVersion: 1, FromMultiplier: 1, ToMultiplier: 3}}, put("pro", 3), "registered")
	require.Empty(t, put("pro", 5), "the multiplier alone, with scale")
	require.Equal(t, []check.CounterChange{{From: "pro", FromVersion: 1, To: "free", FromMultiplier: 5, ToMultiplier: 2}}, put("", 2), "both")
	require.Equal(t, []check.CounterChange{{Reset: true, From: "free", To: "max", ToVersion: 1, FromMultiplier: 2, ToMultiplier: 2}}, put("max", 2), "the plan alone")
	require.Empty(t, put("max", 7), "the multiplier alone, with reset")
	require.NoError(t, s.DeleteSubject(t.Context(), a, "ada", tenants.Match{}))
	require.Equal(t, []check.CounterChange{{From: "max", FromVersion: 1, To: "free", FromMultiplier: 7, ToMultiplier: 1}}, changes(), "deleted")
	pro := "pro"
	for line, multiplier := range []int{2, 4} {
		_, err := s.ImportSubjects(t.Context(), a, []tenants.SubjectLine{{Line: line, Subject: "ada", Plan: &pro, Multiplier: multiplier}}, tenants.ImportMode{})
		require.NoError(t, err)
	}
	require.Equal(t, []check.CounterChange{{From: "free", To: "pro", ToVersion: 1, FromMultiplier: 1, ToMultiplier: 2}}, changes(), "imported")
	d.Exec("INSERT INTO counter_changes (tenant_id, subject, action, from_plan, to_plan) VALUES ($1, 'ada', 'scale', 'free', 'pro')", a.TenantID())
	require.Equal(t, []check.CounterChange{{From: "free", To: "pro"}}, changes(), "of before the multipliers were stored")
}

// Marks in the counter store say which changes were carried out. After a restore, new changes have
// none of their identifiers, although the backup is from before these were given.
func TestCounterChangesAfterARestore(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	var marks []int64
	carried := func() {
		t.Helper()
		d.Exec(insertCounterChanges, a.TenantID(), 1)
		_, _, err := d.Store.CarryOutCounterChanges(t.Context(), func(_ uuid.UUID, c check.CounterChange) error {
			require.NotContains(t, marks, c.ID, "it would be skipped")
			if len(marks) > 0 {
				require.Greater(t, c.ID, marks[len(marks)-1], "the order of changes")
			}
			marks = append(marks, c.ID)
			return nil
		})
		require.NoError(t, err)
	}
	for restores := range 3 {
		carried()
		carried()
		d.Exec("ALTER TABLE counter_changes ALTER COLUMN id RESTART WITH 1")
		d.Exec("UPDATE config_version SET epoch = gen_random_uuid()")
		require.Len(t, marks, 2*(restores+1))
	}
}

// The changes of a tenant wait for those before them, and for those of no other tenant, however
// long they take. Nothing is carried out again while it is underway.
func TestCounterChangesWaitForNobody(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	d.Exec(insertCounterChanges, a.TenantID(), 600)
	block, small := make(chan struct{}), make(chan string, 10)
	var mu sync.Mutex
	var long []string
	changes := d.Store.CounterChanges(func(tenant uuid.UUID, c check.CounterChange) error {
		if tenant == b.TenantID() {
			small <- c.Subject
			return nil
		}
		<-block
		mu.Lock()
		defer mu.Unlock()
		long = append(long, c.Subject)
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		changes.Run(ctx, 10*time.Millisecond, func(err error) { t.Error(err) })
	})
	left := func(actor tenants.Actor) (n int) {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM counter_changes WHERE tenant_id = $1", actor.TenantID()).Scan(&n))
		})
		return n
	}
	for range 2 { // the second ones are made when the page of the other tenant is underway
		d.Exec(insertCounterChanges, b.TenantID(), 2)
		require.Equal(t, []string{"s1", "s2"}, []string{<-small, <-small})
		require.Eventually(t, func() bool { return left(b) == 0 }, time.Minute, 5*time.Millisecond)
	}
	require.Equal(t, 600, left(a))
	close(block)
	require.Eventually(t, func() bool { return left(a) == 0 }, time.Minute, 5*time.Millisecond)
	stop()
	run.Wait()
	require.Len(t, long, 600, "each once")
	for i, subject := range long {
		require.Equal(t, fmt.Sprintf("s%d", i+1), subject)
	}
}

// A change that failed is tried again while another tenant has more and more changes.
func TestFailedCounterChangesAreTriedAgain(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	d.Exec(insertCounterChanges, b.TenantID(), 1)
	d.Exec(insertCounterChanges, a.TenantID(), 600)
	again, reported := make(chan struct{}), make(chan error, 10)
	failed := false // only the changes of one tenant use it, in order
	var running atomic.Int64
	changes := d.Store.CounterChanges(func(tenant uuid.UUID, _ check.CounterChange) error {
		switch {
		case tenant == a.TenantID():
			if running.Add(1)%100 == 0 {
				d.Exec(insertCounterChanges, a.TenantID(), 100)
			}
		case failed:
			close(again)
		default:
			failed = true
			return errors.New("no answer")
		}
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		changes.Run(ctx, time.Second, func(err error) {
			select {
			case reported <- err:
			default:
			}
		})
	})
	<-again
	require.ErrorContains(t, <-reported, "no answer")
	stop()
	run.Wait()
}
