package tenants

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/internal/tenants/db"
)

// The bounds that tests reach.
const (
	MaxMemberships           = maxMemberships
	MaxSecurityNotifications = maxSecurityNotifications
)

// AuditListSQL is the statement of Store.Audit, from its start.
func AuditListSQL(tenant uuid.UUID, f AuditFilter) (sql string, args []any) {
	return auditListSQL(tenant, f, nil, 51)
}

// Checksummed appends the correct checksum to the text of a key.
func Checksummed(text string) string {
	sum := keyChecksum(text)
	return text + string(sum[:])
}

// ByIndexSQL is what goes before SubjectSearchSQL.
const ByIndexSQL = byIndexSQL

// SubjectSearchSQL is the statement of Store.Subjects, for the tests of how Postgres carries it
// out.
func SubjectSearchSQL(tenant uuid.UUID, f SubjectFilter, byName bool, after string, most int32) (sql string, args []any) {
	search := subjectSearch{SubjectFilter: f, byName: byName, after: after}
	return search.build(tenant, most)
}

func tenantsOf[T any](rows []T, err error, tenant func(T) uuid.UUID) (out []uuid.UUID, _ error) {
	for _, row := range rows {
		out = append(out, tenant(row))
	}
	return out, err
}

// DuePlanTenants returns the tenants of the plan changes of one step.
func DuePlanTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, _, err := s.duePlans(ctx, nil)
	return tenantsOf(rows, err, func(r db.DuePlansRow) uuid.UUID { return r.TenantID })
}

// EventsReadForStep returns how many rows of billing events are read to find the tenants of one
// step.
func EventsReadForStep(ctx context.Context, s *Store) (read int64, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		if _, err := s.turns.events.step(ctx, tx, billingEventTasks, s.instant(), 200, nil); err != nil {
			return err
		}
		var sorts string
		if err := tx.QueryRow(ctx, "SHOW enable_sort").Scan(&sorts); err != nil || sorts != "on" {
			return fmt.Errorf("enable_sort is %q: %w", sorts, err)
		}
		return tx.QueryRow(ctx, "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'billing_events'").Scan(&read)
	})
	return read, err
}

// EventsReadForPurge returns how many security events are read to delete old ones.
func EventsReadForPurge(ctx context.Context, s *Store) (read int64, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		if _, _, err := s.purgeEvents(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'security_events'").Scan(&read)
	})
	return read, err
}

// CounterChangeTenants returns the tenants of the changes of counters of one step.
func CounterChangeTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, _, err := s.counterChanges(ctx, nil)
	return tenantsOf(rows, err, func(r db.CounterChangesRow) uuid.UUID { return r.TenantID })
}

// OpenMigrationTenants returns the tenants of the migrations of one step.
func OpenMigrationTenants(ctx context.Context, s *Store) ([]uuid.UUID, error) {
	rows, err := s.openPlanMigrations(ctx)
	return tenantsOf(rows, err, func(r db.OpenPlanMigrationsRow) uuid.UUID { return r.TenantID })
}

// Statements counts the named statements of a store's connections as the system.
type Statements struct {
	mu    sync.Mutex
	times map[string]int
}

// CountStatements begins to count. No other operation of the store may be in progress.
func CountStatements(ctx context.Context, s *Store) (*Statements, error) {
	c := &Statements{times: map[string]int{}}
	config := s.system.Config() // a copy
	config.ConnConfig.Tracer = c
	counted, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	s.system.Close()
	s.system.Pool = counted
	return c, nil
}

// Times returns how often a statement was sent since the last call for it.
func (c *Statements) Times(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.times[name]
	delete(c.times, name)
	return n
}

// Total returns how many named statements were sent since the last call for them.
func (c *Statements) Total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.times {
		n += times
	}
	clear(c.times)
	return n
}

// TraceQueryStart implements pgx.QueryTracer.
func (c *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if line, named := strings.CutPrefix(data.SQL, "-- name: "); named {
		name, _, _ := strings.Cut(line, " ")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.times[name]++
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceStatements calls started at the start of each statement of a store, with the context of the
// statement and its text. No operation of the store may be in progress.
func TraceStatements(ctx context.Context, s *Store, started func(ctx context.Context, sql string)) error {
	for _, p := range []*pool{s.app, s.system} {
		config := p.Config() // a copy
		config.ConnConfig.Tracer = starts(started)
		traced, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return err
		}
		p.Close()
		p.Pool = traced
	}
	return nil
}

// Connections returns how many connections a store has opened.
func Connections(s *Store) int64 {
	return s.app.Stat().NewConnsCount() + s.system.Stat().NewConnsCount()
}

type starts func(ctx context.Context, sql string)

// TraceQueryStart implements pgx.QueryTracer.
func (f starts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	f(ctx, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (starts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Unbroken is unbroken.
var Unbroken = unbroken

// GoneTimeout is goneTimeout.
const GoneTimeout = goneTimeout
