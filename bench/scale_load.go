package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/jackc/pgx/v5"
)

// scaleOptions are the options of the run that measures many tenants.
type scaleOptions struct {
	wanted   bool
	tenants  int
	rules    int // of all tenants together
	subjects int // of all tenants together
	memory   string
	keep     string // name of a database that is reused, or created if it is missing
}

func (o scaleOptions) validate() error {
	switch {
	case o.tenants < 100 || o.tenants > 1_000_000:
		return errors.New("-scale-tenants: must be 100 to 1000000")
	case o.rules < o.tenants || o.rules > 30*o.tenants:
		return errors.New("-scale-rules: must be 1 to 30 for each tenant")
	case o.subjects < 20*o.tenants || o.subjects > 100_000_000:
		return errors.New("-scale-subjects: must be at least 20 for each tenant, and at most 100000000")
	}
	return nil
}

// Tenant 0 is the largest, with a tenth of all subjects. The others have equal sizes.
func (o scaleOptions) rulesEach() int       { return o.rules / o.tenants }
func (o scaleOptions) largestSubjects() int { return o.subjects / 10 }
func (o scaleOptions) subjectsEach() int {
	return (o.subjects - o.largestSubjects()) / (o.tenants - 1)
}

// keysEach is the number of keys of a tenant: the one in use, and the one after a rotation.
const keysEach = 2

// scaleKey returns a key of the tenant with this number. It is not secret: it follows from the
// number.
func scaleKey(number, key int) string {
	const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	random := sha256.Sum256(fmt.Appendf(nil, "%d %d", number, key))
	text := "weir_key_" + hex.EncodeToString(random[:])[:30]
	sum, digits := crc32.ChecksumIEEE([]byte(text)), [6]byte{}
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = base62[sum%62]
		sum /= 62
	}
	return text + string(digits[:])
}

func scaleSubject(n int) string { return fmt.Sprintf("customer%08d", n) } // 16 bytes

// scaleID returns SQL for the primary key of a row: the kind, and two numbers as expressions.
func scaleID(kind byte, tenant, number string) string {
	return fmt.Sprintf("(lpad(to_hex(%d), 2, '0') || lpad(to_hex(%s), 10, '0') || '7000800000' || lpad(to_hex(%s), 10, '0'))::uuid", kind, tenant, number)
}

// loadScale writes the deployment directly to Postgres, which generates the rows.
func (s *stage) loadScale(ctx context.Context, o scaleOptions) error {
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// Foreign keys and triggers would check each row, which would take most of the time. The rows
	// are valid.
	for _, setting := range []string{"SET session_replication_role = replica", "SET maintenance_work_mem = '512MB'"} {
		if _, err := conn.Exec(ctx, setting); err != nil {
			return err
		}
	}
	for _, t := range o.tables() {
		if err := t.load(ctx, conn, o.tenants); err != nil {
			return fmt.Errorf("load %s: %w", t.name, err)
		}
	}
	if err := copyRows(ctx, conn, "api_keys", []string{"tenant_id", "id", "name", "kind", "scopes", "hash", "last4", "version"},
		o.tenants*keysEach, func(n int) []any {
			t, k := n/keysEach, n%keysEach
			key := scaleKey(t, k)
			hash := sha256.Sum256([]byte(key))
			return []any{scaleTenant(t), rowID(rowKey, t, k), "key", "key", []string{"check", "read", "write", "manage"}, hash[:], key[len(key)-4:], 1}
		}); err != nil {
		return err
	}
	progress("analysing")
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	return err
}

// scaleTenant returns the id of a tenant, as scaleID.
func scaleTenant(number int) [16]byte { return scaleRow(rowTenant, number, 0) }

func scaleRow(kind byte, tenant, number int) (id [16]byte) {
	bytes, err := hex.DecodeString(fmt.Sprintf("%02x%010x7000800000%010x", kind, tenant, number))
	if err != nil {
		panic(err)
	}
	return [16]byte(bytes)
}

// bulk is a table to fill, with a statement that creates the rows of the tenants $1 to $2.
type bulk struct {
	name, insert string
	step         int // tenants per statement
	each         int // rows per tenant
	upTo         int // number of tenants; 0 for all
}

func (o scaleOptions) tables() []bulk {
	// Names have 16 bytes. One in 100 subjects is blocked, and a third is on each plan.
	subjects := func(tenants, count string) string {
		return "INSERT INTO subjects (tenant_id, subject, id, plan_id, state, version) SELECT " + scaleID(rowTenant, "t", "0") +
			", 'customer' || lpad(n::text, 8, '0'), " + scaleID(rowSubject, "t", "n") + ", " + scaleID(rowPlan, "t", "n % 3") +
			", CASE n % 100 WHEN 7 THEN 'blocked' ELSE 'active' END, 1 FROM generate_series(" + tenants + ") t, generate_series(" + count + ") n"
	}
	overrides := func(tenants, count string) string {
		return "INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, reason, version) SELECT " + scaleID(rowTenant, "t", "0") +
			", 'customer' || lpad((10 * n)::text, 8, '0'), " + scaleID(rowRule, "t", "n % "+fmt.Sprint(o.rulesEach())) +
			", 1000 + n, 'agreed', 1 FROM generate_series(" + tenants + ") t, generate_series(" + count + ") n"
	}
	each, largest := o.subjectsEach(), o.largestSubjects()
	return []bulk{
		{"tenants", "INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version) SELECT " +
			scaleID(rowTenant, "t", "0") + ", 'tenant-' || t, 1, 1, 1, 1 FROM generate_series($1::int, $2) t", 20_000, 1, 0},
		{"audit_heads", "INSERT INTO audit_heads (tenant_id, sequence, hash) SELECT " + scaleID(rowTenant, "t", "0") +
			", 1, sha256(t::text::bytea) FROM generate_series($1::int, $2) t", 20_000, 1, 0},
		{"plans", "INSERT INTO plans (tenant_id, id, slug, name, is_default, version) SELECT " + scaleID(rowTenant, "t", "0") + ", " +
			scaleID(rowPlan, "t", "n") + ", (ARRAY['free', 'pro', 'business'])[n + 1], '', n = 0, 1 FROM generate_series($1::int, $2) t, generate_series(0, 2) n", 20_000, 3, 0},
		{"rules", "INSERT INTO rules (tenant_id, id, slug, resource, algorithm, limit_units, window_text, window_ms, by_values, mode, on_unavailable, version) SELECT " +
			scaleID(rowTenant, "t", "0") + ", " + scaleID(rowRule, "t", "n") + ", 'rule-' || n, 'resource-' || n, 'sliding_window_counter', 1000000, '1m', 60000, ARRAY['subject'], 'enforce', 'local', 1" +
			fmt.Sprintf(" FROM generate_series($1::int, $2) t, generate_series(0, %d) n", o.rulesEach()-1), 10_000, o.rulesEach(), 0},
		{"plan_limits", "INSERT INTO plan_limits (tenant_id, plan_id, rule_id, limit_units, version) SELECT " + scaleID(rowTenant, "t", "0") + ", " +
			scaleID(rowPlan, "t", "p") + ", " + scaleID(rowRule, "t", "n") + ", 1000000 * (p + 1), 1" +
			fmt.Sprintf(" FROM generate_series($1::int, $2) t, generate_series(1, 2) p, generate_series(0, %d, 2) n", o.rulesEach()-1), 10_000, (o.rulesEach() + 1) / 2 * 2, 0},
		{"subjects", subjects("$1::int, $2", fmt.Sprintf("0, %d", each-1)), max(1, 200_000/each), each, 0},
		{"overrides", overrides("$1::int, $2", fmt.Sprintf("0, %d", (each-1)/10)), max(1, 1_000_000/each), (each-1)/10 + 1, 0},
		// The subjects of the largest tenant, a tenth of all. Its first ones were created with
		// those of the others.
		{"subjects", subjects("$1::int, 0", fmt.Sprintf("%d, CASE WHEN $2 = 0 THEN %d END", each, largest-1)), 1, largest - each, 1},
		{"overrides", overrides("$1::int, 0", fmt.Sprintf("%d, CASE WHEN $2 = 0 THEN %d END", (each-1)/10+1, (largest-1)/10)), 1, (largest - each) / 10, 1},
	}
}

// load fills the table, and reports the progress.
func (t bulk) load(ctx context.Context, conn *pgx.Conn, tenants int) error {
	if t.upTo > 0 {
		tenants = t.upTo
	}
	told, begin := time.Now(), time.Now()
	for first := 0; first < tenants; first += t.step {
		last := min(first+t.step, tenants) - 1
		if _, err := conn.Exec(ctx, t.insert, first, last); err != nil {
			return err
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			progress("loading %s: %s of %s", t.name, thousands(float64((last+1)*t.each)), thousands(float64(tenants*t.each)))
		}
	}
	progress("loaded %s %s in %.1f s", thousands(float64(tenants*t.each)), t.name, time.Since(begin).Seconds())
	return nil
}
