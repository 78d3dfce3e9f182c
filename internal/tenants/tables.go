package tenants

import (
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// CSVCell prevents a spreadsheet from treating a text in a table as a formula, by an apostrophe in
// front. Clients choose subjects and resources, and other people open the table. A text that
// already looks like the result gets one more apostrophe, so that CSVText can restore every text.
func CSVCell(text string) string {
	if looksLikeFormula(strings.TrimLeft(text, "'")) {
		return "'" + text
	}
	return text
}

// CSVText returns the text from which CSVCell made a cell.
func CSVText(cell string) string {
	if text, quoted := strings.CutPrefix(cell, "'"); quoted && looksLikeFormula(strings.TrimLeft(text, "'")) {
		return text
	}
	return cell
}

func looksLikeFormula(text string) bool {
	return text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0]))
}

// newTable returns a CSV writer as in RFC 4180.
func newTable(w io.Writer) *csv.Writer {
	table := csv.NewWriter(w)
	table.UseCRLF = true
	return table
}

// WriteCSV writes the items as a table with a header. Each value by which the query groups has a
// column.
func (r *UsageReport) WriteCSV(w io.Writer, q *UsageQuery) error {
	table := newTable(w)
	_ = table.Write(append(append([]string{"start"}, q.names()...),
		"allowed", "denied", "shadow_denied", "degraded", "cost_allowed", "cost_denied")) // table.Error returns the error
	for i := range r.Items {
		item := &r.Items[i]
		row := append([]string{item.Start.Format(time.RFC3339)}, item.cells(q)...)
		for _, n := range []int64{item.Allowed, item.Denied, item.ShadowDenied, item.Degraded, item.CostAllowed, item.CostDenied} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		_ = table.Write(row)
	}
	table.Flush()
	return table.Error()
}

// names returns the names of the columns that depend on the query.
func (q *UsageQuery) names() (names []string) {
	for _, c := range []struct {
		name string
		by   bool
	}{{"rule", q.ByRule}, {"plan", q.ByPlan}, {"resource", q.ByResource}, {"subject", q.ofSubjects()}, {"error_bound", q.ofSubjects()}} {
		if c.by {
			names = append(names, c.name)
		}
	}
	return names
}

func (item *UsageItem) cells(q *UsageQuery) (cells []string) {
	for _, c := range []struct {
		text string
		by   bool
	}{{item.Rule, q.ByRule}, {item.Plan, q.ByPlan}, {item.Resource, q.ByResource}, {item.Subject, q.ofSubjects()}} {
		if c.by {
			cells = append(cells, CSVCell(c.text))
		}
	}
	if q.ofSubjects() {
		cells = append(cells, strconv.FormatInt(item.Error, 10))
	}
	return cells
}

// auditColumns are those of a trail as a table.
var auditColumns = []string{"sequence", "id", "at", "actor_kind", "actor_id", "actor_name", "address", "user_agent",
	"request_id", "action", "kind", "target", "before", "after", "reason", "hash"}

// AuditTable writes rows of a trail as CSV, with a header before the first.
type AuditTable struct {
	table *csv.Writer
	begun bool
}

// NewAuditTable returns an AuditTable that writes to w.
func NewAuditTable(w io.Writer) *AuditTable { return &AuditTable{table: newTable(w)} }

// Write writes rows and flushes. Its error is that of the underlying writer.
func (t *AuditTable) Write(rows []AuditEntry) error {
	if !t.begun {
		t.begun = true
		_ = t.table.Write(auditColumns) // table.Error returns the error
	}
	for i := range rows {
		_ = t.table.Write(rows[i].cells())
	}
	t.table.Flush()
	return t.table.Error()
}

func (e *AuditEntry) cells() []string {
	actor := ""
	if e.ActorID != nil {
		actor = e.ActorID.String()
	}
	return []string{strconv.FormatInt(e.Sequence, 10), e.ID.String(), e.At.Format(time.RFC3339Nano), e.ActorKind, actor,
		CSVCell(e.ActorName), CSVCell(e.Address), CSVCell(e.UserAgent), CSVCell(e.RequestID), e.Action, e.Kind,
		CSVCell(e.Target), string(e.Before), string(e.After), CSVCell(e.Reason), hex.EncodeToString(e.Hash[:])}
}

// auditLine is a row of a trail as JSON, in the form of the admin API.
type auditLine struct {
	Sequence  int64           `json:"sequence"`
	ID        uuid.UUID       `json:"id"`
	At        time.Time       `json:"at"`
	Actor     auditLineActor  `json:"actor"`
	Address   string          `json:"address"`
	UserAgent string          `json:"user_agent"`
	RequestID string          `json:"request_id"`
	Action    string          `json:"action"`
	Kind      string          `json:"kind"`
	Target    string          `json:"target"`
	Before    json.RawMessage `json:"before"`
	After     json.RawMessage `json:"after"`
	Reason    string          `json:"reason"`
	Hash      string          `json:"hash"`
}

type auditLineActor struct {
	Kind string     `json:"kind"`
	ID   *uuid.UUID `json:"id"`
	Name string     `json:"name"`
}

// NewAuditLines returns a function that writes rows of a trail to w, as one JSON object per line.
func NewAuditLines(w io.Writer) func(rows []AuditEntry) error {
	lines := json.NewEncoder(w)
	return func(rows []AuditEntry) error {
		for i := range rows {
			e := &rows[i]
			err := lines.Encode(auditLine{
				Sequence: e.Sequence, ID: e.ID, At: e.At, Actor: auditLineActor{e.ActorKind, e.ActorID, e.ActorName}, Address: e.Address,
				UserAgent: e.UserAgent, RequestID: e.RequestID, Action: e.Action, Kind: e.Kind, Target: e.Target,
				Before: e.Before, After: e.After, Reason: e.Reason, Hash: hex.EncodeToString(e.Hash[:]),
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}
