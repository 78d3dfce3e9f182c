package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/tenants"
)

const billingEventsPath = "/billing/events"

// eventRow is a billing event in the list.
type eventRow struct {
	ID, EventID, Type, Outcome, Tone, Why, Subject, Customer string
	Endpoint                                                 string // name
	At, Received                                             moment
	Deliveries                                               int64
	Replayable, Dismissable                                  bool
	Picked                                                   bool // its details are beside the list
}

// SubjectPath returns the page of the subject.
func (e *eventRow) SubjectPath() string { return subjectURL(e.Subject) }

// Who is the subject, or the customer while the subject is not known.
func (e *eventRow) Who() string { return nameOr(nameOr(e.Subject, e.Customer), "no subject") }

// Clock is the time of day at which the event arrived.
func (e *eventRow) Clock() string { return e.Received.At.UTC().Format("15:04:05") }

// Day is the date on which the event arrived.
func (e *eventRow) Day() string { return e.Received.At.UTC().Format("2 Jan 2006") }

var outcomeTones = map[string]string{
	tenants.EventApplied: "good", tenants.EventParked: "warn", tenants.EventFailed: "bad",
}

func eventRowOf(e *tenants.BillingEvent) eventRow {
	return eventRow{
		ID: e.ID.String(), EventID: e.ProviderID, Type: e.Type, Outcome: nameOr(e.Outcome, "received"), Tone: outcomeTones[e.Outcome], Why: whyText(e.Why),
		Subject: e.Subject, Customer: e.Customer, At: moment{e.ProviderAt}, Received: moment{e.ReceivedAt}, Deliveries: int64(e.Deliveries),
		Replayable: e.DuplicateOf == nil, Dismissable: e.Outcome == tenants.EventParked || e.Outcome == tenants.EventFailed,
	}
}

// eventFilter is the filter in the page's address.
type eventFilter struct {
	tenants.BillingEventFilter
	After string     // the cursor of a later page
	kept  url.Values // the conditions
}

func eventFilterOf(values url.Values) (f eventFilter, err error) {
	f.Outcome, f.Subject, f.Type, f.After, f.kept = values.Get("outcome"), values.Get("subject"), values.Get("type"), values.Get("after"), url.Values{}
	if f.Outcome != "" && !slices.Contains(tenants.EventOutcomes, f.Outcome) {
		return f, invalidField("outcome", oneOfTheList)
	}
	if text := values.Get("endpoint"); text != "" {
		id, err := uuid.Parse(text)
		if err != nil {
			return f, invalidField("endpoint", oneOfTheList)
		}
		f.Endpoint = &id
	}
	for _, name := range []string{"outcome", "subject", "type", "endpoint"} {
		if value := values.Get(name); value != "" {
			f.kept.Set(name, value)
		}
	}
	return f, nil
}

// Filtered reports whether a condition is set.
func (f *eventFilter) Filtered() bool { return len(f.kept) > 0 }

// With returns the address of the page with the details of an event; "" for none.
func (f *eventFilter) With(event string) string {
	query := url.Values{}
	for name := range f.kept {
		query.Set(name, f.kept.Get(name))
	}
	for name, value := range map[string]string{"after": f.After, "pick": event} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return billingEventsPath
	}
	return billingEventsPath + "?" + query.Encode()
}

// eventTypes are suggested as a filter. An event may have any other type.
var eventTypes = namedOnly([]string{
	"customer.subscription.created", "customer.subscription.updated", "customer.subscription.deleted", "customer.subscription.paused",
	"customer.subscription.resumed", "customer.subscription.trial_will_end", "invoice.paid", "invoice.payment_failed",
	"checkout.session.completed", "customer.updated", "customer.deleted", "charge.refunded", "subject.plan", "subject.credits",
})

type eventsView struct {
	Filter    eventFilter
	Form      *form
	Events    []eventRow
	Endpoints []option
	Detail    *eventDetail // the chosen event; nil: none is chosen
	First     string       // the first page with the same filter
	Next      string
}

// Pick is the chosen event; "" for none.
func (v *eventsView) Pick() string {
	if v.Detail == nil {
		return ""
	}
	return v.Detail.ID
}

// Live returns the address of the updates; "" for a later page, whose events do not change.
func (v *eventsView) Live() string {
	if v.Filter.After != "" {
		return ""
	}
	return "/live" + v.Filter.With(v.Pick())
}

// outcomeOptions returns the outcomes as options.
func outcomeOptions() []option {
	options := []option{{"", "Any outcome"}}
	for _, outcome := range tenants.EventOutcomes {
		options = append(options, option{outcome, outcome})
	}
	return options
}

// readEvents reads a page of events.
func (d *dashboard) readEvents(ctx context.Context, a tenants.Actor, f *eventFilter, pick string) (view eventsView, err error) {
	view = eventsView{Filter: *f, Endpoints: []option{{"", "Any provider"}}}
	endpoints, _, err := d.Store.BillingEndpoints(ctx, a, tenants.Page{Limit: maxBillingShown})
	if err != nil {
		return view, err
	}
	names := map[uuid.UUID]string{}
	for i := range endpoints {
		e := &endpoints[i]
		names[e.ID] = nameOr(e.Name, providerNames[e.Provider])
		view.Endpoints = append(view.Endpoints, option{e.ID.String(), names[e.ID]})
	}
	events, next, err := d.Store.BillingEvents(ctx, a, f.BillingEventFilter, tenants.Page{Limit: pageSize, After: f.After})
	if err != nil {
		return view, err
	}
	for i := range events {
		row := eventRowOf(&events[i])
		row.Endpoint, row.Picked = names[events[i].Endpoint], row.ID == pick
		view.Events = append(view.Events, row)
	}
	first := eventFilter{kept: f.kept}
	if view.First = first.With(""); next != "" {
		view.Next = withCursor(billingEventsPath, f.kept, next)
	}
	return view, nil
}

func (d *dashboard) billingEvents(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	f, err := eventFilterOf(query)
	if err != nil {
		return err
	}
	view, err := d.readEvents(r.Context(), v.actor(), &f, query.Get("pick"))
	if err != nil {
		return err
	}
	if text := query.Get("pick"); text != "" {
		if view.Detail, err = d.readEvent(r.Context(), v, text); err != nil {
			return err
		}
		view.Detail.Endpoint = optionName(view.Endpoints, view.Detail.endpoint.String())
	}
	view.Form = &form{values: query}
	v.frame.Title = "Billing events"
	return d.render(w, r, http.StatusOK, eventsPage(v.frame, &view))
}

// optionName returns the name of an option; "" if there is none with this value.
func optionName(options []option, value string) string {
	for _, o := range options {
		if o.Value == value {
			return o.Name
		}
	}
	return ""
}

// liveEvents updates the list.
func (d *dashboard) liveEvents(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	f, err := eventFilterOf(query)
	if err != nil {
		return err
	}
	f.After = ""
	pick := query.Get("pick")
	actor := tenants.AsSystem(v.actor().TenantID(), "live") // outlives this visit, and only reads
	return d.live(w, r, v, "billing events "+f.With(pick), func(ctx context.Context, _ int) ([]part, error) {
		view, err := d.readEvents(ctx, actor, &f, pick)
		if err != nil {
			return nil, err
		}
		if pick != "" { // its links keep the details open
			view.Detail = &eventDetail{eventRow: eventRow{ID: pick}}
		}
		return []part{{"rows", eventList(&view)}}, nil
	})
}

// eventDetail is the chosen event.
type eventDetail struct {
	eventRow
	Subscription string
	Settled      *moment
	Repeats      string // the page of the event that this one repeats; "": it is the first
	Body         string // "" unless the visitor manages billing
	Cut          bool   // the body is longer

	endpoint uuid.UUID
}

// mostBody is how much of a body is shown.
const mostBody = 64 << 10

// readEvent reads the event whose details are shown. Its body names customers, so it is for people
// who manage billing.
func (d *dashboard) readEvent(ctx context.Context, v *visit, text string) (*eventDetail, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return nil, tenants.ErrNotFound
	}
	e, err := d.Store.BillingEventByID(ctx, v.actor(), id)
	if err != nil {
		return nil, err
	}
	out := &eventDetail{eventRow: eventRowOf(&e), Subscription: e.Subscription, Settled: momentOf(e.SettledAt), endpoint: e.Endpoint}
	if e.DuplicateOf != nil {
		out.Repeats = billingEventsPath + "?pick=" + e.DuplicateOf.String()
	}
	if v.frame.May.Manage {
		err = d.turns.do(ctx, v.actor().TenantID(), func() { out.Body, out.Cut = bodyText(e.Body) })
	}
	return out, err
}

// secretValue matches a line of an indented body whose value grants access, such as a client_secret
// or the address of a hosted invoice.
var secretValue = regexp.MustCompile(`(?m)^(\s*"[^"]*(?i:secret|password|token|api_?key|authorization|hosted_invoice_url|invoice_pdf|receipt_url)[^"]*": )[^\s\[{].*?(,?)$`)

// bodyText returns the body of an event as text, without secrets. cut reports whether it is only
// the first part. Its cost does not depend on how deep the body is.
func bodyText(body []byte) (text string, cut bool) {
	if json.Valid(body) {
		body = indented(body, mostBody)
	}
	if cut = len(body) > mostBody; cut {
		body = body[:mostBody]
	}
	shown := secretValue.ReplaceAll(body, []byte(`$1"[hidden]"$2`))
	return string(bytes.ToValidUTF8(shown, nil)), cut
}

// deepest is how many levels are indented. Further ones are as far to the right.
const deepest = 32

// indented indents valid JSON, until it is longer than most bytes. json.Indent would return all of
// it: a body of 256 KB with ten thousand levels has lines of 20 KB.
func indented(body []byte, most int) []byte {
	var out []byte
	depth, opened, text := 0, false, false
	line := func() {
		out = append(out, '\n')
		for range min(depth, deepest) {
			out = append(out, "  "...)
		}
	}
	for i := 0; i < len(body) && len(out) <= most; i++ {
		c := body[i]
		switch {
		case text && c == '\\':
			out = append(out, c, body[i+1])
			i++
			continue
		case text:
			out = append(out, c)
			text = c != '"'
			continue
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			continue
		}
		closes := c == '}' || c == ']'
		if closes {
			depth--
		}
		if opened != closes && (opened || closes) { // {} and [] stay as they are
			line()
		}
		out, opened = append(out, c), false
		switch c {
		case '{', '[':
			depth, opened = depth+1, true
		case ',':
			line()
		case ':':
			out = append(out, ' ')
		case '"':
			text = true
		}
	}
	return out
}

// doneWithEvent returns to the details of an event.
func (d *dashboard) doneWithEvent(w http.ResponseWriter, r *http.Request, id uuid.UUID, said string) error {
	return d.done(w, r, billingEventsPath+"?pick="+id.String(), said)
}

// replayEvent processes an event again.
func (d *dashboard) replayEvent(w http.ResponseWriter, r *http.Request, v *visit, _ *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	e, err := d.Billing.Replay(r.Context(), v.actor(), id)
	var conflict *tenants.ConflictError
	if errors.As(err, &conflict) {
		return d.doneWithEvent(w, r, id, sentence(conflict.Detail))
	}
	if err != nil {
		return err
	}
	return d.doneWithEvent(w, r, id, "Replayed "+e.ProviderID+": "+e.Outcome+". "+sentence(whyText(e.Why)))
}

// dismissEvent settles an event that is parked or has failed without applying it.
func (d *dashboard) dismissEvent(w http.ResponseWriter, r *http.Request, v *visit, _ *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	e, err := d.Store.DismissBillingEvent(r.Context(), v.actor(), id)
	var conflict *tenants.ConflictError
	if errors.As(err, &conflict) {
		return d.doneWithEvent(w, r, id, sentence(conflict.Detail))
	}
	if err != nil {
		return err
	}
	return d.doneWithEvent(w, r, id, "Dismissed "+e.ProviderID+". Replay it to undo this.")
}

var (
	whyTime    = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	whyCredits = regexp.MustCompile(`\b\d{4,} (of \d+ )?credits`)
	whyNumber  = regexp.MustCompile(`\d{4,}`)
)

// whyText returns the reason of an event with times for prose, and numbers as on other pages.
func whyText(why string) string {
	why = whyCredits.ReplaceAllStringFunc(why, func(text string) string {
		return whyNumber.ReplaceAllStringFunc(text, func(number string) string {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return number
			}
			return grouped(n)
		})
	})
	return whyTime.ReplaceAllStringFunc(why, func(text string) string {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return text
		}
		return spoken(at, "minute")
	})
}
