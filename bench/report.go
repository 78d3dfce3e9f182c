package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"weir/bench/kernel"
)

// facts are what readers need to judge the figures of a run, one per line.
type facts []string

func (s *stage) facts(ctx context.Context, o options) (facts, error) {
	info, err := s.redis.Info(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	conn, err := s.connect(ctx, s.owner.Database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	var postgres string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil {
		return nil, err
	}
	f := facts{
		fmt.Sprintf("%s, in %s, by `%s`.", started.UTC().Format("2006-01-02 15:04 UTC"), time.Since(started).Round(time.Second), commandLine()),
		fmt.Sprintf("Weir at %s, %s, Redis %s, PostgreSQL %s.", s.revision(ctx), runtime.Version(), infoText(info, "redis_version"), postgres),
		fmt.Sprintf("%s, %d cores for everything together; load average %.1f at the start.", kernel.Machine(), runtime.NumCPU(), loadBefore),
		fmt.Sprintf("%d rounds of %s per row, each after %s of warm-up; %d connections.", o.rounds, o.measure, o.warm, connections),
	}
	if peers := s.peerVersions(); peers != "" {
		f = append(f, "Peers: "+peers+".")
	}
	return f, nil
}

func commandLine() string {
	return strings.Join(append([]string{"bench/run.sh"}, os.Args[1:]...), " ")
}

// revision returns the commit that was built.
func (s *stage) revision(ctx context.Context) string {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", s.root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "an unknown commit"
	}
	if changes, err := git("status", "--porcelain", "--untracked-files=no"); err != nil || changes != "" {
		return commit + " with changes"
	}
	return commit
}

// markdown returns the report: the facts, the goals, the tables, and deviations.
func (r *results) markdown(f facts) string {
	var b strings.Builder
	for _, fact := range f {
		fmt.Fprintf(&b, "- %s\n", fact)
	}
	if quiet := r.disturbance(); quiet != "" {
		fmt.Fprintf(&b, "- %s\n", quiet)
	}
	var all [][]row
	for i := range r.groups {
		all = append(all, r.rows(i))
	}
	writeGoals(&b, r.goals(all))
	var odd []string
	for i, g := range r.groups {
		writeTable(&b, g, all[i])
		for _, w := range all[i] {
			odd = append(odd, w.oddities()...)
		}
	}
	if len(odd) > 0 {
		b.WriteString("\n### Deviations\n\n")
		for _, o := range odd {
			fmt.Fprintf(&b, "- %s\n", o)
		}
	}
	return b.String()
}

// column is a column of a table.
type column struct {
	head  string
	value func(row) string
}

var columns = []column{
	{"checks/s", func(w row) string { return thousands(w.perSecond) }},
	{"spread", func(w row) string { return fmt.Sprintf("%.0f %%", 100*w.spread) }},
	{"p50 ms", func(w row) string { return millis(w.p50) }},
	{"p99 ms", func(w row) string { return millis(w.p99) }},
	{"p99.9 ms", func(w row) string { return millis(w.p999) }},
	{"server µs", func(w row) string { return fmt.Sprintf("%.1f", w.serverCPU) }},
	{"Redis µs", func(w row) string { return fmt.Sprintf("%.1f", w.redisCPU) }},
	{"driver µs", func(w row) string { return fmt.Sprintf("%.1f", w.driverCPU) }},
	{"allocs", func(w row) string { return orDash(w.allocations, "%.1f") }},
	{"peak MB", func(w row) string { return fmt.Sprintf("%.0f", w.peakBytes/(1<<20)) }},
	{"B/counter", func(w row) string { return orDash(w.redisBytes, "%.0f") }},
}

// closedColumns are only in tables of closed loops.
var closedColumns = []column{
	{"× rate", func(w row) string { return fmt.Sprintf("%.2f", w.rateRatio) }},
	{"× CPU", func(w row) string { return fmt.Sprintf("%.2f", w.cpuRatio) }},
	{"× p50", func(w row) string { return fmt.Sprintf("%.2f", w.p50Ratio) }},
	{"× p99", func(w row) string { return fmt.Sprintf("%.2f", w.p99Ratio) }},
}

// openColumns are only in tables of open loops, where all servers get the same rate.
var openColumns = []column{
	{"× CPU", func(w row) string { return fmt.Sprintf("%.2f", w.cpuRatio) }},
	{"sent late, p99 ms", func(w row) string { return millis(w.late99) }},
	{"p50 without driver, ms", func(w row) string { return millis(w.servedP50) }},
	{"p99 without driver, ms", func(w row) string { return millis(w.servedP99) }},
	{"p99.9 without driver, ms", func(w row) string { return millis(w.servedP999) }},
	{"p99 above bare, ms", func(w row) string { return millis(w.p99Above) }},
}

func writeTable(b *strings.Builder, g group, rows []row) {
	shown := slices.Concat(columns, closedColumns)
	if g.cells[0].rate != 0 {
		shown = slices.Concat(columns, openColumns)
	}
	fmt.Fprintf(b, "\n### %s\n\n| |", g.title)
	for _, c := range shown {
		fmt.Fprintf(b, " %s |", c.head)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(shown)) + "\n")
	for _, w := range rows {
		name := w.name
		if w.rate != 0 {
			name = fmt.Sprintf("%s, %s/s", name, thousands(float64(w.rate)))
		}
		fmt.Fprintf(b, "| %s |", name)
		for _, c := range shown {
			fmt.Fprintf(b, " %s |", c.value(w))
		}
		b.WriteString("\n")
	}
}

func millis(micros float64) string { return fmt.Sprintf("%.2f", micros/1000) }

func orDash(v float64, format string) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf(format, v)
}

// thousands formats an integer in groups of three digits.
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}

// The lines of docs/performance.md before and after the report.
const (
	reportBegin = "<!-- bench: begin -->\n"
	reportEnd   = "<!-- bench: end -->"
)

// writeReport replaces the report in the page.
func writeReport(root, report string) error {
	file := filepath.Join(root, "docs", "performance.md")
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page, err = replaceReport(page, report)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, page, 0o644)
}

func replaceReport(page []byte, report string) ([]byte, error) {
	before, rest, found := strings.Cut(string(page), reportBegin)
	if !found {
		return nil, fmt.Errorf("has no line %q", strings.TrimSpace(reportBegin))
	}
	_, after, found := strings.Cut(rest, reportEnd)
	if !found {
		return nil, fmt.Errorf("has no line %q", reportEnd)
	}
	return []byte(before + reportBegin + report + reportEnd + after), nil
}
