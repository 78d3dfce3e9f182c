package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"weir/internal/tenants"
)

// MeteredParams select metered usage.
type MeteredParams struct {
	PageParams
	From    string `query:"from" format:"date-time" doc:"Start of the period, RFC 3339, a whole hour; default: the start of this month in UTC"`
	To      string `query:"to" format:"date-time" doc:"End of the period, RFC 3339, a whole hour, exclusive; default: the end of this hour"`
	Subject string `query:"subject" doc:"Only this subject"`
	Rule    string `query:"rule" doc:"Only the rule with this slug"`
	Grain   string `query:"grain" enum:"hour,period" default:"hour" doc:"hour: an item for each hour, subject and rule; period: an item for each subject and rule, with the sum of the period"`
	Open    bool   `query:"open" doc:"Also include the hours that are not sealed, whose numbers still grow; default false"`
	Format  string `query:"format" enum:"json,csv,jsonl" doc:"Overrides the header Accept; default json. csv and jsonl have all items, and cannot be combined with limit or cursor"`

	asked askedForm
}

// Resolve is called by huma after it has read the parameters.
func (in *MeteredParams) Resolve(ctx huma.Context) []error {
	in.asked = askedFormOf(ctx)
	return nil
}

// MeteredAnswer is a page of metered usage.
type MeteredAnswer struct {
	From        time.Time      `json:"from"`
	To          time.Time      `json:"to" doc:"Exclusive. Without open, at most sealed_until"`
	SealedUntil time.Time      `json:"sealed_until" doc:"Hours before this time are sealed: their numbers never change"`
	Totals      []MeteredTotal `json:"totals" nullable:"false" doc:"Sums by rule, of all subjects or of the selected one"`
	Gaps        []MeteringGap  `json:"gaps" nullable:"false" doc:"Periods in which units may be missing: an instance has not written them, or Postgres has lost them. At most 1000, closed ones only if there is room; the last spans the rest"`
	Items       []MeteredItem  `json:"items" nullable:"false" doc:"Ordered by hour, subject and rule; hours without units are omitted"`
	NextCursor  *string        `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
}

// MeteredItem is the metered usage of a subject under a rule.
type MeteredItem struct {
	Start        *time.Time `json:"start,omitempty" doc:"Start of the hour, with the grain hour"`
	Subject      string     `json:"subject"`
	Rule         string     `json:"rule" doc:"Slug"`
	Units        int64      `json:"units" doc:"Units of cost of allowed checks"`
	OverageUnits int64      `json:"overage_units" doc:"Of these, units beyond the limit"`
	FreeUnits    int64      `json:"free_units" doc:"Of the units within the limit, those of plans that invoice only units beyond it"`
	BilledUnits  int64      `json:"billed_units" doc:"Of the units within the limit, those of plans that invoice all units"`
	Checks       int64      `json:"checks" doc:"Allowed checks with a cost"`
	LateUnits    int64      `json:"late_units" doc:"Of the units, those of earlier hours that arrived after these hours were sealed"`
}

// MeteredTotal is the sum of all subjects under a rule.
type MeteredTotal struct {
	Rule              string `json:"rule" doc:"Slug"`
	Units             int64  `json:"units"`
	OverageUnits      int64  `json:"overage_units"`
	FreeUnits         int64  `json:"free_units"`
	BilledUnits       int64  `json:"billed_units"`
	Checks            int64  `json:"checks"`
	LateUnits         int64  `json:"late_units"`
	UnattributedUnits int64  `json:"unattributed_units" doc:"Of the units, those that no item has: the tenant had too many subjects at once or in an hour"`
}

// MeteringGap is a period in which units may be missing.
type MeteringGap struct {
	From     time.Time  `json:"from" doc:"All units of the instance from before this time are counted"`
	To       time.Time  `json:"to" doc:"Units up to this time may be missing: until then an instance has not written them, or Postgres has lost them"`
	ClosedAt *time.Time `json:"closed_at" doc:"When it was known that no units are missing, because the instance has written all that it had; null: it is not known"`
}

const sealedUntilHeader = "Weir-Sealed-Until"

// meterRoutes registers the operations of metered usage.
func (a *admin) meterRoutes() {
	op := a.operation(http.MethodGet, "/v1/usage/metered", "get-metered-usage", "Get metered usage", []option{about(
		"usage", "Exact units of metered rules, by subject and hour, for invoices. Sealed hours never change. CSV and JSON lines have all items, and end with the gaps."), inTurns})
	ok := jsonResponse[MeteredAnswer](a.api, "OK")
	for _, contentType := range []string{csvType, jsonLinesType} {
		ok.Content[contentType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	ok.Headers = map[string]*huma.Param{sealedUntilHeader: {
		Description: "As sealed_until in JSON", Schema: &huma.Schema{Type: huma.TypeString, Format: "date-time"},
	}}
	op.Responses["200"] = ok
	register(a, op, a.getMetered)
}

func (in *MeteredParams) query() (q tenants.MeteredQuery, err error) {
	q = tenants.MeteredQuery{Subject: in.Subject, Rule: in.Rule, Sum: in.Grain == "period", Open: in.Open}
	if q.From, err = instantParam("from", in.From); err == nil {
		q.To, err = instantParam("to", in.To)
	}
	return q, err
}

// instantParam parses a time of a query; zero for none.
func instantParam(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, invalid(wrongField("query:"+name, notRFC3339))
	}
	if epoch := time.Unix(0, 0); t.Before(epoch) {
		t = epoch // far out of range as well, and never the zero time, which would be "left out"
	}
	return t, nil
}

func (a *admin) getMetered(ctx context.Context, in *MeteredParams) (*huma.StreamResponse, error) {
	query, err := in.query()
	if err != nil {
		return nil, err
	}
	if err := a.store.CheckRuleFilter(ctx, actorFrom(ctx), in.Rule); err != nil {
		return nil, queryErrors(err)
	}
	if format := in.asked.format(in.Format); format != "json" {
		if err := in.asked.pagesOnly(in.Cursor); err != nil {
			return nil, err
		}
		place, err := until(ctx, a.answers.exports)
		if err != nil {
			return nil, err
		}
		if err := a.store.RecordExport(ctx, actorFrom(ctx), "metered usage", format); err != nil {
			return nil, err
		}
		return a.exportMetered(ctx, query, format, place), nil
	}
	name := "metered:" + in.From + "|" + in.To + "|" + strconv.Quote(in.Subject) + "|" + in.Rule + "|" + in.Grain + "|" + strconv.FormatBool(in.Open)
	p, err := a.cursors.open(ctx, name, in.PageParams)
	if err != nil {
		return nil, err
	}
	report, items, after, err := a.store.MeteredUsage(ctx, actorFrom(ctx), query, p)
	if err != nil {
		return nil, queryErrors(err)
	}
	var body []byte
	if encodeErr := encodeLong(ctx, meteredValues*(len(report.Totals)+len(report.Gaps)+len(items)), func() {
		body, err = encodeJSON(meteredAnswer(report, items, a.cursors.next(ctx, name, after)))
	}); encodeErr != nil {
		return nil, encodeErr
	}
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		hctx.SetHeader(sealedUntilHeader, report.SealedUntil.Format(time.RFC3339))
		varying(jsonAnswer(body)).Body(hctx)
	}}, nil
}

// meteredValues is the number of values of an item.
const meteredValues = 8

func meteredAnswer(report tenants.MeteredReport, items []tenants.MeteredItem, next *string) MeteredAnswer {
	answer := MeteredAnswer{
		From: report.From, To: report.To, SealedUntil: report.SealedUntil, Totals: make([]MeteredTotal, len(report.Totals)),
		Gaps: make([]MeteringGap, len(report.Gaps)), Items: make([]MeteredItem, len(items)), NextCursor: next,
	}
	for i, t := range report.Totals {
		answer.Totals[i] = MeteredTotal{
			Rule: t.Rule, Units: t.Units, OverageUnits: t.OverageUnits, FreeUnits: t.FreeUnits, BilledUnits: t.BilledUnits, Checks: t.Checks, LateUnits: t.LateUnits, UnattributedUnits: t.UnattributedUnits,
		}
	}
	for i, g := range report.Gaps {
		answer.Gaps[i] = MeteringGap(g)
	}
	for i := range items {
		answer.Items[i] = meteredItem(&items[i])
	}
	return answer
}

func meteredItem(m *tenants.MeteredItem) MeteredItem {
	out := MeteredItem{Subject: m.Subject, Rule: m.Rule, Units: m.Units, OverageUnits: m.OverageUnits, FreeUnits: m.FreeUnits, BilledUnits: m.BilledUnits, Checks: m.Checks, LateUnits: m.LateUnits}
	if !m.Start.IsZero() {
		out.Start = &m.Start
	}
	return out
}

// exportMetered streams all items, while the export has a place.
func (a *admin) exportMetered(ctx context.Context, query tenants.MeteredQuery, format string, place *tenants.ExportPlace) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humachi.Unwrap(hctx)
		d := deadlinesOf(ctx)
		e := &meteredExport{w: w, deadlines: d, pace: a.store.ExportPace(w).Beside(place), format: format}
		err := a.store.ExportMetered(e.pace.Within(ctx), actorFrom(ctx), query, e.begin, e.items)
		switch {
		case err == nil:
			err = e.end()
		case e.MeteredWriter == nil:
			writeProblem(w, r, a.problem(ctx, queryErrors(err)))
			return
		}
		if err == nil {
			return
		}
		a.logExport(ctx, err)
		// The status was sent, so the client can only be told by an incomplete body.
		panic(http.ErrAbortHandler)
	}}
}

// meteredExport sends metered usage as it arrives.
type meteredExport struct {
	w         http.ResponseWriter
	deadlines deadlines
	pace      *tenants.ExportPace
	format    string
	*tenants.MeteredWriter
}

func (e *meteredExport) begin(report tenants.MeteredReport) error {
	h := e.w.Header()
	name := "metered-" + report.From.Format("2006-01-02") + "-to-" + report.To.Format("2006-01-02")
	if e.format == "csv" {
		h.Set("Content-Type", csvType+"; charset=utf-8")
		h.Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
	} else {
		h.Set("Content-Type", jsonLinesType)
		h.Set("Content-Disposition", `attachment; filename="`+name+`.jsonl"`)
	}
	h.Set(sealedUntilHeader, report.SealedUntil.Format(time.RFC3339))
	h.Set("Vary", "Accept")
	if e.format == "csv" {
		e.MeteredWriter = tenants.NewMeteredCSV(e.pace, report)
	} else {
		e.MeteredWriter = tenants.NewMeteredLines(e.pace, report)
	}
	if err := e.pace.Next(e.deadlines.write); err != nil {
		return gone(err)
	}
	return gone(e.Begin())
}

func (e *meteredExport) items(items []tenants.MeteredItem) error {
	if err := e.pace.Next(e.deadlines.write); err != nil {
		return gone(err)
	}
	return gone(e.Write(items))
}

func (e *meteredExport) end() error {
	e.pace.Last(e.deadlines.write)
	return gone(e.End())
}

// gone marks an error of writing to a client.
func gone(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(errClientGone, err)
}

// MeterPush is what was sent to a meter for one hour.
type MeterPush struct {
	ID          string             `json:"id" format:"uuid"`
	Start       time.Time          `json:"start" doc:"Start of the hour"`
	Rule        string             `json:"rule" doc:"Slug"`
	MeterEvent  string             `json:"meter_event" doc:"Event name of the meter when the hour was sealed"`
	Metering    string             `json:"metering" enum:"units,overage" doc:"Which units are sent"`
	State       string             `json:"state" enum:"pending,retrying,pushed,parked,failed" doc:"parked: customers of some subjects are not known; failed: the provider refuses some subjects"`
	Why         string             `json:"why" doc:"Why it is tried again; else empty"`
	Attempts    int64              `json:"attempts" doc:"Failed attempts in a row"`
	DueAt       *time.Time         `json:"due_at" doc:"When it continues; null: nothing is left to do"`
	Pushed      int64              `json:"pushed" doc:"Subjects that the provider has"`
	PushedUnits int64              `json:"pushed_units"`
	Parked      int64              `json:"parked" doc:"Subjects without a known customer; tried again after an hour, later less often, at least once a day"`
	Failed      int64              `json:"failed" doc:"Subjects that the provider refuses"`
	Problems    []MeterPushProblem `json:"problems" nullable:"false" doc:"The first subjects that were not sent"`
	UpdatedAt   time.Time          `json:"updated_at"`
}

// MeterPushProblem is a subject that was not sent.
type MeterPushProblem struct {
	Subject string `json:"subject"`
	Units   int64  `json:"units"`
	Outcome string `json:"outcome" enum:"parked,failed"`
	Why     string `json:"why"`
}

// MeterPushParams select pushes.
type MeterPushParams struct {
	PageParams
	Rule string `query:"rule" doc:"Only the rule with this slug"`
}

func meterPushAnswer(p tenants.MeterPush) MeterPush {
	out := MeterPush{
		ID: p.ID.String(), Start: p.Start, Rule: p.Rule, MeterEvent: p.MeterEvent, Metering: p.Kind, State: p.State(), Why: p.Why, Attempts: int64(p.Attempts),
		DueAt: p.DueAt, Pushed: p.Pushed, PushedUnits: p.PushedUnits, Parked: p.Parked, Failed: p.Failed,
		Problems: make([]MeterPushProblem, len(p.Problems)), UpdatedAt: p.UpdatedAt,
	}
	for i, x := range p.Problems {
		out.Problems[i] = MeterPushProblem(x)
	}
	return out
}

func (a *admin) listMeterPushes(ctx context.Context, in *MeterPushParams) (*page[MeterPush], error) {
	if err := a.store.CheckRuleFilter(ctx, actorFrom(ctx), in.Rule); err != nil {
		return nil, queryErrors(err)
	}
	return listPage(ctx, a, "meter-pushes:"+in.Rule, in.PageParams, meterPushAnswer, func(p tenants.Page) ([]tenants.MeterPush, string, error) {
		return a.store.MeterPushes(ctx, actorFrom(ctx), in.Rule, p)
	})
}
