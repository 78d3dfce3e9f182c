package tenants_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// addGaps adds n gaps of a minute each, one second after the other, closed or open.
func addGaps(d *tenantstest.Database, n int, from time.Time, closed bool) {
	d.Exec(`INSERT INTO metering_gaps (writer, from_at, to_at, closed_at)
		SELECT gen_random_uuid(), f.at, f.at + interval '1 minute', CASE WHEN $3 THEN f.at + interval '5 minutes' END
		FROM generate_series(0, $1::int - 1) AS i CROSS JOIN LATERAL (SELECT $2::timestamptz + i * interval '1 second' AS at) AS f`, n, from, closed)
}

// gapFiles returns the number of gaps in both files, by whether units may be missing.
func gapFiles(t *testing.T, report tenants.MeteredReport) (table, lines map[bool]int) {
	t.Helper()
	var csv, jsonl bytes.Buffer
	require.NoError(t, tenants.NewMeteredCSV(&csv, report).End())
	require.NoError(t, tenants.NewMeteredLines(&jsonl, report).End())
	return map[bool]int{true: strings.Count(csv.String(), "may be missing"), false: strings.Count(csv.String(), "no units are missing")},
		map[bool]int{true: strings.Count(jsonl.String(), `"closed_at":null`), false: strings.Count(jsonl.String(), `"closed_at":"`)}
}

// However many gaps were closed, the report has those in which units may be missing.
func TestClosedGapsHideNoOpenOne(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	yesterday := today.Add(-24 * time.Hour)
	addGaps(d, 1000, today.Add(-48*time.Hour), true)
	addGaps(d, 1, yesterday, false)
	report, _ := meteredOf(t, d.Store, a, tenants.MeteredQuery{From: today.Add(-72 * time.Hour), Open: true})
	require.Len(t, report.Gaps, 1000)
	require.Equal(t, tenants.MeteringGap{From: yesterday, To: yesterday.Add(time.Minute)}, report.Gaps[999], "in the order of time")
	for _, g := range report.Gaps[:999] {
		require.NotNil(t, g.ClosedAt)
	}
	table, lines := gapFiles(t, report)
	require.Equal(t, map[bool]int{true: 1, false: 999}, table)
	require.Equal(t, table, lines)
}

// If there are more gaps than the report lists, its last one spans the rest of them.
func TestManyOpenGapsAreSpanned(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	start := time.Now().UTC().Truncate(24 * time.Hour).Add(-48 * time.Hour)
	query := tenants.MeteredQuery{From: start.Add(-24 * time.Hour), Open: true}
	addGaps(d, 1000, start, false)
	addGaps(d, 10, start.Add(-time.Hour), true)
	report, _ := meteredOf(t, d.Store, a, query)
	require.Len(t, report.Gaps, 1000)
	require.Equal(t, tenants.MeteringGap{From: start.Add(999 * time.Second), To: start.Add(1059 * time.Second)}, report.Gaps[999])

	addGaps(d, 500, start.Add(1000*time.Second), false)
	long := start.Add(1200 * time.Second) // within the rest, and the last to end
	d.Exec("INSERT INTO metering_gaps (writer, from_at, to_at) VALUES (gen_random_uuid(), $1, $2)", long, long.Add(10*time.Hour))
	report, _ = meteredOf(t, d.Store, a, query)
	require.Len(t, report.Gaps, 1000)
	for i, g := range report.Gaps[:999] {
		require.Equal(t, tenants.MeteringGap{From: start.Add(time.Duration(i) * time.Second), To: start.Add(time.Duration(i+60) * time.Second)}, g)
	}
	require.Equal(t, tenants.MeteringGap{From: start.Add(999 * time.Second), To: long.Add(10 * time.Hour)}, report.Gaps[999])
	table, lines := gapFiles(t, report)
	require.Equal(t, map[bool]int{true: 1000, false: 0}, table)
	require.Equal(t, table, lines)
}
