package tenants_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// leaving is a client that leaves during one of the statements of its request.
type leaving struct {
	at, sent int
	leave    context.CancelFunc
}

type leavingKey struct{}

func (l *leaving) started(ctx context.Context, _ string) {
	if l, here := ctx.Value(leavingKey{}).(*leaving); here {
		if l.sent++; l.sent == l.at {
			l.leave()
		}
	}
}

// A client that leaves costs no connection, whenever it leaves, and nothing of its change remains
// unless it was committed.
func TestClientsThatLeaveKeepConnections(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	s := d.Store
	require.NoError(t, tenants.TraceStatements(t.Context(), s, new(leaving).started))
	slug := func(kind string, at int) string { return fmt.Sprintf("%s-%d", kind, at) }
	exists := func(slug string) bool {
		_, err := s.RuleBySlug(t.Context(), a, slug)
		if err != nil {
			require.ErrorIs(t, err, tenants.ErrNotFound)
		}
		return err == nil
	}
	for _, c := range []struct {
		name    string
		changes bool
		do      func(ctx context.Context, at int) error
	}{
		{"read", false, func(ctx context.Context, _ int) error {
			_, _, err := s.Members(ctx, a, tenants.Page{})
			return err
		}},
		{"read-as-system", false, func(ctx context.Context, _ int) error {
			_, err := s.TierOf(ctx, a.TenantID())
			return err
		}},
		{"change", true, func(ctx context.Context, at int) error {
			return second(s.CreateRule(ctx, a, rule(slug("change", at))))
		}},
		{"idempotent", true, func(ctx context.Context, at int) error {
			return second(s.Idempotent(ctx, a, slug("key", at), [32]byte{1}, answers(201, func(ctx context.Context) error {
				return second(s.CreateRule(ctx, a, rule(slug("idempotent", at))))
			})))
		}},
	} {
		require.NoError(t, c.do(t.Context(), 0)) // opens its connection
		before, left := tenants.Connections(s), 0
		for at := 1; ; at++ {
			ctx, leave := context.WithCancel(t.Context())
			client := &leaving{at: at, leave: leave}
			err := c.do(context.WithValue(ctx, leavingKey{}, client), at)
			leave()
			if client.sent < at {
				break
			}
			left++
			if err != nil {
				require.ErrorIs(t, err, context.Canceled, "%s, statement %d", c.name, at)
			}
			if c.changes {
				require.Equal(t, err == nil, exists(slug(c.name, at)), "%s, statement %d", c.name, at)
			}
		}
		require.Equal(t, before, tenants.Connections(s), c.name)
		require.GreaterOrEqual(t, left, 3, c.name) // begin, one statement and commit
	}
}

// A statement in progress ends by itself, and it is the last of its operation.
func TestLeftStatementEnds(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	s := d.Store
	require.NoError(t, second(s.CreateRule(t.Context(), a, rule("first"))))
	before := tenants.Connections(s)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	d.Conn(func(owner context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(owner)
		require.NoError(t, err)
		_, err = tx.Exec(owner, "LOCK TABLE audit, rules")
		require.NoError(t, err)
		go func() { done <- second(s.CreateRule(ctx, a, rule("second"))) }()
		d.Conn(func(owner context.Context, other *pgx.Conn) {
			require.Eventually(t, func() (waits bool) {
				err := other.QueryRow(owner, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits)
				return err == nil && waits
			}, time.Minute, time.Millisecond)
		})
		leave()
		require.NoError(t, tx.Rollback(owner))
	})
	require.ErrorIs(t, <-done, context.Canceled)
	require.ErrorIs(t, second(s.RuleBySlug(t.Context(), a, "second")), tenants.ErrNotFound)
	require.Equal(t, before, tenants.Connections(s))
}

// A long statement, such as of an import, does not continue for its whole time.
func TestLongStatementsOfClientsThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		within, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ctx, leave := context.WithCancel(within)
		statements, end := tenants.Unbroken(ctx)
		defer end()
		leave()
		start := time.Now()
		synctest.Wait()
		require.NoError(t, statements.Err())
		<-statements.Done()
		require.Equal(t, tenants.GoneTimeout, time.Since(start))
	})
}
