package api

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"weir/internal/tenants"
	"weir/internal/usage"
)

const csvType = "text/csv"

// UsageParams select usage.
type UsageParams struct {
	Grain    string   `query:"grain" enum:"minute,hour,day" default:"hour" doc:"Length of each interval. Minutes are stored for 2 days, hours for 35, days for 400; days are in UTC"`
	From     string   `query:"from" format:"date-time" doc:"Start of the period, RFC 3339, rounded down to the grain; default: an hour (minute), a day (hour) or 30 days (day) before to"`
	To       string   `query:"to" format:"date-time" doc:"End of the period, RFC 3339, rounded up to the grain; default now"`
	GroupBy  []string `query:"group_by" enum:"rule,plan,resource,subject" uniqueItems:"true" doc:"One item per value, separated by commas. By rule, the verdicts of each rule are counted: a check that three rules decided counts for all three. subject cannot be combined, and lists the up to 100 busiest subjects of each interval, approximately"`
	Rule     string   `query:"rule" doc:"Only the verdicts of the rule with this slug"`
	Plan     string   `query:"plan" doc:"Only checks under the plan with this slug"`
	Resource string   `query:"resource" doc:"Only checks for this resource"`
	Subject  string   `query:"subject" doc:"Only this subject, if it is among the busiest"`
	Top      string   `query:"top" enum:"checks,denied" default:"checks" doc:"How the busiest subjects are chosen: by checks or by denied checks; with denied, only denied checks are counted, so allowed is 0"`
	Format   string   `query:"format" enum:"json,csv" doc:"Overrides the header Accept"`
}

// UsageAnswer is the usage over time.
type UsageAnswer struct {
	Grain         string      `json:"grain" enum:"minute,hour,day"`
	From          time.Time   `json:"from"`
	To            time.Time   `json:"to" doc:"Exclusive"`
	CompleteUntil time.Time   `json:"complete_until" doc:"All checks before this time are counted; later ones may be missing. A killed server may have lost its last second"`
	Approximate   bool        `json:"approximate" doc:"true for subjects: each had at least the counted checks, and at most error_bound more"`
	Items         []UsageItem `json:"items" doc:"Ordered by time; intervals without checks are omitted"`
}

// UsageItem is the usage of one period.
type UsageItem struct {
	Start        time.Time `json:"start"`
	Rule         *string   `json:"rule,omitempty" doc:"Slug, if grouped by rule"`
	Plan         *string   `json:"plan,omitempty" doc:"Slug, if grouped by plan; empty: checks without a plan; *: plans that are not distinguished"`
	Resource     *string   `json:"resource,omitempty" doc:"If grouped by resource; empty: all resources that are not distinguished"`
	Subject      *string   `json:"subject,omitempty" doc:"If grouped by subject"`
	ErrorBound   *int64    `json:"error_bound,omitempty" doc:"If grouped by subject: the maximum number of uncounted checks"`
	Allowed      int64     `json:"allowed" doc:"Checks"`
	Denied       int64     `json:"denied" doc:"Checks"`
	ShadowDenied int64     `json:"shadow_denied" doc:"Of these, checks that a shadow rule would have denied"`
	Degraded     int64     `json:"degraded" doc:"Of these, checks answered in degraded mode"`
	CostAllowed  int64     `json:"cost_allowed" doc:"Units of cost of the allowed checks"`
	CostDenied   int64     `json:"cost_denied" doc:"Units of cost of the denied checks"`
}

// tabulate registers a GET that answers a T in JSON, or as a table in CSV. The answer is encoded by
// hand.
func tabulate[T, I any](a *admin, path, id, summary string, h func(context.Context, *I) (*huma.StreamResponse, error)) {
	op := a.operation(http.MethodGet, path, id, summary, []option{inTurns})
	ok := jsonResponse[T](a.api, "OK")
	ok.Content[csvType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	ok.Headers = map[string]*huma.Param{completeUntilHeader: {
		Description: "As complete_until in JSON", Schema: &huma.Schema{Type: huma.TypeString, Format: "date-time"},
	}}
	op.Responses["200"] = ok
	register(a, op, h)
}

const completeUntilHeader = "Weir-Complete-Until"

func (a *admin) getUsage(ctx context.Context, in *UsageParams) (*huma.StreamResponse, error) {
	query, err := in.query()
	if err != nil {
		return nil, err
	}
	report, err := a.store.Usage(ctx, actorFrom(ctx), query)
	if err != nil {
		return nil, queryErrors(err)
	}
	inCSV := in.wantsCSV(conditionsFrom(ctx).accept)
	var body bytes.Buffer // whole, because its bytes are counted before it is sent
	if err := encodeLong(ctx, usageValues*len(report.Items), func() {
		if inCSV {
			_ = report.WriteCSV(&body, &query)
		} else {
			_ = jsonFormat.Marshal(&body, usageAnswer(in, query, report))
		}
	}); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		hctx.SetHeader(completeUntilHeader, report.CompleteUntil.Format(time.RFC3339Nano))
		hctx.SetHeader("Vary", "Accept")
		hctx.SetHeader("Content-Type", jsonType)
		if inCSV {
			hctx.SetHeader("Content-Type", csvType+"; charset=utf-8")
			hctx.SetHeader("Content-Disposition", `attachment; filename="usage-`+query.Grain.String()+`.csv"`)
		}
		_, _ = hctx.BodyWriter().Write(body.Bytes()) // if it fails, the client has disconnected
	}}, nil
}

// usageValues is the number of values of an item.
const usageValues = 10

func (in *UsageParams) query() (tenants.UsageQuery, error) {
	q := tenants.UsageQuery{
		ByRule: in.by("rule"), ByPlan: in.by("plan"), ByResource: in.by("resource"), BySubject: in.by("subject"),
		Rule: in.Rule, Plan: in.Plan, Resource: in.Resource, Subject: in.Subject, DeniedFirst: in.Top == "denied",
	}
	for _, g := range usage.Grains {
		if g.String() == in.Grain {
			q.Grain = g
		}
	}
	for _, f := range []struct {
		name, text string
		to         *time.Time
	}{{"from", in.From, &q.From}, {"to", in.To, &q.To}} {
		if f.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, f.text)
		if err != nil {
			return q, invalid(wrongField("query:"+f.name, notRFC3339))
		}
		if epoch := time.Unix(0, 0); t.Before(epoch) {
			t = epoch // far out of range as well, and never the zero time, which would be "left out"
		}
		*f.to = t
	}
	return q, nil
}

func (in *UsageParams) by(what string) bool { return slices.Contains(in.GroupBy, what) }

func (in *UsageParams) wantsCSV(accept string) bool {
	if in.Format != "" {
		return in.Format == "csv"
	}
	return negotiation.SelectQValueFast(accept, []string{jsonType, csvType}) == csvType
}

func usageAnswer(in *UsageParams, q tenants.UsageQuery, r tenants.UsageReport) *UsageAnswer {
	answer := &UsageAnswer{
		Grain: q.Grain.String(), From: r.From, To: r.To, CompleteUntil: r.CompleteUntil, Approximate: r.Approximate,
		Items: make([]UsageItem, len(r.Items)),
	}
	for i := range r.Items {
		answer.Items[i] = in.item(&r.Items[i])
	}
	return answer
}

// item converts an item, with the members for this query.
func (in *UsageParams) item(item *tenants.UsageItem) UsageItem {
	out := UsageItem{
		Start: item.Start, Allowed: item.Allowed, Denied: item.Denied, ShadowDenied: item.ShadowDenied,
		Degraded: item.Degraded, CostAllowed: item.CostAllowed, CostDenied: item.CostDenied,
	}
	if in.by("rule") {
		out.Rule = &item.Rule
	}
	if in.by("plan") {
		out.Plan = &item.Plan
	}
	if in.by("resource") {
		out.Resource = &item.Resource
	}
	if in.by("subject") || in.Subject != "" {
		out.Subject, out.ErrorBound = &item.Subject, &item.Error
	}
	return out
}
