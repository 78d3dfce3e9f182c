package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The table stands between these lines of the document. The rest of the document is prose.
const (
	tableBegins = "<!-- table: begin -->"
	tableEnds   = "<!-- table: end -->"
)

const tableHead = "| id | fault | goal | measured | met | run |\n|---|---|---|---|---|---|\n"

// report replaces one line of the table.
func report(file string, r row, line string) {
	lines := readTable(file)
	lines[r.id] = line
	writeTable(file, lines)
}

// finish adds the lines of rows that have no case, and after a run of all rows what they have in
// common. A run of some rows leaves that and the lines of the others as they are.
func finish(file string, all bool) {
	lines := readTable(file)
	if all {
		lines[headLine] = fmt.Sprintf("Last run of all rows: %s, `make faults`, %s, %d processors, %s.",
			time.Now().UTC().Format("2006-01-02 15:04 UTC"), processor(), runtime.NumCPU(), runtime.Version())
	}
	for _, r := range rows() {
		switch {
		case r.run == nil:
			lines[r.id] = fmt.Sprintf("| %s | %s | %s | %s | not measured here | |", r.id, r.fault, r.goal, r.why)
		case lines[r.id] == "":
			lines[r.id] = fmt.Sprintf("| %s | %s | %s | | not run yet | |", r.id, r.fault, r.goal)
		}
	}
	writeTable(file, lines)
}

// rowLine is the line of a measured row. Figures that miss their goal are bold.
func rowLine(r row, m *measurement) string {
	met := "yes"
	var figures []string
	for _, f := range m.figures {
		text := fmt.Sprintf("%s: %s", f.what, f.got)
		if !f.met {
			text = fmt.Sprintf("**%s (goal %s)**", text, f.goal)
			met = "no"
		}
		figures = append(figures, text)
	}
	measured := strings.Join(figures, "; ")
	if len(m.notes) > 0 {
		measured += ". " + strings.Join(m.notes, " ")
	}
	if len(m.figures) == 0 {
		met, measured = "no", "The case did not complete."
	} else if m.Failed() {
		met = "no"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s, %s, load %s |", r.id, r.fault, r.goal, measured, met,
		time.Now().UTC().Format("2006-01-02"), commit(), loadAverage())
}

// commit returns the commit that is measured, with "-dirty" if files differ from it. The document
// does, because the run writes it.
var commit = sync.OnceValue(func() string {
	head, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "no commit"
	}
	changes, err := git("status", "--porcelain", "--", ":(top)", ":(top,exclude)docs/reliability.md")
	if err != nil || changes != "" {
		head += "-dirty"
	}
	return head
})

// loadAverage returns the load of the machine over the last minute, which includes this run.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(content))[0]
}

var lineID = regexp.MustCompile(`^\| ([NRPCTS]\d+) \|`)

// headLine is the id of the line above the table.
const headLine = "Last run"

// readTable returns the lines of the table by id.
func readTable(file string) map[string]string {
	content, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	lines := map[string]string{}
	_, rest, _ := strings.Cut(string(content), tableBegins)
	table, _, _ := strings.Cut(rest, tableEnds) // other sections have lines that begin in the same way
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		if found := lineID.FindStringSubmatch(line); found != nil {
			lines[found[1]] = line
		} else if strings.HasPrefix(line, headLine) {
			lines[headLine] = line
		}
	}
	return lines
}

func writeTable(file string, lines map[string]string) {
	content, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	before, rest, found := strings.Cut(string(content), tableBegins)
	_, after, foundEnd := strings.Cut(rest, tableEnds)
	if !found || !foundEnd {
		panic(file + " has no lines for the table")
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%s\n\n%s\n", tableBegins, lines[headLine])
	section := ""
	for _, r := range rows() {
		if title := sections[r.id[:1]]; title != section {
			section = title
			fmt.Fprintf(&table, "\n### %s\n\n%s", title, tableHead)
		}
		if line := lines[r.id]; line != "" {
			table.WriteString(line + "\n")
		}
	}
	table.WriteString("\n" + tableEnds)
	if err := os.WriteFile(file, []byte(before+table.String()+after), 0o644); err != nil {
		panic(err)
	}
}

var sections = map[string]string{
	"N": "No fault", "R": "Redis", "P": "Postgres and configuration", "C": "Processes and clients", "T": "Tenants", "S": "Security",
}

// processor returns the model of the processors.
func processor() string {
	content, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	_, rest, _ := strings.Cut(string(content), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	_, model, found := strings.Cut(line, ": ")
	if !found {
		return runtime.GOARCH
	}
	return model
}

// A run of one row writes that row, with its commit, and leaves the others and the line above the
// table as they are.
func TestReportOfOneRow(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("before\nLast run: of something else\n"+tableBegins+"\nLast run of all rows: then.\n| N4 | a | b | c | yes | 2020-01-01, abc, load 1 |\n"+
		"| N5 | a | b | c | yes | 2020-01-01, abc, load 1 |\n"+tableEnds+"\n| N4 | why |\nafter\n"), 0o600))
	measured := row{id: "N5", fault: "f", goal: "g"}
	report(page, measured, rowLine(measured, &measurement{T: t, figures: []figure{{"E", "0", "≤ 0", true}}}))
	finish(page, false)
	content, err := os.ReadFile(page)
	require.NoError(t, err)
	text := string(content)
	require.Contains(t, text, "\nLast run of all rows: then.\n")
	require.Contains(t, text, "\n| N4 | a | b | c | yes | 2020-01-01, abc, load 1 |\n")
	require.Regexp(t, `\n\| N5 \| f \| g \| E: 0 \| yes \| \d{4}-\d\d-\d\d, [0-9a-f]+(-dirty)?, load [\d.]+ \|\n`, text)
	require.True(t, strings.HasPrefix(text, "before\nLast run: of something else\n") && strings.HasSuffix(text, tableEnds+"\n| N4 | why |\nafter\n"))
	finish(page, true)
	content, err = os.ReadFile(page)
	require.NoError(t, err)
	require.NotContains(t, string(content), "all rows: then.")
}
