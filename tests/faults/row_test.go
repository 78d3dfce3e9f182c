package faults

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// A row is one line of the table.
type row struct {
	id    string
	fault string
	goal  string
	run   func(*measurement)
	quick bool   // whether `go test` without arguments runs it
	why   string // without run: why nothing is measured here
}

// rows has all rows, in the order of the table.
func rows() []row {
	return slices.Concat(noFaultRows, redisRows, postgresRows, processRows, tenantRows, securityRows)
}

// A figure is one measured value with its goal.
type figure struct {
	what, got, goal string
	met             bool
}

// A measurement is one run of a case.
type measurement struct {
	*testing.T
	id      string
	quick   bool // shorter faults
	figures []figure
	notes   []string
}

// seconds returns the length of a phase of the load, which is shorter in quick runs.
func (m *measurement) seconds(long, short float64) float64 {
	if m.quick {
		return short
	}
	return long
}

func (m *measurement) add(what, got, goal string, met bool) {
	m.Helper()
	m.Logf("%s %s: %s (goal %s, met %v)", m.id, what, got, goal, met)
	m.figures = append(m.figures, figure{what, got, goal, met})
}

// none reports a count that must be 0.
func (m *measurement) none(what string, got int) {
	m.Helper()
	m.atMost(what, got, 0)
}

// atMost reports a count with its bound. A count that exceeds it fails the test.
func (m *measurement) atMost(what string, got, most int) {
	m.Helper()
	m.add(what, fmt.Sprint(got), fmt.Sprintf("≤ %d", most), got <= most)
	if got > most {
		m.Errorf("%s: %s is %d, the goal is at most %d", m.id, what, got, most)
	}
}

// some reports a count that must not be 0: of what a case needs to show anything.
func (m *measurement) some(what string, got int) {
	m.Helper()
	m.add(what, fmt.Sprint(got), "≥ 1", got >= 1)
	if got < 1 {
		m.Errorf("%s: %s: none", m.id, what)
	}
}

// holds reports a condition. If it is false, the test fails.
func (m *measurement) holds(what string, ok bool) {
	m.Helper()
	m.add(what, map[bool]string{true: "yes", false: "no"}[ok], "yes", ok)
	if !ok {
		m.Errorf("%s: %s: no", m.id, what)
	}
}

// share reports a part of a limit, which depends on the machine and never fails a test.
func (m *measurement) share(what string, got, most float64) {
	m.Helper()
	m.add(what, fmt.Sprintf("%.3g %%", 100*got), fmt.Sprintf("≤ %.3g %%", 100*most), got <= most)
}

// number reports a value that depends on the machine and never fails a test.
func (m *measurement) number(what string, got, most float64, unit string) {
	m.Helper()
	m.add(what, fmt.Sprintf("%.4g%s", got, unit), fmt.Sprintf("≤ %.4g%s", most, unit), got <= most)
}

// bounded is number for a value that must not exceed a generous bound on any machine: beyond fails,
// it fails the test.
func (m *measurement) bounded(what string, got, most, fails float64, unit string) {
	m.Helper()
	m.number(what, got, most, unit)
	if got > fails {
		m.Errorf("%s: %s is %.4g%s, and fails beyond %.4g%s", m.id, what, got, unit, fails, unit)
	}
}

// within reports a time. It never fails a test.
func (m *measurement) within(what string, got, most time.Duration) {
	m.Helper()
	text := round(got)
	if got >= never {
		text = "not during the run"
	}
	m.add(what, text, "≤ "+round(most), got <= most)
}

// note adds a remark to the row.
func (m *measurement) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}

// decided reports that every check got a decision.
func (m *measurement) decided(h *history) {
	m.Helper()
	count, why := h.failures()
	if count > 0 {
		m.Log(why)
	}
	m.none(fmt.Sprintf("E of %d", len(h.records)), count)
}

// limitHeld reports by how many units the limit was exceeded in windows, and how many were denied
// although they were left.
func (m *measurement) limitHeld(where string, windows []window) {
	m.Helper()
	m.none(fmt.Sprintf("O%s, units in %d windows", where, len(windows)), over(windows, probeLimit))
	m.none("U"+where+", units", under(windows, probeLimit))
	m.judged("O"+where, windows)
}

// judged fails the test if there are no windows, of which every statement holds.
func (m *measurement) judged(what string, windows []window) {
	m.Helper()
	if len(windows) == 0 {
		m.Errorf("%s: %s: no window was judged", m.id, what)
	}
}

func round(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

var (
	rowsFlag   = flag.String("rows", "", `ids of rows, separated by commas, or "all"; without it, the quick rows run with short faults`)
	reportFlag = flag.String("report", "", "file whose table the run updates")
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// TestRows runs the cases, one after the other, because each would disturb the times of another.
// The quick rows only verify counts, so they run in parallel.
func TestRows(t *testing.T) {
	wanted := strings.FieldsFunc(*rowsFlag, func(r rune) bool { return r == ',' || r == ' ' })
	for _, id := range wanted {
		require.True(t, id == "all" || slices.ContainsFunc(rows(), func(r row) bool { return r.id == id }), "unknown row %q", id)
	}
	harness.Server(t) // builds the program, before any time is measured
	for _, r := range rows() {
		if r.run == nil || len(wanted) == 0 && !r.quick || len(wanted) > 0 && !slices.Contains(wanted, r.id) && wanted[0] != "all" {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			m := &measurement{T: t, id: r.id, quick: len(wanted) == 0}
			if m.quick {
				t.Parallel()
			}
			began := time.Now()
			defer func() {
				t.Logf("%s took %s. %s", r.id, round(time.Since(began)), strings.Join(m.notes, " "))
				if *reportFlag != "" {
					line := rowLine(r, m)
					report(*reportFlag, r, line)
					fmt.Println(line) // what `make faults` prints
				}
			}()
			r.run(m)
		})
	}
	if *reportFlag != "" {
		finish(*reportFlag, slices.Contains(wanted, "all"))
	}
}

// Every id is listed once, and each row has either a case or the reason why it has none. Tests that
// a reason names exist.
func TestRowsAreComplete(t *testing.T) {
	ids, tests := map[string]bool{}, testenv.DeclaredTests(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	for _, r := range rows() {
		require.False(t, ids[r.id], r.id)
		ids[r.id] = true
		require.NotEmpty(t, r.fault, r.id)
		require.NotEmpty(t, r.goal, r.id)
		require.True(t, (r.run == nil) != (r.why == ""), r.id)
		for _, test := range named.FindAllStringSubmatch(r.why, -1) {
			require.Positive(t, tests[test[1]], "%s: there is no %s", r.id, test[1])
		}
	}
	for prefix, count := range map[string]int{"N": 11, "R": 16, "P": 12, "C": 10, "T": 6, "S": 9} {
		for n := range count {
			require.True(t, ids[fmt.Sprint(prefix, n+1)], "no row %s%d", prefix, n+1)
		}
	}
}

// The documentation lists the rows that `make test` runs.
func TestQuickRowsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "reliability.md"))
	require.NoError(t, err)
	var quick []string
	for _, r := range rows() {
		if r.quick {
			quick = append(quick, r.id)
		}
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	require.Contains(t, text, "these rows with short faults: "+strings.Join(quick, ", ")+".")
}
