package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
)

// askedTenants is how many tenants, besides the largest, get requests: enough that not all of them
// are always in the caches, few enough to create their keys with the API.
const askedTenants = 20

// owner is a tenant that gets requests.
type owner struct {
	tenant
	rules, subjects int
	cursor          string // of a page in the middle of its subjects
}

// The largest tenant has the maximum number of rules, and a tenth of all subjects.
func (o adminOptions) largestRules() int {
	if o.one {
		return o.rules - 1
	}
	return min(1000, o.rules/2)
}

func (o adminOptions) largestSubjects() int {
	if o.one {
		return o.subjects - smallTenant
	}
	return o.subjects / 10
}

// share returns the numbers of rules and subjects of a tenant. Tenant 0 is the largest.
func (o adminOptions) share(number int) (rules, subjects int) {
	if number == 0 {
		return o.largestRules(), o.largestSubjects()
	}
	part := func(all int) int { // equal shares; the first ones get the remainder
		n := all / (o.tenants - 1)
		if number <= all%(o.tenants-1) {
			n++
		}
		return n
	}
	return part(o.rules - o.largestRules()), part(o.subjects - o.largestSubjects())
}

func subjectName(n int) string { return fmt.Sprintf("user_%08d", n) }

// rowID returns the primary key of a row. Keys are in the order of their numbers, as version 7
// UUIDs are in the order of their time.
func rowID(kind byte, tenant, number int) (id [16]byte) {
	id[0], id[6], id[8] = kind, 0x70, 0x80
	binary.BigEndian.PutUint32(id[2:6], uint32(tenant))
	binary.BigEndian.PutUint32(id[12:16], uint32(number))
	return id
}

// Kinds of rows.
const (
	rowTenant byte = iota + 1
	rowPlan
	rowRule
	rowSubject
	rowPerson
	rowSession
	rowKey
)

// loadAdmin creates the tenants that get requests with the API, because they need keys, and writes
// the other rows directly to Postgres. The largest tenant is first in the result.
func (s *stage) loadAdmin(ctx context.Context, o adminOptions) ([]*owner, error) {
	api := newAdmin(s.servers[weirName].http)
	defer api.client.CloseIdleConnections()
	owners := make([]*owner, min(o.tenants, askedTenants+1))
	for i := range owners {
		owners[i] = &owner{tenant: tenant{slug: fmt.Sprintf("asked-%d", i)}}
		owners[i].rules, owners[i].subjects = o.share(i)
		if err := api.create(ctx, s.operator, &owners[i].tenant); err != nil {
			return nil, err
		}
	}
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	ids, err := loadTenants(ctx, conn, o, owners)
	if err != nil {
		return nil, err
	}
	for _, load := range []func(context.Context, *pgx.Conn, adminOptions, [][16]byte) error{loadPlans, loadRules, loadSubjects} {
		if err := load(ctx, conn, o, ids); err != nil {
			return nil, err
		}
	}
	progress("analysing")
	if _, err := conn.Exec(ctx, "VACUUM ANALYZE"); err != nil {
		return nil, err
	}
	for _, t := range owners {
		if err := api.findMiddle(ctx, t); err != nil {
			return nil, err
		}
	}
	return owners, nil
}

// loadTenants returns the ids of all tenants, owners first.
func loadTenants(ctx context.Context, conn *pgx.Conn, o adminOptions, owners []*owner) ([][16]byte, error) {
	ids := make([][16]byte, o.tenants)
	for i := range ids {
		ids[i] = rowID(rowTenant, i, 0)
		if i < len(owners) {
			if err := conn.QueryRow(ctx, "SELECT id FROM tenants WHERE slug = $1", owners[i].slug).Scan(&ids[i]); err != nil {
				return nil, err
			}
		}
	}
	first := len(owners)
	return ids, copyRows(ctx, conn, "tenants", []string{"id", "slug", "version", "policy_version", "subjects_version", "keys_version"},
		o.tenants-first, func(n int) []any {
			return []any{ids[first+n], fmt.Sprintf("tenant-%d", first+n), 1, 1, 1, 1}
		})
}

var planSlugs = []string{"free", "pro", "business"}

func loadPlans(ctx context.Context, conn *pgx.Conn, o adminOptions, ids [][16]byte) error {
	return copyRows(ctx, conn, "plans", []string{"tenant_id", "id", "slug", "name", "is_default", "version"},
		o.tenants*len(planSlugs), func(n int) []any {
			t, p := n/len(planSlugs), n%len(planSlugs)
			return []any{ids[t], rowID(rowPlan, t, p), planSlugs[p], planSlugs[p], p == 0, 1}
		})
}

func loadRules(ctx context.Context, conn *pgx.Conn, o adminOptions, ids [][16]byte) error {
	next := o.walk(func(t int) int { rules, _ := o.share(t); return rules })
	return copyRows(ctx, conn, "rules", []string{"tenant_id", "id", "slug", "name", "resource", "algorithm",
		"limit_units", "window_text", "window_ms", "by_values", "mode", "on_unavailable", "version"},
		o.rules, func(int) []any {
			t, n := next()
			slug := fmt.Sprintf("rule-%d", n)
			return []any{ids[t], rowID(rowRule, t, n), slug, slug, fmt.Sprintf("resource-%d", n), "sliding_window_counter",
				int64(100 + n), "1m", int64(60_000), []string{"subject"}, "enforce", "local", 1}
		})
}

func loadSubjects(ctx context.Context, conn *pgx.Conn, o adminOptions, ids [][16]byte) error {
	next := o.walk(func(t int) int { _, subjects := o.share(t); return subjects })
	regions := []string{"eu", "us", "asia"}
	return copyRows(ctx, conn, "subjects", []string{"tenant_id", "subject", "id", "plan_id", "state", "labels", "billing_ref", "version"},
		o.subjects, func(int) []any {
			t, n := next()
			state, labels := "active", map[string]string{"region": regions[n%len(regions)]}
			if n%500 == 7 {
				state = "blocked"
			}
			if n%500 == 11 {
				labels["vip"] = "yes"
			}
			return []any{ids[t], subjectName(n), rowID(rowSubject, t, n), rowID(rowPlan, t, n%len(planSlugs)), state, labels,
				fmt.Sprintf("cus_%d", n), 1}
		})
}

// walk returns a function that iterates over the objects of the tenants. count returns the number
// of objects of a tenant.
func (o adminOptions) walk(count func(tenant int) int) func() (tenant, number int) {
	t, n := 0, -1
	return func() (int, int) {
		for n++; n == count(t); n = 0 {
			t++
		}
		return t, n
	}
}

// copyRows fills a table, and reports the progress. It copies in chunks, because triggers run only
// after all rows of a statement.
func copyRows(ctx context.Context, conn *pgx.Conn, table string, columns []string, count int, row func(n int) []any) error {
	const atOnce = 20_000
	told, begin := time.Now(), time.Now()
	for done := 0; done < count; done += atOnce {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromSlice(min(atOnce, count-done), func(n int) ([]any, error) {
			return row(done + n), nil
		}))
		if err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			progress("loading %s: %s of %s", table, thousands(float64(min(done+atOnce, count))), thousands(float64(count)))
		}
	}
	progress("loaded %s %s in %.1f s", thousands(float64(count)), table, time.Since(begin).Seconds())
	return nil
}

// findMiddle pages through a tenant's subjects, up to some thousand, to get a cursor of a page in
// the middle.
func (a *admin) findMiddle(ctx context.Context, t *owner) error {
	for range min(t.subjects/200/2, 50) + 1 {
		path := "/v1/subjects?limit=200"
		if t.cursor != "" {
			path += "&cursor=" + url.QueryEscape(t.cursor)
		}
		body, _, err := a.fetch(ctx, t.key, path)
		if err != nil {
			return err
		}
		var page struct {
			NextCursor *string `json:"next_cursor"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return err
		}
		if page.NextCursor == nil {
			break
		}
		t.cursor = *page.NextCursor
	}
	if t.cursor == "" {
		return fmt.Errorf("tenant %s has too few subjects for a second page", t.slug)
	}
	return nil
}
