package api

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// filter returns the filter for the store.
func (in *SubjectFilterParams) filter() (tenants.SubjectFilter, error) {
	filter := tenants.SubjectFilter{Prefix: in.Prefix, Plan: in.Plan}
	if in.State != "" {
		state, _ := check.ParseSubjectState(in.State) // valid according to the schema, which lists the names
		filter.State = &state
	}
	name, value, hasValue := strings.Cut(in.Label, "=")
	if name == "" && hasValue {
		return filter, invalid(wrongField("query:label", limit.MustBe("NAME=VALUE or NAME")))
	}
	filter.LabelKey = name
	if hasValue {
		filter.LabelValue = &value
	}
	return filter, nil
}

func (in *ExportQuery) wantsCSV(accept string) bool {
	if in.Format != "" {
		return in.Format == "csv"
	}
	return negotiation.SelectQValueFast(accept, []string{jsonLinesType, olderLinesType, csvType}) == csvType
}

func (a *admin) exportSubjects(ctx context.Context, in *ExportQuery) (*huma.StreamResponse, error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	place, err := until(ctx, a.answers.exports)
	if err != nil {
		return nil, err
	}
	if err := a.store.RecordExport(ctx, actorFrom(ctx), "subjects", in.Format); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humachi.Unwrap(hctx)
		d := deadlinesOf(ctx)
		table := in.wantsCSV(hctx.Header("Accept"))
		e := newExport(w, d, a.store.ExportPace(w).Beside(place), table)
		err := a.store.ExportSubjects(e.pace.Within(ctx), actorFrom(ctx), filter, !table, e.write)
		switch {
		case err == nil:
			if !e.begun {
				err = e.write(nil) // an empty table has a header, too
			}
		case !e.begun:
			writeProblem(w, r, a.problem(ctx, queryErrors(err)))
			return
		}
		if err == nil {
			return
		}
		a.logExport(ctx, err)
		// The status was sent, so the client can only be told by an incomplete body.
		panic(http.ErrAbortHandler)
	}}, nil
}

// errClientGone means that writing failed because the client has disconnected.
var errClientGone = errors.New("the client does not read on")

// export writes subjects as they arrive.
type export struct {
	w         http.ResponseWriter
	deadlines deadlines
	pace      *tenants.ExportPace
	buffer    *bufio.Writer
	table     *csv.Writer   // of the two writers, the requested one
	lines     *json.Encoder //
	begun     bool          // the header was written
}

func newExport(w http.ResponseWriter, d deadlines, pace *tenants.ExportPace, table bool) *export {
	e := &export{w: w, deadlines: d, pace: pace, buffer: bufio.NewWriterSize(pace, 64<<10)}
	if table {
		e.table = csv.NewWriter(e.buffer)
		e.table.UseCRLF = true // as in RFC 4180
		return e
	}
	e.lines = json.NewEncoder(e.buffer)
	e.lines.SetEscapeHTML(false)
	return e
}

// write writes subjects and flushes them.
func (e *export) write(subjects []tenants.Subject) error {
	if err := e.pace.Next(e.deadlines.write); err != nil {
		return errors.Join(errClientGone, err)
	}
	e.begin()
	for i := range subjects {
		if err := e.one(&subjects[i]); err != nil {
			return errors.Join(errClientGone, err)
		}
	}
	if e.table != nil {
		e.table.Flush()
		if err := e.table.Error(); err != nil {
			return errors.Join(errClientGone, err)
		}
	}
	if err := e.buffer.Flush(); err != nil {
		return errors.Join(errClientGone, err)
	}
	return nil
}

func (e *export) begin() {
	if e.begun {
		return
	}
	e.begun = true
	contentType, name := jsonLinesType, "subjects.jsonl"
	if e.table != nil {
		contentType, name = csvType+"; charset=utf-8", "subjects.csv"
		_ = e.table.Write(importColumns) // table.Error returns the error
	}
	h := e.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Vary", "Accept")
}

// exportLine is a BulkSubject in the form for export: fields that are not set are null.
type exportLine struct {
	Subject     string                    `json:"subject"`
	Plan        *string                   `json:"plan"`
	PlanVersion *int64                    `json:"plan_version"`
	State       string                    `json:"state"`
	BillingRef  *string                   `json:"billing_ref"`
	CycleAnchor *time.Time                `json:"cycle_anchor"`
	Labels      map[string]string         `json:"labels"`
	Multiplier  int                       `json:"multiplier"`
	Overrides   map[string]exportOverride `json:"overrides"`
}

type exportOverride struct {
	Limit
	Reason    string     `json:"reason"`
	StartsAt  *time.Time `json:"starts_at"`
	ExpiresAt *time.Time `json:"expires_at"`
}

// instantCell returns the cell of an instant, empty for nil.
func instantCell(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// multiplierCell is the cell of a multiplier, empty for 1, which nearly all subjects have.
func multiplierCell(number int) string {
	if number <= 1 {
		return ""
	}
	return strconv.Itoa(number)
}

// planVersionCell is the cell of a version of a plan, empty without a plan.
func planVersionCell(number int) string {
	if number == 0 {
		return ""
	}
	return strconv.Itoa(number)
}

func (e *export) one(s *tenants.Subject) error {
	if e.table != nil {
		labels := ""
		if len(s.Labels) > 0 {
			labels = string(tenants.PackLabels(s.Labels))
		}
		return e.table.Write([]string{
			tenants.CSVCell(s.Subject), tenants.CSVCell(s.Plan), s.State.String(), tenants.CSVCell(s.BillingRef),
			instantCell(s.CycleAnchor), labels, planVersionCell(s.PlanVersion), multiplierCell(s.Multiplier),
		})
	}
	line := exportLine{
		Subject: s.Subject, Plan: optionalText(s.Plan), PlanVersion: optionalInt(int64(s.PlanVersion)), State: s.State.String(), BillingRef: optionalText(s.BillingRef),
		CycleAnchor: s.CycleAnchor, Labels: s.Labels, Multiplier: max(s.Multiplier, 1), Overrides: make(map[string]exportOverride, len(s.Overrides)),
	}
	if line.Labels == nil {
		line.Labels = map[string]string{}
	}
	for _, o := range s.Overrides {
		line.Overrides[o.Rule] = exportOverride{
			Limit: limitAnswer(o.Limit), Reason: o.Reason, StartsAt: o.StartsAt, ExpiresAt: o.ExpiresAt,
		}
	}
	return e.lines.Encode(line)
}
