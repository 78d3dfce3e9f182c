package tenants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/usage"
)

// Lists of subjects are decoded in turns: few bytes are short work, and many are long work. Before,
// reports of 60 MB of lists were decoded on all processors at once.
func TestUsageListsTakeTurns(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	processors := places.NewProcessors(8)
	d.Store.TakeTurns(processors)
	start := usageStart()
	batch := usageBatch(uuid.New())
	batch.Subjects = []usage.Subjects{subjectsOf(a, start, "alice", 3)}
	for minute := range 6 {
		full := usage.Subjects{Tenant: b.TenantID(), StartMS: start.Add(time.Duration(minute) * time.Minute).UnixMilli()}
		for n := range 100 {
			s := usage.Subject{Subject: fmt.Sprintf("%03d%s", n, strings.Repeat("x", 253)), Counts: usage.Counts{Allowed: 1, Denied: 1}}
			full.Checks, full.Denied = append(full.Checks, s), append(full.Denied, s)
		}
		batch.Subjects = append(batch.Subjects, full)
	}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	d.Store.SetListWait(0)
	query := tenants.UsageQuery{Grain: usage.Minute, From: start, To: start.Add(time.Hour)}
	reports := func(actor tenants.Actor) []error {
		top, denied := query, query
		top.BySubject, denied.Subject, denied.DeniedFirst = true, "alice", true
		_, errTop := d.Store.Usage(t.Context(), actor, top)
		_, errDenied := d.Store.Usage(t.Context(), actor, denied)
		_, errSubject := d.Store.UsageOfSubject(t.Context(), actor, "alice", query)
		return []error{errTop, errDenied, errSubject}
	}
	for _, kind := range []struct {
		turns          *places.Turns[uuid.UUID]
		waiting, other tenants.Actor
	}{{processors.Short, a, b}, {processors.Long, b, a}} {
		var leaves []func()
		for n := range kind.turns.Most() {
			leave, err := kind.turns.Take(t.Context(), uuid.UUID{byte(n + 1)})
			require.NoError(t, err)
			leaves = append(leaves, leave)
		}
		for _, err := range reports(kind.waiting) {
			require.ErrorIs(t, err, tenants.ErrTooManyReports)
		}
		for _, err := range reports(kind.other) {
			require.NoError(t, err, "the other kind of turns")
		}
		_, err := d.Store.Usage(t.Context(), kind.waiting, query)
		require.NoError(t, err, "without lists")
		for _, leave := range leaves {
			leave()
		}
		for _, err := range reports(kind.waiting) {
			require.NoError(t, err)
		}
	}
}

// A report of many periods reads them in several batches, and has each once, in order.
func TestUsageListsInBatches(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	start := usageStart()
	batch := usageBatch(uuid.New())
	var want []time.Time
	for _, minute := range []int{0, 99, 100, 101, 199, 200, 230} { // 100 in a batch
		at := start.Add(-4 * time.Hour).Add(time.Duration(minute) * time.Minute)
		batch.Subjects = append(batch.Subjects, subjectsOf(a, at, "alice", 2), subjectsOf(b, at, "alice", 5))
		want = append(want, at)
	}
	require.NoError(t, d.Store.WriteUsage(t.Context(), batch))
	query := tenants.UsageQuery{Grain: usage.Minute, From: want[0], To: want[len(want)-1].Add(time.Minute)}
	of, err := d.Store.UsageOfSubject(t.Context(), a, "alice", query)
	require.NoError(t, err)
	require.False(t, of.CompleteUntil.IsZero())
	query.Subject = "alice"
	report, err := d.Store.Usage(t.Context(), a, query)
	require.NoError(t, err)
	require.False(t, report.CompleteUntil.IsZero())
	var inReport, inSteps []time.Time
	for _, item := range report.Items {
		require.EqualValues(t, 2, item.Allowed)
		inReport = append(inReport, item.Start.UTC())
	}
	for _, step := range of.Steps {
		inSteps = append(inSteps, step.Start.UTC())
	}
	require.Equal(t, want, inReport)
	require.Equal(t, want, inSteps)
}
