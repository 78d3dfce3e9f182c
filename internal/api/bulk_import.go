package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

const (
	maxImportBody      = 64 << 20 // bytes
	maxImportLines     = 200_000
	maxImportOverrides = 200_000 // of all lines together
	maxImportLine      = 1 << 20 // bytes, in JSON

	importReadTimeout = 2 * time.Minute   // for the whole body
	importIdleTimeout = 15 * time.Second  // without a byte
	importBusyIdle    = 5 * time.Second   // the same while another tenant waits for the slot
	importGrace       = 10 * time.Second  // before importLeastRate counts
	importLeastRate   = 64 << 10          // bytes per second, on average: an import uses one of few slots
	importBusyRate    = 1 << 20           // the same while another tenant waits for the slot
	importTurnTimeout = 10 * time.Minute  // for all that is decoded meanwhile: 1024 pieces
	importRunTimeout  = 210 * time.Second // from the end of the body to the end of the answer; longer than the store's timeout
)

// readImport reads the body of an import into lines. It holds no transaction at this time, because
// a client may be as slow as importReadTimeout allows.
func (a *admin) readImport(r *http.Request, mediaType string, places *slots) (context.Context, []byte, *Problem) {
	if r.ContentLength > maxImportBody {
		return nil, nil, bodyTooLarge(r, maxImportBody)
	}
	d, q := deadlinesOf(r.Context()), requestFrom(r.Context())
	d.write(importReadTimeout + importTurnTimeout + importRunTimeout)
	hash := sha256.New()
	body := &pacedBody{body: r.Body, deadlines: d, left: maxImportBody, ended: r.ContentLength == 0, wanted: places.wanted}
	f := &importFile{registry: a.api.OpenAPI().Components.Schemas}
	q.untilAnswer(f.forget) // as many files as there are slots stay in memory
	_, _ = io.WriteString(hash, mediaType+"\n")
	defer q.endTurn()
	source := &piecesInTurn{ctx: r.Context(), q: q, body: io.TeeReader(body, hash)}
	var err error
	if mediaType == csvType {
		err = f.readCSV(source)
	} else {
		err = f.readLines(source)
	}
	d.write(importRunTimeout)
	var p *Problem
	switch {
	case body.left < 0:
		return nil, nil, bodyTooLarge(r, maxImportBody)
	case body.late:
		return nil, nil, closing(r, lateBody())
	case body.failed:
		return nil, nil, closing(r, newProblem(http.StatusBadRequest, malformedCode(mediaType), "The body ended before it was complete."))
	case errors.As(err, &p):
		return nil, nil, closing(r, p) // the rest of the body is not read
	case f.wrong.Total > 0 && len(f.lines) == 0: // the store would find no further errors
		return nil, nil, linesProblem(&f.wrong)
	}
	return context.WithValue(r.Context(), importKey{}, f), hash.Sum(nil), nil
}

func malformedCode(mediaType string) string {
	if mediaType == csvType {
		return codeMalformedCSV
	}
	return codeMalformedJSON
}

// pacedBody is a body with limits for its time, its rate and its size. Only the time counts in
// which the import waits for the client, and not that in which its lines are decoded or wait for
// their turn.
type pacedBody struct {
	body      io.Reader
	deadlines deadlines
	spent     time.Duration // waiting for the client
	read      int64         // bytes
	left      int64         // remaining bytes; negative: too many
	ended     bool
	failed    bool
	late      bool        // it failed because of the time
	wanted    func() bool // whether another tenant waits for the slot
}

// Read reads more of the body, within the limits.
func (b *pacedBody) Read(p []byte) (int, error) {
	if b.ended { // a deadline would apply to all that follows on the connection (setBodyDeadline)
		return 0, io.EOF
	}
	b.deadlines.read(b.patience())
	started := time.Now()
	n, err := b.body.Read(p)
	b.spent += time.Since(started)
	b.read += int64(n)
	b.ended = err == io.EOF
	b.failed = err != nil && err != io.EOF // a wrapped io.EOF would be an early end
	b.late = errors.Is(err, os.ErrDeadlineExceeded)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("the body is too large")
	}
	return n, err
}

// patience returns how long to wait for the next byte. A body is refused if it stops, takes too
// long, or has a low average rate.
func (b *pacedBody) patience() time.Duration {
	patience, rate := importIdleTimeout, time.Duration(importLeastRate)
	if b.wanted() {
		patience, rate = importBusyIdle, importBusyRate
	}
	paid := importGrace + time.Duration(b.read)*time.Second/rate
	return min(patience, importReadTimeout-b.spent, paid-b.spent)
}

// importFile is an import that is being read.
type importFile struct {
	registry  huma.Registry
	lines     []tenants.SubjectLine
	seen      int // lines, also invalid ones
	overrides int
	wrong     tenants.LinesError // errors that the store does not see, because they are not in lines
}

// forget frees the lines, which the answer does not need.
func (f *importFile) forget() { f.lines = nil }

func (f *importFile) add(l tenants.SubjectLine) error {
	if err := f.count(len(l.Overrides)); err != nil {
		return err
	}
	f.lines = append(f.lines, l)
	return nil
}

// count counts a line with so many overrides, which may be invalid.
func (f *importFile) count(overrides int) error {
	f.seen++
	f.overrides += overrides
	switch {
	case f.seen > maxImportLines:
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, fmt.Sprintf("The body may have at most %d lines.", maxImportLines))
	case f.overrides > maxImportOverrides:
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, fmt.Sprintf("The body may have at most %d overrides.", maxImportOverrides))
	}
	return nil
}

// The columns of a table of subjects.
var importColumns = []string{"subject", "plan", "state", "billing_ref", "cycle_anchor", "labels", "plan_version", "multiplier"}

func (f *importFile) readCSV(body io.Reader) error {
	buffered := bufio.NewReaderSize(body, 64<<10)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" { // spreadsheets put a byte order mark before UTF-8
		_, _ = buffered.Discard(len(mark))
	}
	table := csv.NewReader(newCSVBounds(buffered))
	table.ReuseRecord = true
	header, err := table.Read()
	if err != nil && err != io.EOF {
		return csvProblem(err)
	}
	columns := slices.Clone(header)
	if f.checkHeader(columns); f.wrong.Total > 0 {
		return nil
	}
	for {
		cells, err := table.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return csvProblem(err)
		}
		line, _ := table.FieldPos(0)
		if err := f.add(f.lineOfCells(line, columns, cells)); err != nil {
			return err
		}
	}
}

func csvProblem(err error) *Problem {
	var parse *csv.ParseError
	var tooLong *Problem
	if errors.As(err, &tooLong) {
		return tooLong
	}
	if !errors.As(err, &parse) {
		return newProblem(http.StatusBadRequest, codeMalformedCSV, "The body is not well-formed CSV.")
	}
	what := "has a quote that is out of place"
	if errors.Is(err, csv.ErrFieldCount) {
		what = "has more or fewer cells than the first line"
	}
	return newProblem(http.StatusBadRequest, codeMalformedCSV, fmt.Sprintf("Line %d %s.", parse.Line, what))
}

func (f *importFile) checkHeader(columns []string) {
	for i, name := range columns {
		switch {
		case !slices.Contains(importColumns, name):
			f.wrong.Add(1, limit.FieldProblem(name, limit.Wrong("Use columns of "+strings.Join(importColumns, ", ")+".", "is not a known column")))
		case slices.Contains(columns[:i], name):
			f.wrong.Add(1, limit.FieldProblem(name, limit.Duplicate))
		}
	}
	if !slices.Contains(columns, "subject") {
		f.wrong.Add(1, limit.FieldProblem("subject", limit.Wrong("Add the column.", "is required: the first line names the columns")))
	}
}

// lineOfCells converts a row of a table to a line. An empty cell clears its field.
func (f *importFile) lineOfCells(line int, columns, cells []string) tenants.SubjectLine {
	l := tenants.SubjectLine{Line: line}
	for i, cell := range cells {
		cell = tenants.CSVText(cell)
		switch columns[i] {
		case "subject":
			l.Subject = cell
		case "plan":
			l.Plan = &cell
		case "billing_ref":
			l.BillingRef = &cell
		case "plan_version":
			if cell == "" {
				continue
			}
			number, err := strconv.ParseInt(cell, 10, 32)
			if err != nil || number < 1 {
				f.wrong.Add(line, limit.FieldProblem("plan_version", limit.MustBe("a whole number of at least 1")))
			}
			l.PlanVersion = int(number)
		case "multiplier":
			l.Multiplier = 1
			if cell == "" {
				continue
			}
			number, err := strconv.ParseInt(cell, 10, 32)
			if err != nil || number < 1 {
				f.wrong.Add(line, limit.FieldProblem("multiplier", limit.MustBe("a whole number from 1 to %d", subscription.MaxMultiplier)))
				continue
			}
			l.Multiplier = int(number)
		case "cycle_anchor":
			var anchor *time.Time
			if cell != "" {
				at, err := time.Parse(time.RFC3339Nano, cell)
				if err != nil {
					f.wrong.Add(line, limit.FieldProblem("cycle_anchor", notRFC3339))
				}
				anchor = &at
			}
			l.CycleAnchor = &anchor
		case "state":
			state := check.Active
			if cell != "" {
				var err error
				if state, err = check.ParseSubjectState(cell); err != nil {
					f.wrong.Add(line, limit.FieldProblem("state", limit.OneOf("active, blocked, exempt")))
				}
			}
			l.State = &state
		case "labels":
			if len(cell) > maxLabelsCell {
				f.wrong.Add(line, limit.FieldProblem("labels", limit.MustBe("at most %d bytes long", maxLabelsCell)))
				continue
			}
			labels, ok := labelsOfCell(cell)
			if !ok {
				f.wrong.Add(line, limit.FieldProblem("labels", limit.MustBe(`a JSON object of strings, such as {"region":"eu"}`)))
			}
			l.Labels = tenants.PackLabels(labels)
		}
	}
	return l
}

// maxLabelsCell limits the labels in a cell, in bytes. The largest valid labels take 60 KiB: 32
// names of 63 bytes and values of 256, all escaped.
const maxLabelsCell = 64 << 10

// labelsOfCell parses the labels in a cell, which are JSON.
func labelsOfCell(cell string) (labels map[string]string, ok bool) {
	if cell == "" {
		return nil, true
	}
	var values map[string]*string
	if checkJSON([]byte(cell)) != nil || json.Unmarshal([]byte(cell), &values) != nil {
		return nil, false
	}
	labels = make(map[string]string, len(values))
	for name, value := range values {
		if value == nil {
			return nil, false
		}
		labels[name] = *value
	}
	return labels, true
}

// readLines reads JSON, one object per line, and skips empty lines.
func (f *importFile) readLines(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 64<<10), maxImportLine)
	schema := schemaIn[BulkSubject](f.registry)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if p := checkJSON(lines.Bytes()); p != nil {
			p.Detail = fmt.Sprintf("Line %d: %s", number, p.Detail)
			for i := range p.Errors {
				p.Errors[i].Pointer = fmt.Sprintf("line:%d%s", number, p.Errors[i].Pointer)
			}
			return p
		}
		before := f.wrong.Total
		l, err := f.lineOfJSON(number, lines.Bytes(), schema)
		switch {
		case err != nil:
		case f.wrong.Total > before: // it is not a subject, so there is nothing else to validate
			err = f.count(0)
		default:
			err = f.add(l)
		}
		if err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, fmt.Sprintf("A line may be at most %d bytes long.", maxImportLine))
	}
	return nil // the reader of the body knows why it ended early
}

// lineOfJSON converts a line of JSON, which has passed checkJSON. It is validated like a body.
func (f *importFile) lineOfJSON(number int, data []byte, schema *huma.Schema) (tenants.SubjectLine, error) {
	l := tenants.SubjectLine{Line: number}
	if wrong := tooManyMembers(data); len(wrong) > 0 {
		f.wrong.Add(number, wrong...)
		return l, nil
	}
	var tree any
	if err := jsonFormat.Unmarshal(data, &tree); err != nil {
		return l, err
	}
	if wrong := validate(f.registry, schema, tree); len(wrong) > 0 {
		for _, field := range wrong {
			f.wrong.Add(number, limit.FieldProblem(field.Pointer, &limit.Problem{Message: field.Message, Fix: field.Fix}))
		}
		return l, nil
	}
	var in BulkSubject
	if err := json.Unmarshal(data, &in); err != nil {
		return l, err
	}
	l.Subject = in.Subject
	l.PlanVersion = int(in.PlanVersion.or(0))
	if in.Multiplier.Set {
		l.Multiplier = int(in.Multiplier.or(1))
	}
	if in.Plan.Set {
		l.Plan = ptr(in.Plan.or(""))
	}
	if in.Plan.given() && in.Plan.Value == "" { // the store takes "" for none
		f.wrong.Add(number, limit.FieldProblem("plan", notSlugOrNull))
	}
	if in.BillingRef.Set {
		l.BillingRef = ptr(in.BillingRef.or(""))
	}
	if in.CycleAnchor.Set {
		l.CycleAnchor = ptr(optionalTime(in.CycleAnchor))
	}
	if in.State.Set {
		state, _ := check.ParseSubjectState(in.State.or(check.Active.String())) // valid according to the schema, which lists the names
		l.State = &state
	}
	if in.Labels.Set {
		l.Labels = tenants.PackLabels(in.Labels.or(nil))
	}
	l.Overrides = f.overridesOf(number, in.Overrides.or(nil))
	return l, nil
}

func (f *importFile) overridesOf(number int, in map[string]Optional[ConfigOverride]) []tenants.OverrideLine {
	if len(in) == 0 {
		return nil
	}
	out := make([]tenants.OverrideLine, 0, len(in))
	for _, rule := range slices.Sorted(maps.Keys(in)) {
		body := in[rule].Value
		o := tenants.OverrideLine{Override: tenants.Override{Rule: rule}, Remove: in[rule].Null}
		if !o.Remove {
			var wrong []ProblemField
			o.Limit = body.patch(limit.Limit{}, "/overrides/"+escapePointer(rule), &wrong)
			o.Reason, o.StartsAt, o.ExpiresAt = body.Reason.or(""), optionalTime(body.StartsAt), optionalTime(body.ExpiresAt)
			for _, field := range wrong {
				f.wrong.Add(number, limit.FieldProblem(field.Pointer, &limit.Problem{Message: field.Message, Fix: field.Fix}))
			}
		}
		out = append(out, o)
	}
	return out
}
