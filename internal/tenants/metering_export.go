package tenants

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"time"
)

// MeteredWriter writes metered usage as CSV or as JSON lines. Both end with what may be missing, so
// that a file says it by itself: a gap is a row without a subject and without units, and units
// without a subject have a row with the note. A file of JSON lines also has a last line, without
// which it is incomplete.
type MeteredWriter struct {
	buffer *bufio.Writer
	table  *csv.Writer // of the two, the requested one
	lines  *json.Encoder
	report MeteredReport
	rows   int64
}

// NewMeteredCSV returns a writer of CSV as in RFC 4180.
func NewMeteredCSV(w io.Writer, report MeteredReport) *MeteredWriter {
	buffer := bufio.NewWriterSize(w, 64<<10)
	return &MeteredWriter{buffer: buffer, table: newTable(buffer), report: report}
}

// NewMeteredLines returns a writer of JSON lines.
func NewMeteredLines(w io.Writer, report MeteredReport) *MeteredWriter {
	buffer := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(buffer)
	lines.SetEscapeHTML(false)
	return &MeteredWriter{buffer: buffer, lines: lines, report: report}
}

var meteredColumns = []string{"start", "subject", "rule", "units", "overage_units", "checks", "late_units", "sealed", "note", "free_units", "billed_units"}

// Begin writes the header of a table.
func (m *MeteredWriter) Begin() error {
	if m.table != nil {
		_ = m.table.Write(meteredColumns) // flush returns the error
	}
	return m.flush()
}

// meteredLine is an item as a line of JSON.
type meteredLine struct {
	Type         string     `json:"type"` // usage or unattributed
	Start        *time.Time `json:"start,omitempty"`
	Subject      string     `json:"subject,omitempty"`
	Rule         string     `json:"rule"`
	Units        int64      `json:"units"`
	OverageUnits int64      `json:"overage_units"`
	FreeUnits    int64      `json:"free_units"`
	BilledUnits  int64      `json:"billed_units"`
	Checks       int64      `json:"checks"`
	LateUnits    int64      `json:"late_units"`
	Sealed       bool       `json:"sealed"`
}

// Write writes items.
func (m *MeteredWriter) Write(items []MeteredItem) error {
	for i := range items {
		item := &items[i]
		m.rows++
		if m.table != nil {
			_ = m.table.Write(m.cells(item, ""))
			continue
		}
		line := meteredLine{
			Type: "usage", Subject: item.Subject, Rule: item.Rule, Units: item.Units, OverageUnits: item.OverageUnits,
			FreeUnits: item.FreeUnits, BilledUnits: item.BilledUnits, Checks: item.Checks, LateUnits: item.LateUnits, Sealed: m.sealed(item),
		}
		if !item.Start.IsZero() {
			line.Start = &item.Start
		}
		if err := m.lines.Encode(line); err != nil {
			return err
		}
	}
	return m.flush()
}

// sealed reports whether the numbers of an item never change.
func (m *MeteredWriter) sealed(item *MeteredItem) bool {
	if item.Start.IsZero() {
		return !m.report.To.After(m.report.SealedUntil)
	}
	return item.Start.Before(m.report.SealedUntil)
}

func (m *MeteredWriter) cells(item *MeteredItem, note string) []string {
	start := m.report.From
	if !item.Start.IsZero() {
		start = item.Start
	}
	return []string{
		start.Format(time.RFC3339), CSVCell(item.Subject), item.Rule, strconv.FormatInt(item.Units, 10), strconv.FormatInt(item.OverageUnits, 10),
		strconv.FormatInt(item.Checks, 10), strconv.FormatInt(item.LateUnits, 10), strconv.FormatBool(m.sealed(item)), note,
		strconv.FormatInt(item.FreeUnits, 10), strconv.FormatInt(item.BilledUnits, 10),
	}
}

// End writes what may be missing, and the last line of JSON lines.
func (m *MeteredWriter) End() error {
	for _, t := range m.report.Totals {
		if t.UnattributedUnits == 0 {
			continue
		}
		item := MeteredItem{Rule: t.Rule, Units: t.UnattributedUnits}
		if m.table != nil {
			_ = m.table.Write(m.cells(&item, "units of the period whose subjects were not recorded"))
		} else if err := m.lines.Encode(meteredLine{Type: "unattributed", Rule: t.Rule, Units: t.UnattributedUnits, Sealed: m.sealed(&item)}); err != nil {
			return err
		}
	}
	for i := range m.report.Gaps {
		if err := m.gap(&m.report.Gaps[i]); err != nil {
			return err
		}
	}
	if m.lines != nil {
		err := m.lines.Encode(map[string]any{
			"type": "end", "from": m.report.From, "to": m.report.To, "sealed_until": m.report.SealedUntil, "rows": m.rows,
		})
		if err != nil {
			return err
		}
	}
	return m.flush()
}

func (m *MeteredWriter) gap(g *MeteringGap) error {
	if m.lines != nil {
		return m.lines.Encode(map[string]any{"type": "gap", "from": g.From, "to": g.To, "closed_at": g.ClosedAt})
	}
	note := "units from " + g.From.Format(time.RFC3339) + " until at most " + g.To.Format(time.RFC3339) +
		" may be missing: an instance has not written them, or Postgres has lost them"
	if g.ClosedAt != nil {
		note = "since " + g.ClosedAt.UTC().Format(time.RFC3339) + " it is known that no units are missing: the instance has written all that it had"
	}
	return m.table.Write([]string{g.From.Format(time.RFC3339), "", "", "", "", "", "", "", note, "", ""})
}

func (m *MeteredWriter) flush() error {
	if m.table != nil {
		m.table.Flush()
		if err := m.table.Error(); err != nil {
			return err
		}
	}
	return m.buffer.Flush()
}
