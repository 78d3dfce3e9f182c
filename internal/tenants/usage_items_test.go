package tenants_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// writeHours writes items of usage of one hour, one for each resource, of rules r0 to r9.
func writeHours(d *tenantstest.Database, a tenants.Actor, start time.Time, items int) {
	d.Exec(`INSERT INTO usage_hours (tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
		SELECT $1, $2, 'r' || n % 10, '', 'n' || n, 1, 0, 0, 0, 1, 0 FROM generate_series(1, $3::int) AS n`, a.TenantID(), start, items)
}

// takeAll takes all turns of a kind, each for another tenant.
func takeAll(t *testing.T, turns *places.Turns[uuid.UUID]) (leave func()) {
	t.Helper()
	var leaves []func()
	for range turns.Most() {
		one, err := turns.Take(t.Context(), uuid.New())
		require.NoError(t, err)
		leaves = append(leaves, one)
	}
	return func() {
		for _, one := range leaves {
			one()
		}
	}
}

// Reports of many items are decoded in turns, and those of few are not. Before, 50,000 items of
// several reports were decoded on as many processors at once.
func TestUsageItemsTakeTurns(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	processors := places.NewProcessors(8)
	d.Store.TakeTurns(processors)
	d.Store.SetListWait(0)
	query := tenants.UsageQuery{Grain: usage.Hour, From: usageStart(), ByRule: true, ByResource: true}
	of := map[int]tenants.Actor{}
	for _, items := range []int{200, 201, 5000, 5001} {
		of[items], _ = d.Tenant(fmt.Sprint("tenant-", items))
		writeHours(d, of[items], usageStart(), items)
	}
	for _, kind := range []struct {
		turns *places.Turns[uuid.UUID]
		waits map[int]bool
	}{{processors.Short, map[int]bool{201: true, 5000: true}}, {processors.Long, map[int]bool{5001: true}}} {
		leave := takeAll(t, kind.turns)
		for items, a := range of {
			_, err := d.Store.Usage(t.Context(), a, query)
			if kind.waits[items] {
				require.ErrorIs(t, err, tenants.ErrTooManyReports, items)
			} else {
				require.NoError(t, err, items)
			}
		}
		leave()
	}
	for items, a := range of {
		report, err := d.Store.Usage(t.Context(), a, query)
		require.NoError(t, err)
		require.Len(t, report.Items, items)
	}
}

// A report that waits for its turn has no connection to Postgres: the store has one of them only.
func TestUsageWaitsWithoutAConnection(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Open(tenants.Config{MaxConns: 2}) // of which one is for all tenants
	processors := places.NewProcessors(8)
	s.TakeTurns(processors)
	s.SetListWait(time.Hour)
	start := usageStart()
	writeHours(d, a, start, 201)
	batch := usageBatch(uuid.New())
	batch.Subjects = []usage.Subjects{subjectsOf(a, start, "alice", 3)}
	require.NoError(t, s.WriteUsage(t.Context(), batch))
	for _, read := range []func() error{
		func() error {
			_, err := s.Usage(t.Context(), a, tenants.UsageQuery{Grain: usage.Hour, From: start, ByRule: true, ByResource: true})
			return err
		},
		func() error {
			_, err := s.BusySubjects(t.Context(), a, start, start.Add(time.Hour))
			return err
		},
	} {
		leave := takeAll(t, processors.Short)
		done := make(chan error, 1)
		go func() { done <- read() }()
		for processors.Short.Waiting() == 0 {
			select {
			case err := <-done:
				t.Fatal("it did not wait: ", err)
			default:
				runtime.Gosched()
			}
		}
		for _, actor := range []tenants.Actor{a, b} {
			_, err := s.Configured(t.Context(), actor)
			require.NoError(t, err)
		}
		leave()
		require.NoError(t, <-done)
	}
}

// With Sum, a report has one item for each group, however long its period is.
func TestUsageSum(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start, one := usageStart(), usage.Counts{Allowed: 1, CostAllowed: 1}
	var rows []usage.Row
	for minute := range 3 {
		at := start.Add(time.Duration(minute) * time.Minute)
		rows = append(rows, usageRow(a, at, "", "free", "orders", everyCount), usageRow(a, at, "api", "free", "orders", one), usageRow(a, at, "web", "pro", "orders", one))
	}
	require.NoError(t, d.Store.WriteUsage(t.Context(), usageBatch(uuid.New(), rows...)))
	thrice := func(c usage.Counts) (sum usage.Counts) {
		for range 3 {
			sum.Add(c)
		}
		return sum
	}
	for _, grain := range usage.Grains {
		query := tenants.UsageQuery{Grain: grain, From: start, Sum: true}
		report := usageOf(t, d.Store, a, query)
		require.Equal(t, []tenants.UsageItem{{Start: report.From, Counts: thrice(everyCount)}}, report.Items, grain)
		query.ByRule = true
		require.Equal(t, []tenants.UsageItem{
			{Start: report.From, Rule: "api", Counts: thrice(one)}, {Start: report.From, Rule: "web", Counts: thrice(one)},
		}, usageOf(t, d.Store, a, query).Items, grain)
	}
}
