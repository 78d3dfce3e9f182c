package billing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/tenants"
)

// plan is a node of a plan of Postgres, as it was carried out.
type plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Part     string  `json:"Subplan Name"`
	Rows     float64 `json:"Actual Rows"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []plan
}

func (p *plan) each(do func(*plan)) {
	do(p)
	for i := range p.Plans {
		p.Plans[i].each(do)
	}
}

// eventsRead returns how many rows of billing events a plan has read.
func (p *plan) eventsRead() (rows float64) {
	p.each(func(node *plan) {
		if node.Relation == "billing_events" && strings.Contains(node.Type, "Scan") {
			rows += (node.Rows + node.Removed) * node.Loops
		}
	})
	return rows
}

// explain carries out a query of billing.sql, and undoes it. values has SQL in place of its
// parameters.
func (s *stack) explain(role, query string, values ...string) (out plan, text string) {
	s.t.Helper()
	file, err := os.ReadFile("../tenants/queries/billing.sql")
	require.NoError(s.t, err)
	_, sql, ok := strings.Cut(string(file), "-- name: "+query+" ")
	require.True(s.t, ok, query)
	_, sql, _ = strings.Cut(sql, "\n")
	sql, _, _ = strings.Cut(sql, ";\n")
	sql = strings.NewReplacer(values...).Replace(sql)
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(s.t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		if role == "weir_system" { // as in the store
			_, err = tx.Exec(ctx, "SET LOCAL enable_sort = off")
			require.NoError(s.t, err)
		}
		_, err = tx.Exec(ctx, "SET LOCAL ROLE "+role)
		require.NoError(s.t, err)
		_, err = tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", s.a.TenantID().String())
		require.NoError(s.t, err)
		require.NoError(s.t, tx.QueryRow(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+sql, pgx.QueryExecModeSimpleProtocol).Scan(&text))
	})
	var plans []struct{ Plan plan }
	require.NoError(s.t, json.Unmarshal([]byte(text), &plans))
	return plans[0].Plan, text
}

func quoted(v any) string { return fmt.Sprintf("'%v'", v) }

// A page of the events that wait for a price is read in the order of an index, however many events
// of one customer wait.
func TestPageOfEventsThatWaitForAPrice(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	s.outcome(tenants.EventParked, s.send(s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_late"))))
	s.db.Exec(`INSERT INTO billing_events (tenant_id, id, endpoint_id, provider_id, type, provider_at, received_at, body, customer, subscription, outcome, why, settled_at, waits_for)
		SELECT tenant_id, gen_random_uuid(), endpoint_id, 'evt_copy_' || n, type, provider_at, received_at, '', customer, subscription, outcome, why, settled_at, waits_for
		FROM billing_events, generate_series(1, 20000) AS n`)
	for _, statistics := range []bool{false, true} {
		if statistics {
			s.db.Exec("ANALYZE billing_events")
		}
		got, text := s.explain("weir_app", "WakeBillingPrices", "@tenant_id", quoted(s.a.TenantID()), "@endpoint_id", quoted(s.endpoint.ID),
			"@after_customer", "''", "@after_id", quoted("00000000-0000-0000-0000-000000000000"), "@most", "1000",
			"@now", quoted(s.now().Format(time.RFC3339))+"::timestamptz")
		pages := 0
		got.each(func(node *plan) {
			if node.Part == "CTE page" {
				pages++
				node.each(func(part *plan) { require.NotContains(t, part.Type, "Sort", text) })
				require.LessOrEqual(t, node.eventsRead(), 1000.0, text)
			}
		})
		require.Equal(t, 1, pages, text)
	}
}

// While a look at the waiting events of a tenant does not end, the events of others are applied,
// and their own waiting events are looked at.
func TestEventsDuringALook(t *testing.T) {
	s := newStack(t, tenants.BillingEndpoint{}, nil)
	slow, e := s.slowTenant("slow")
	s.db.Exec("UPDATE billing_endpoints SET reconcile_at = NULL")
	s.parked(e, slow, 3)
	wait := s.event("customer.subscription.created", sub("sub_1", "cus_1", "active", "ada", "price_late"))
	s.outcome(tenants.EventParked, s.send(wait))
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		_, err = tx.Exec(ctx, "SELECT FROM billing_events WHERE tenant_id = $1 FOR UPDATE", slow.TenantID())
		require.NoError(t, err)

		s.register(slow, "cus_0")
		store := s.db.Open(tenants.Config{Now: s.now, Operation: time.Hour})
		runner := billing.New(billing.Options{Store: store, StripeURL: "http://127.0.0.1:1", Every: 10 * time.Millisecond})
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); runner.Run(ctx) }()
		defer func() { stop(); <-ended }()
		s.blocked("UPDATE billing_events")
		for i, price := range []string{"price_pro", "price_scale", "price_pro"} {
			if i > 0 {
				s.pass(time.Second)
			}
			s.receive(s.event("customer.subscription.updated", sub("sub_2", "cus_2", "active", "bob", price)))
			require.Eventually(t, func() bool { return "price_"+s.plan("bob") == price }, time.Minute, 10*time.Millisecond)
		}
		_, _, err = s.store.PutBillingPrice(ctx, s.a, tenants.BillingPrice{Price: "price_late", Plan: "late"}, tenants.Match{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return s.plan("ada") == "late" }, time.Minute, 10*time.Millisecond)
		s.blocked("UPDATE billing_events") // still
	})
}

// blocked waits until a statement with this text waits for a lock.
func (s *stack) blocked(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() (found bool) {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			require.NoError(s.t, conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid())`, text).Scan(&found))
		})
		return found
	}, time.Minute, 10*time.Millisecond)
}
