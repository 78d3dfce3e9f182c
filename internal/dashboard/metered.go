package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// meteredMonths is how many months the page offers: as long as metered usage is kept.
const meteredMonths = 13

const toTheSecond = "2 Jan 2006, 15:04:05 UTC"

// mostPushes is the number of sent hours on the page.
const mostPushes = 12

type meteredView struct {
	Month, Prefix, Rule string
	Months, Rules       []option
	Metered             bool // a rule is metered
	SealedUntil         moment
	Ended               bool // all hours of the month are sealed
	Totals              []meteredTotal
	Rows                []meteredRow
	Gaps                []meteredGap
	Pushes              []pushRow
	Meters              bool // a rule names a meter
	CSV, Lines          string
	Next, First         string
	Later               bool
}

// meteredTotal is the sum of a rule.
type meteredTotal struct {
	meteredRow
	Unattributed int64
}

// meteredRow is the usage of a subject under a rule in a month.
type meteredRow struct {
	Subject, Rule, Title string
	Units, Overage, Late int64
	Checks               int64
	Invoiced             string // the number for the invoice; "" if the rule is not metered any more
}

type meteredGap struct {
	From, To string // to the second
	Closed   bool
}

type pushRow struct {
	Start           moment
	Rule, Event     string
	Subjects, Units int64
	Open            int64 // subjects that were not sent
	State, Tone     string
	Why             string
}

// pushTones are the colours of the states of a push.
var pushTones = map[string]string{"pushed": "good", "pending": "", "retrying": "warn", tenants.PushParked: "warn", tenants.PushFailed: "bad"}

// metered shows the units of a month, by subject, as they are invoiced.
func (d *dashboard) metered(w http.ResponseWriter, r *http.Request, v *visit) error {
	values := r.URL.Query()
	d.slugsOfNames(r.Context(), v, &form{values: values})
	view := meteredView{Prefix: values.Get("q"), Rule: values.Get("rule"), Later: values.Get("after") != ""}
	query, err := view.period(values.Get("month"), v.now)
	if err != nil {
		return err
	}
	metering, err := d.meteredRules(r.Context(), v.actor(), &view)
	if err != nil {
		return err
	}
	report, items, next, err := d.Store.MeteredUsage(r.Context(), v.actor(), query, tenants.Page{Limit: pageSize, After: values.Get("after")})
	if err != nil {
		return err
	}
	names := d.ruleNames(r.Context(), v.actor().TenantID())
	view.SealedUntil, view.Ended = moment{report.SealedUntil}, !query.To.After(report.SealedUntil)
	for i := range report.Totals {
		t := &report.Totals[i]
		view.Totals = append(view.Totals, meteredTotal{meteredRowOf(&t.MeteredItem, names.Of(t.Rule), metering), t.UnattributedUnits})
	}
	for i := range items {
		view.Rows = append(view.Rows, meteredRowOf(&items[i], names.Of(items[i].Rule), metering))
	}
	for _, g := range report.Gaps {
		view.Gaps = append(view.Gaps, meteredGap{g.From.Format(toTheSecond), g.To.Format(toTheSecond), g.ClosedAt != nil})
	}
	if err := d.pushesOf(r.Context(), v.actor(), &view); err != nil {
		return err
	}
	kept := url.Values{"month": {view.Month}}
	if view.Rule != "" {
		kept.Set("rule", view.Rule)
	}
	view.CSV, view.Lines = "/metered/export?format=csv&"+kept.Encode(), "/metered/export?format=jsonl&"+kept.Encode()
	if view.Prefix != "" {
		kept.Set("q", view.Prefix)
	}
	view.First = withCursor("/metered", kept, "")
	if next != "" {
		view.Next = withCursor("/metered", kept, next)
	}
	v.frame.Title = "Metered usage"
	return d.renderRows(len(view.Totals)+len(view.Rows), w, r, http.StatusOK, meteredPage(v.frame, &view))
}

// period returns the query of a month such as 2026-01; "" is the present one.
func (view *meteredView) period(month string, now time.Time) (q tenants.MeteredQuery, err error) {
	const form = "2006-01"
	now = now.UTC()
	first := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for n := range meteredMonths {
		m := first.AddDate(0, -n, 0)
		view.Months = append(view.Months, option{m.Format(form), m.Format("January 2006")})
	}
	if month != "" {
		if first, err = time.Parse(form, month); err != nil {
			return q, invalidField("month", limit.MustBe("a month such as 2026-01"))
		}
	}
	view.Month = first.Format(form)
	return tenants.MeteredQuery{From: first, To: first.AddDate(0, 1, 0), Rule: view.Rule, Prefix: view.Prefix, Sum: true, Open: true}, nil
}

// meteredRules reads which rules are metered, and how.
func (d *dashboard) meteredRules(ctx context.Context, a tenants.Actor, view *meteredView) (map[string]limit.Metering, error) {
	rules, _, err := d.Store.Rules(ctx, a, tenants.RuleFilter{}, tenants.Page{Limit: limit.MaxRules})
	if err != nil {
		return nil, err
	}
	policy, err := d.Policies.Get(ctx, a.TenantID())
	if err != nil {
		return nil, err
	}
	byPlan := policy.Metered()
	metering := map[string]limit.Metering{}
	view.Rules = []option{{"", "All"}}
	for i := range rules {
		r := &rules[i]
		if r.Metering == limit.MeterNone && !byPlan[r.Slug] {
			continue
		}
		metering[r.Slug] = r.Metering
		view.Metered, view.Meters = true, view.Meters || r.MeterEvent != ""
		view.Rules = append(view.Rules, option{r.Slug, cmp.Or(r.Name, r.Slug)})
	}
	return metering, nil
}

func meteredRowOf(m *tenants.MeteredItem, title string, metering map[string]limit.Metering) meteredRow {
	row := meteredRow{
		Subject: m.Subject, Rule: m.Rule, Title: cmp.Or(title, m.Rule), Units: m.Units, Overage: m.OverageUnits, Late: m.LateUnits, Checks: m.Checks,
	}
	if kind, known := metering[m.Rule]; known {
		row.Invoiced = grouped(m.Invoiced(kind))
	}
	return row
}

// pushesOf reads what was recently sent to the provider.
func (d *dashboard) pushesOf(ctx context.Context, a tenants.Actor, view *meteredView) error {
	names := d.ruleNames(ctx, a.TenantID())
	pushes, _, err := d.Store.MeterPushes(ctx, a, view.Rule, tenants.Page{Limit: mostPushes})
	for i := range pushes {
		p := &pushes[i]
		row := pushRow{
			Start: moment{p.Start}, Rule: names.Of(p.Rule), Event: p.MeterEvent, Subjects: p.Pushed, Units: p.PushedUnits, Open: p.Parked + p.Failed,
			State: p.State(), Tone: pushTones[p.State()], Why: p.Why,
		}
		if row.Why == "" && len(p.Problems) > 0 {
			row.Why = p.Problems[0].Subject + ": " + p.Problems[0].Why
		}
		view.Pushes = append(view.Pushes, row)
	}
	return err
}

// meteredExport returns the sealed hours of a month as a file.
func (d *dashboard) meteredExport(w http.ResponseWriter, r *http.Request, v *visit) error {
	place, err := d.exports.Take(v.actor().TenantID())
	if err != nil {
		return err
	}
	defer place.Leave()
	values := r.URL.Query()
	view := meteredView{Rule: values.Get("rule")}
	query, err := view.period(values.Get("month"), v.now)
	if err != nil {
		return err
	}
	query.Sum, query.Open = false, false
	if err := d.Store.RecordExport(r.Context(), v.actor(), "metered usage", values.Get("format")); err != nil {
		return err
	}
	var out *tenants.MeteredWriter
	pace, deadline := d.Store.ExportPace(w).Beside(place), deadlineOf(w)
	err = d.Store.ExportMetered(pace.Within(r.Context()), v.actor(), query, func(report tenants.MeteredReport) error {
		h, ext := w.Header(), "jsonl"
		if values.Get("format") == "csv" {
			ext = "csv"
			h.Set("Content-Type", "text/csv; charset=utf-8")
			out = tenants.NewMeteredCSV(pace, report)
		} else {
			h.Set("Content-Type", "application/jsonl")
			out = tenants.NewMeteredLines(pace, report)
		}
		h.Set("Content-Disposition", `attachment; filename="metered-`+view.Month+"."+ext+`"`)
		h.Set("Weir-Sealed-Until", report.SealedUntil.Format(time.RFC3339))
		if err := pace.Next(deadline); err != nil {
			return err
		}
		return unread(out.Begin())
	}, func(items []tenants.MeteredItem) error {
		if err := pace.Next(deadline); err != nil {
			return err
		}
		return unread(out.Write(items))
	})
	switch {
	case err == nil:
		pace.Last(deadline)
		err = unread(out.End())
	case out == nil:
		return err
	}
	return d.endFile(err, "cannot finish an export of metered usage")
}
