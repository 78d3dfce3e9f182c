package simulate

import (
	"fmt"
	"strings"
	"sync"
)

// A Table is a table of docs/scaling.md. The page has it between two lines with its name:
//
//	<!-- simulate NAME: begin -->
//	<!-- simulate NAME: end -->
type Table struct{ Name, Text string }

// Tables runs all simulations.
func Tables(in Inputs) []Table {
	parts := []struct {
		name string
		text func(Inputs) string
	}{
		{"costs", costsTable}, {"validation", validation}, {"calls", perCall}, {"growth", growth}, {"million", millionTable},
		{"regions", regionsTable}, {"trips", trips}, {"outage", outageTable}, {"viral", viralTable},
	}
	tables := make([]Table, len(parts))
	var running sync.WaitGroup
	for i, p := range parts {
		running.Go(func() { tables[i] = Table{p.name, p.text(in)} })
	}
	running.Wait()
	return tables
}

func costsTable(in Inputs) string {
	var b strings.Builder
	b.WriteString("| cost | | from |\n|---|---:|---|\n")
	for _, c := range in.list() {
		fmt.Fprintf(&b, "| %s | %.4g %s | %s |\n", c.What, c.Value, c.Unit, c.Source)
	}
	return b.String() + "\nMeasured: " + measuredRun + "\n"
}

// Replace returns a page with the tables in place of those that it has.
func Replace(page string, tables []Table) (string, error) {
	for _, t := range tables {
		begin, end := "<!-- simulate "+t.Name+": begin -->\n", "<!-- simulate "+t.Name+": end -->"
		before, rest, found := strings.Cut(page, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return "", fmt.Errorf("the page has no lines %q and %q", strings.TrimSpace(begin), end)
		}
		page = before + begin + "\n" + strings.TrimSpace(t.Text) + "\n\n" + end + after
	}
	return page, nil
}
