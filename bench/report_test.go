package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/bench/load"
)

func TestTableHasRowForEachCell(t *testing.T) {
	var b strings.Builder
	g := group{"open", "Open loop", []cell{{name: "bare", base: true, rate: 12_000}, {name: "weir", rate: 12_000}}}
	r := newResults([]group{g})
	r.samples[0] = [][]sample{{{perSecond: 12_000, p99: 400, servedP99: 300, serverCPU: 20}}, {{perSecond: 11_999.6, p99: 2400, servedP99: 1300, serverCPU: 25, redisBytes: 110.4}}}
	writeTable(&b, g, r.rows(0))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 6)
	require.Equal(t, "### Open loop", lines[0])
	for _, line := range lines[2:] {
		require.Equal(t, strings.Count(lines[2], "|"), strings.Count(line, "|"), line)
	}
	require.Contains(t, lines[5], "| weir, 12 000/s | 12 000 |")
	require.Contains(t, lines[5], " 110 |")
	require.True(t, strings.HasSuffix(lines[5], " 1.00 |"), "p99 above the bare server's, in ms, without the driver's lateness")
	require.Contains(t, lines[5], " 2.40 |", "p99 from when a request was due")
	require.Contains(t, lines[5], " 1.30 |", "p99 without the driver's lateness")
	require.Contains(t, lines[4], " – |", "no counters, no bytes")
}

func TestThousands(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1 000", 1234567: "1 234 567"} {
		require.Equal(t, want, thousands(v))
	}
}

func TestReportReplacesPrevious(t *testing.T) {
	page := "# Title\n\n" + reportBegin + "old\n" + reportEnd + "\nrest\n"
	got, err := replaceReport([]byte(page), "new\n")
	require.NoError(t, err)
	require.Equal(t, strings.Replace(page, "old", "new", 1), string(got))
	for _, bad := range []string{"", reportBegin, reportEnd + reportBegin} {
		_, err := replaceReport([]byte(bad), "new\n")
		require.Error(t, err)
	}
}

// The page has the lines between which -write puts the report.
func TestPageHasReportLines(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "performance.md"))
	require.NoError(t, err)
	_, err = replaceReport(page, "")
	require.NoError(t, err)
}

func TestGoalsFindTheirRows(t *testing.T) {
	c := newCast(options{tenants: []int{1, 3}})
	groups, err := c.groups(options{peers: true, rates: []int64{1000}})
	require.NoError(t, err)
	r := newResults(groups)
	var all [][]row
	for i, g := range groups {
		for j := range g.cells {
			r.samples[i][j] = []sample{{perSecond: 100, serverCPU: 10, p50: 1, p99: 1, redisBytes: 100}}
		}
		all = append(all, r.rows(i))
	}
	goals := r.goals(all)
	require.Len(t, goals, 30, "a mix that is renamed must not lose its goal")
	require.True(t, goals[0].reached)
	require.Equal(t, "1.00", goals[0].measured)
}

func TestMixesCanBePicked(t *testing.T) {
	c := newCast(options{tenants: []int{1}})
	groups, err := c.groups(options{groups: []string{"open", "rules"}})
	require.NoError(t, err)
	require.Len(t, groups, 2)
	require.Equal(t, "open", groups[0].name)
	last := groups[0].cells[3]
	require.Equal(t, halfOfCapacity, last.name)
	require.EqualValues(t, 2, last.share)
	require.Zero(t, last.rate, "it is known only after a closed loop")
	_, err = c.groups(options{groups: []string{"peers"}})
	require.ErrorContains(t, err, `no mix "peers"`)
}

func TestEachGroupBeginsWithItsBase(t *testing.T) {
	groups, err := newCast(options{tenants: []int{1}}).groups(options{peers: true})
	require.NoError(t, err)
	for _, g := range groups {
		require.True(t, g.cells[0].base, g.name)
		require.Equal(t, bareName, g.cells[0].server, g.name)
		require.Equal(t, g.cells[0].protocol, g.cells[1].protocol, g.name)
	}
	require.Equal(t, load.HTTP2, groups[4].cells[0].protocol)
}

func TestInvalidOptionsAreErrors(t *testing.T) {
	o, err := parseOptions(nil)
	require.NoError(t, err)
	require.Equal(t, []int64{2000, 10000}, o.rates)
	require.Empty(t, o.groups)
	for _, args := range [][]string{{"-rounds", "0"}, {"-rates", "x"}, {"-rates", "0"}, {"-measure", "1ms"}, {"-tenants", "0"}, {"-metered-subjects", "0"}, {"-metered-time", "1ms"}, {"more"}} {
		_, err := parseOptions(args)
		require.Error(t, err, "%v", args)
	}
}

func TestInfoText(t *testing.T) {
	info := "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"
	require.Equal(t, "7.0.15", infoText(info, "redis_version"))
	require.Empty(t, infoText(info, "version"))
}
