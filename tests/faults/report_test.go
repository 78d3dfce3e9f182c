package faults

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// The table stands between these lines of the document. The rest of the document is prose.
const (
	tableBegins = "<!-- table: begin -->"
	tableEnds   = "<!-- table: end -->"
)

const tableHead = "| id | fault | goal | measured | met | run |\n|---|---|---|---|---|---|\n"

// report replaces one line of the table.
func report(file string, r row, m *measurement) {
	lines := readTable(file)
	lines[r.id] = rowLine(r, m)
	writeTable(file, lines)
}

// finish adds the lines of rows that have no case, and the date and the machine.
func finish(file string) {
	lines := readTable(file)
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
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s, load %s |", r.id, r.fault, r.goal, measured, met,
		time.Now().UTC().Format("2006-01-02"), loadAverage())
}

// loadAverage returns the load of the machine over the last minute, which includes this run.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(content))[0]
}

var lineID = regexp.MustCompile(`^\| ([NRPCTS]\d+) \|`)

// readTable returns the lines of the table by id.
func readTable(file string) map[string]string {
	content, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if found := lineID.FindStringSubmatch(line); found != nil {
			lines[found[1]] = strings.TrimSuffix(line, "\n")
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
	fmt.Fprintf(&table, "%s\n\nLast run: %s, `make faults`, %s, %d processors, %s.\n\n", tableBegins, time.Now().UTC().Format("2006-01-02 15:04 UTC"), processor(), runtime.NumCPU(), runtime.Version())
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
