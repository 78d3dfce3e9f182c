package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"weir/bench/load"
)

// crowd is a set of many tenants with one rule each, in their own database and with their own
// instance, so that they do not affect other tables. They are written directly to Postgres.
type crowd struct {
	sizes []int // numbers of tenants that get requests, ascending
}

const crowdName = "weir, crowd"

func (c crowd) tenants() int { return c.sizes[len(c.sizes)-1] }

// crowdKey returns the key of the tenant with this number.
func crowdKey(number int) string { return scaleKey(number, 0) }

// load writes the tenants. The database has its schema already.
func (c crowd) load(ctx context.Context, conn *pgx.Conn) error {
	count := c.tenants()
	if err := copyRows(ctx, conn, "tenants", []string{"id", "slug", "version", "policy_version", "subjects_version", "keys_version"},
		count, func(n int) []any { return []any{rowID(rowTenant, n, 0), fmt.Sprintf("tenant-%d", n), 1, 1, 1, 1} }); err != nil {
		return err
	}
	r := oneRule(algorithms[0])
	if err := copyRows(ctx, conn, "rules", []string{"tenant_id", "id", "slug", "name", "resource", "algorithm",
		"limit_units", "window_text", "window_ms", "by_values", "mode", "on_unavailable", "version"},
		count, func(n int) []any {
			return []any{rowID(rowTenant, n, 0), rowID(rowRule, n, 0), r.Slug, r.Slug, "*", r.Algorithm,
				r.Limit, r.Window, int64(60_000), []string{"subject"}, "enforce", "local", 1}
		}); err != nil {
		return err
	}
	if err := copyRows(ctx, conn, "api_keys", []string{"tenant_id", "id", "name", "kind", "scopes", "hash", "last4", "version"},
		count, func(n int) []any {
			key := crowdKey(n)
			hash := sha256.Sum256([]byte(key))
			return []any{rowID(rowTenant, n, 0), rowID(rowKey, n, 0), "bench", "key", []string{"check"}, hash[:], key[len(key)-4:], 1}
		}); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "VACUUM ANALYZE")
	return err
}

// beginCrowd creates the tenants, and starts an instance that has answered a check of each. It does
// so only once: the instance runs until the stage is closed.
func (s *stage) beginCrowd(ctx context.Context, c crowd) error {
	if s.servers[crowdName] != nil {
		return nil
	}
	database, err := s.makeCrowd(ctx, c, "_crowd")
	if err != nil {
		return err
	}
	progress("starting an instance that knows %s tenants", thousands(float64(c.tenants())))
	sv, err := s.startInstance(ctx, "weir-crowd", s.urlOf(database), s.store)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, sv.stop)
	if err := c.first(ctx, sv); err != nil {
		return err
	}
	s.servers[crowdName] = sv
	return nil
}

// first sends the first check of each tenant.
func (c crowd) first(ctx context.Context, sv *server) error {
	progress("sending the first check of each of them")
	tenants := make([]*tenant, c.tenants())
	for i := range tenants {
		tenants[i] = &tenant{slug: fmt.Sprintf("tenant-%d", i), rules: make([]rule, 1), key: crowdKey(i)}
	}
	api := newAdmin(sv.http)
	defer api.client.CloseIdleConnections()
	if err := each(ctx, tenants, api.first); err != nil {
		return fmt.Errorf("%w%s", err, sv.lastWords())
	}
	return sv.settle(ctx) // usage of each tenant is on its way to Postgres
}

// makeCrowd creates a database with the tenants, whose name ends with the suffix, and returns its
// name.
func (s *stage) makeCrowd(ctx context.Context, c crowd, suffix string) (name string, err error) {
	name = s.database + suffix
	if err := s.newDatabase(ctx, name); err != nil {
		return "", err
	}
	if _, err := s.command(ctx, name, "migrate", "up"); err != nil {
		return "", err
	}
	conn, err := s.connect(ctx, name)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if err := c.load(ctx, conn); err != nil {
		return "", fmt.Errorf("load %d tenants: %w", c.tenants(), err)
	}
	return name, nil
}

// traffic spreads the same number of counters over this many tenants as over all of them, so that
// only the number of tenants differs.
func (c crowd) traffic(tenants int) *load.Traffic {
	requests := make([]load.Request, max(subjects, c.tenants()))
	keys := make([]string, tenants)
	for i := range keys {
		keys[i] = crowdKey(i)
	}
	for i := range requests {
		requests[i] = checkRequest(keys[i%tenants], subject(i/tenants))
	}
	return load.NewTraffic(requests, load.Uniform, seed)
}

// group returns the table of tenants.
func (c crowd) group(bare cell) group {
	g := group{"tenants", "Active tenants, of " + thousands(float64(c.tenants())), []cell{bare}}
	for _, n := range c.sizes {
		name := thousands(float64(n)) + " tenants"
		if n == 1 {
			name = "1 tenant"
		}
		g.cells = append(g.cells, cell{name: name, server: crowdName, traffic: c.traffic(n), checks: 1})
	}
	return g
}

func newCrowd(sizes []int) crowd {
	sizes = slices.Clone(sizes)
	slices.Sort(sizes)
	return crowd{slices.Compact(sizes)}
}
