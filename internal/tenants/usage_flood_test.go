package tenants_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// A tenant that names each of its thousand plans in checks that match many rules neither loses the
// usage of another tenant nor its own, and it has a bounded number of rows in Postgres.
func TestUsageBesideAFlood(t *testing.T) {
	t.Parallel()
	const floods, plans, matching, quiet = 6000, 1000, 32, 500
	d, a, b := two(t)
	var rules []*limit.Rule
	for i := range 992 {
		r := rule(fmt.Sprint("rule-", i))
		rules = append(rules, &r)
	}
	metrics := prometheus.NewRegistry()
	recorder := usage.New(usage.Options{Sink: d.Store, Registerer: metrics, BufferBytes: 4 << 20})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { recorder.Run(ctx); close(done) }()
	for i := range floods {
		flood := check.Decision{Allowed: true, Subject: "user_1", Plan: fmt.Sprint("plan-", i%plans), Resource: fmt.Sprint("resource-", i%200), Cost: 3}
		for k := range matching {
			flood.Rules = append(flood.Rules, check.RuleDecision{Rule: rules[(i*31+k)%len(rules)], Allowed: true})
		}
		recorder.Decided(a.TenantID(), &check.Request{}, &flood, time.Now())
		if i%(floods/quiet) == 0 {
			recorder.Decided(b.TenantID(), &check.Request{}, &check.Decision{Allowed: true, Subject: "user_1", Resource: "orders", Cost: 1,
				Rules: []check.RuleDecision{{Rule: rules[0], Allowed: true}}}, time.Now())
		}
	}
	stop()
	<-done

	for _, grain := range usage.Grains {
		require.Equal(t, usage.Counts{Allowed: quiet, CostAllowed: quiet}, total(t, d.Store, b, grain), "the other tenant by the %s", grain)
		require.Equal(t, usage.Counts{Allowed: floods, CostAllowed: 3 * floods}, total(t, d.Store, a, grain), "by the %s", grain)
	}
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "weir_usage_lost_checks_total" || f.GetName() == "weir_usage_coarsened_rows_total" {
			require.Zero(t, f.GetMetric()[0].GetCounter().GetValue(), f.GetName())
		}
	}
	var most int
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(t, conn.QueryRow(ctx,
			"SELECT max(n) FROM (SELECT count(*) AS n FROM usage_minutes WHERE tenant_id = $1 GROUP BY start) AS minutes", a.TenantID()).Scan(&most))
	})
	require.LessOrEqual(t, most, 6145)
	require.Greater(t, most, 3000)

	byPlan := usageOf(t, d.Store, a, tenants.UsageQuery{Grain: usage.Day, ByPlan: true}).Items
	require.GreaterOrEqual(t, len(byPlan), plans)
	for _, item := range byPlan {
		require.NotEqual(t, usage.OtherPlans, item.Plan, "all of its plans have their own sums")
	}
}
