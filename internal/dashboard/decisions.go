package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
)

// mostDecisions is the maximum number of recent decisions on a page.
const mostDecisions = 100

type decisionsView struct {
	Filter   decisionFilter
	Rows     []decisionRow
	Watching watching
}

// decisionFilter is the filter in the page's address.
type decisionFilter struct{ Subject, Resource, Rule, Show string }

// Denied reports whether only denials are shown, which is the default.
func (f *decisionFilter) Denied() bool { return f.Show != "all" }

// Query returns the filter as part of an address.
func (f *decisionFilter) Query() string {
	values := url.Values{}
	for _, v := range []struct{ name, value string }{{"show", f.Show}, {"subject", f.Subject}, {"rule", f.Rule}, {"resource", f.Resource}} {
		if v.value != "" {
			values.Set(v.name, v.value)
		}
	}
	return values.Encode()
}

// Filtered reports whether a filter other than the kind of decision is set.
func (f *decisionFilter) Filtered() bool { return f.Subject != "" || f.Resource != "" || f.Rule != "" }

// decisionRow is a recent decision in words.
type decisionRow struct {
	At                      time.Time
	Subject, Resource, Cost string
	Allowed                 bool
	Rule, Name              string // slug and name of the deciding rule
	Left                    string // "0 of 100"
	Why                     string
	Again                   string // when the same check would be allowed
	Repeats                 string // "" if it was not repeated
}

// Machine and Clock return the time of the row.
func (r *decisionRow) Machine() string { return r.At.UTC().Format(time.RFC3339Nano) }

// Clock includes milliseconds, because several rows may be in one second.
func (r *decisionRow) Clock() string { return r.At.UTC().Format("15:04:05.000") }

// Day returns the date of the row.
func decisionColumns(ofMany bool) string {
	if ofMany {
		return "6"
	}
	return "5"
}

func (r *decisionRow) Day() string { return r.At.UTC().Format("2 Jan 2006") }

// decisionFilterOf parses the address. An invalid subject or resource matches nothing, so only its
// length is checked.
func decisionFilterOf(r *http.Request) (decisionFilter, error) {
	q := r.URL.Query()
	f := decisionFilter{
		Subject: strings.TrimSpace(q.Get("subject")), Resource: strings.TrimSpace(q.Get("resource")),
		Rule: strings.TrimSpace(q.Get("rule")), Show: q.Get("show"),
	}
	if f.Show != "" && f.Show != "all" && f.Show != "denied" {
		return f, invalidField("show", limit.MustBe("denied or all"))
	}
	for _, field := range []struct{ name, text string }{{"subject", f.Subject}, {"resource", f.Resource}, {"rule", f.Rule}} {
		if len(field.text) > limit.MaxNameBytes {
			return f, invalidField(field.name, limit.MustBe("at most %d bytes", limit.MaxNameBytes))
		}
	}
	return f, nil
}

func (d *dashboard) readDecisions(ctx context.Context, tenant uuid.UUID, f *decisionFilter) decisionsView {
	list := d.recent(ctx, tenant, recent.Query{
		Prefix: f.Subject, Resource: f.Resource, Rule: f.Rule, Denied: f.Denied(), Most: mostDecisions,
	})
	return decisionsView{Filter: *f, Rows: decisionRows(list.Decisions, d.ruleNames(ctx, tenant)), Watching: watching{list.Answered, list.Instances}}
}

// decisions shows recent decisions.
func (d *dashboard) decisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	f, err := decisionFilterOf(r)
	if err != nil {
		return err
	}
	view := d.readDecisions(r.Context(), v.actor().TenantID(), &f)
	v.frame.Title = "Decisions"
	return d.render(w, r, http.StatusOK, decisionsPage(v.frame, &view))
}

// liveDecisions updates the page.
func (d *dashboard) liveDecisions(w http.ResponseWriter, r *http.Request, v *visit) error {
	f, err := decisionFilterOf(r)
	if err != nil {
		return err
	}
	tenant := v.actor().TenantID()
	return d.live(w, r, v, "decisions "+f.Query(), func(ctx context.Context, _ int) ([]part, error) {
		view := d.readDecisions(ctx, tenant, &f)
		return []part{{"rows", decisionList(&view)}}, nil
	})
}

// recentDenials returns the recent denials of one subject, newest first, and the number of
// instances that reported them.
func (d *dashboard) recentDenials(ctx context.Context, tenant uuid.UUID, subject string, most int) ([]decisionRow, watching) {
	list := d.recent(ctx, tenant, recent.Query{Subject: subject, Denied: true, Most: most})
	return decisionRows(list.Decisions, d.ruleNames(ctx, tenant)), watching{list.Answered, list.Instances}
}

func decisionRows(list []recent.Decision, names ruleNames) []decisionRow {
	rows := make([]decisionRow, len(list))
	for i := range list {
		r := &list[i]
		rows[i] = decisionRow{
			At: r.At, Subject: r.Subject, Resource: r.Resource, Cost: grouped(r.Cost), Allowed: r.Allowed, Rule: r.Rule, Name: names.Of(r.Rule),
			Why: reasonText(r), Again: retryText(r),
		}
		if r.Rule != "" && !r.Uncounted {
			rows[i].Left = grouped(r.Remaining) + " of " + grouped(r.Quota)
		}
		if r.Repeats > 0 {
			rows[i].Repeats = grouped(r.Repeats+1) + " times in 1 s"
		}
	}
	return rows
}

// reasonText explains a decision in a sentence.
func reasonText(d *recent.Decision) string {
	switch {
	case d.Code == check.SubjectBlocked:
		return "The subject is blocked."
	case d.Code == check.CostExceedsLimit:
		return "The cost of " + grouped(d.Cost) + " exceeds the limit of " + grouped(d.Quota) + "."
	case d.Code == check.CountersUnavailable:
		return "Redis was unavailable, and the rule denies in that case."
	case !d.Allowed && d.Penalized:
		return "A penalty for an earlier denial was active."
	case !d.Allowed && d.Remaining > 0:
		return "The cost was " + grouped(d.Cost) + ", and " + grouped(d.Remaining) + " of " + grouped(d.Quota) + " remained" + sourceText(d.Source) + "."
	case !d.Allowed && d.Quota == 1:
		return "1 of 1 used" + sourceText(d.Source) + "."
	case !d.Allowed:
		return grouped(d.Quota) + " of " + grouped(d.Quota) + " used" + sourceText(d.Source) + "."
	case d.Rule == "" && d.Degraded:
		return "Redis was unavailable, and no rule denied."
	case d.Rule == "":
		return "No rule with a limit matched."
	case d.Degraded:
		return "Within the limit, counted by this instance because Redis was unavailable."
	}
	return "Within the limit" + sourceText(d.Source) + "."
}

// sourceText names the source of a limit, unless it is the rule's own.
func sourceText(source string) string {
	if source == "rule" {
		return ""
	}
	return " (limit " + originText(source) + ")"
}

// retryText says when the same check would have been allowed, relative to the decision.
func retryText(d *recent.Decision) string {
	switch {
	case d.Allowed:
		return ""
	case d.Code == check.SubjectBlocked:
		return "when unblocked"
	case d.RetryAfterMS == limit.NeverMS:
		return "never"
	}
	return "in " + short(time.Duration(d.RetryAfterMS)*time.Millisecond)
}
