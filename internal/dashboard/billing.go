package dashboard

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// endpointRow is a billing endpoint in a list and on its page.
type endpointRow struct {
	ID, Name, Provider, URL string
	Mode                    string // live mode, test mode; "": not known yet
	Grace, Fallback         string
	LastEvent               *moment // nil if no event has arrived
}

// Stripe reports whether the endpoint has the settings of Stripe. The events of other systems name
// the subject and the plan themselves.
func (e endpointRow) Stripe() bool { return e.Provider == providerNames[tenants.StripeProvider] }

// Path returns the endpoint's page.
func (e endpointRow) Path() string { return "/billing/endpoints/" + e.ID }

type priceRow struct {
	Price, Endpoint, EndpointName, Plan, PlanName string
	Rule, Credits, Expiry                         string // of a price that stands for credits
	Multiply                                      bool
	Priority                                      int64
	Units                                         int64
	Days                                          string
	Version                                       int64
}

type billingView struct {
	Endpoints []endpointRow
	Prices    []priceRow
	Plans     []option
	Rules     []option // for which credits can be granted
	Choices   []option // the endpoints
	Encrypts  bool     // secrets can be stored
	Unapplied tenants.UnappliedEvents
	Grace     []graceRow
	MoreGrace bool

	sentForms
}

// graceRow is a customer whose payment failed.
type graceRow struct {
	Subject, Subscription, Then string
	Ends                        moment
}

// maxGraceShown is how many grace periods the page lists.
const maxGraceShown = 50

// readGrace reads the grace periods that end first. plans are names by slug.
func (d *dashboard) readGrace(ctx context.Context, v *visit, view *billingView, plans map[string]string) error {
	periods, err := d.Store.GracePeriods(ctx, v.actor(), maxGraceShown+1)
	if view.MoreGrace = len(periods) > maxGraceShown; view.MoreGrace {
		periods = periods[:maxGraceShown]
	}
	for _, g := range periods {
		then := nameOr(plans[g.FallbackPlan], nameOr(g.FallbackPlan, "Default plan"))
		view.Grace = append(view.Grace, graceRow{g.Subject, g.Subscription, then, moment{g.EndsAt}})
	}
	return err
}

// Waiting returns how many events wait for a price or a customer, or cannot be read.
func (v *billingView) Waiting() int64 { return v.Unapplied.Parked - v.Unapplied.Scheduled }

// Capped reports whether there are more unapplied events than were counted.
func (v *billingView) Capped() bool {
	return v.Unapplied.Parked+v.Unapplied.Failed >= tenants.MostUnapplied
}

// providerNames are the names of the providers for people.
var providerNames = map[string]string{tenants.StripeProvider: "Stripe", tenants.GenericProvider: "Signed webhook"}

// maxBillingShown limits the lists of the page: a tenant has no more endpoints, and rarely more
// prices.
const maxBillingShown = 1000

func (d *dashboard) billingPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showBilling(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showBilling(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	ctx, all := r.Context(), tenants.Page{Limit: maxBillingShown}
	endpoints, _, err := d.Store.BillingEndpoints(ctx, v.actor(), all)
	if err != nil {
		return err
	}
	prices, _, err := d.Store.BillingPrices(ctx, v.actor(), all)
	if err != nil {
		return err
	}
	view := billingView{Encrypts: d.Store.CanSeal(), sentForms: sentForms{f}}
	if view.Unapplied, err = d.Store.UnappliedEvents(ctx, v.actor()); err != nil {
		return err
	}
	if view.Plans, err = d.planChoices(r, v); err != nil {
		return err
	}
	if view.Rules, err = d.creditRules(r, v); err != nil {
		return err
	}
	plans := map[string]string{}
	for _, o := range view.Plans {
		plans[o.Value] = o.Name
	}
	if err := d.readGrace(ctx, v, &view, plans); err != nil {
		return err
	}
	names := map[uuid.UUID]string{}
	for _, e := range endpoints {
		row := d.endpointRowOf(r, e)
		row.Fallback = nameOr(plans[e.FallbackPlan], row.Fallback)
		names[e.ID] = row.Name
		view.Endpoints = append(view.Endpoints, row)
		if e.HasPrices() {
			view.Choices = append(view.Choices, option{row.ID, row.Name})
		}
	}
	for _, p := range prices {
		row := priceRow{
			Price: p.Price, Endpoint: p.Endpoint.String(), EndpointName: names[p.Endpoint], Plan: p.Plan, PlanName: nameOr(plans[p.Plan], p.Plan),
			Multiply: p.Multiply, Priority: int64(p.Priority), Version: p.Version,
		}
		if c := p.Credits; c != nil {
			row.Rule, row.Credits, row.Units = c.Rule, grouped(c.Units)+" credits for ", c.Units
		}
		if c := p.Credits; c != nil && c.ExpiresDays > 0 {
			row.Days = itoa(int64(c.ExpiresDays))
			row.Expiry = ", for " + plural(int64(c.ExpiresDays), "day", "days")
		}
		view.Prices = append(view.Prices, row)
	}
	slices.Reverse(view.Prices) // in the order of creation, as on a pricing page
	v.frame.Title = "Billing"
	return d.renderRows(len(view.Prices), w, r, status, billingPage(v.frame, &view))
}

// planChoices returns the tenant's plans as options.
func (d *dashboard) planChoices(r *http.Request, v *visit) ([]option, error) {
	plans, _, err := d.Store.PlanHeads(r.Context(), v.actor(), tenants.Page{Limit: maxBillingShown})
	if err != nil {
		return nil, err
	}
	options := make([]option, len(plans))
	for i, p := range plans {
		options[i] = option{p.Slug, nameOr(p.Name, p.Slug)}
	}
	slices.Reverse(options)
	return options, nil
}

// creditRules returns the rules for which credits can be granted as options.
func (d *dashboard) creditRules(r *http.Request, v *visit) (options []option, err error) {
	rules, _, err := d.Store.Rules(r.Context(), v.actor(), tenants.RuleFilter{}, tenants.Page{Limit: maxBillingShown})
	for _, rule := range rules {
		if rule.Rule.SpendsCredits() {
			options = append(options, option{rule.Slug, nameOr(rule.Name, rule.Slug)})
		}
	}
	slices.Reverse(options)
	return options, err
}

func (d *dashboard) endpointRowOf(r *http.Request, e tenants.BillingEndpoint) endpointRow {
	base := d.PublicURL
	if base == "" {
		base = "http://" + r.Host
		if r.TLS != nil {
			base = "https://" + r.Host
		}
	}
	row := endpointRow{
		ID: e.ID.String(), Name: nameOr(e.Name, providerNames[e.Provider]), Provider: providerNames[e.Provider],
		URL:   base + "/v1/webhooks/" + e.Provider + "/" + e.ID.String(),
		Grace: plural(int64(e.GraceDays), "day", "days"), Fallback: nameOr(e.FallbackPlan, "default plan"), LastEvent: momentOf(e.LastEventAt),
	}
	switch {
	case e.Live == nil:
	case *e.Live:
		row.Mode = "live mode"
	default:
		row.Mode = "test mode"
	}
	return row
}

// actOnBilling executes the form of the page of billing.
func (d *dashboard) actOnBilling(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	path, said := "/billing", ""
	var err error
	switch f.Get("do") {
	case "connect":
		var made tenants.BillingEndpoint
		in := tenants.BillingEndpoint{Provider: f.Get("provider"), Name: f.Get("name")}
		f.endpoint(&in)
		var secrets tenants.BillingSecrets
		if secret := f.Get("signing_secret"); secret != "" {
			secrets.Signing = []string{secret}
		}
		if key := f.Get("api_key"); key != "" {
			secrets.APIKey = &key
		}
		if f.invalid() {
			break
		}
		if made, err = d.Store.CreateBillingEndpoint(r.Context(), v.actor(), in, secrets); err == nil {
			path, said = "/billing/endpoints/"+made.ID.String(), "Endpoint created."
		}
	case "map", "sell", "edit":
		p := f.price(f.Get("do") == "sell" || f.Get("credits") != "")
		if f.invalid() {
			break
		}
		if f.Get("do") != "edit" { // it has a form of its own, which shows the present values
			if err = d.unmapped(r, v, f, p.Price); err != nil {
				return err
			}
			if f.invalid() {
				break
			}
		}
		if _, _, err = d.Store.PutBillingPrice(r.Context(), v.actor(), p, f.match()); err == nil {
			d.Billing.Wake()
			said = "Price " + p.Price + " mapped to plan " + d.planNames(r.Context(), v.actor()).Of(p.Plan) + "."
		}
		if err == nil && p.Credits != nil {
			said = "Each purchase of " + p.Price + " grants " + grouped(p.Credits.Units) + " credits for " + d.ruleNames(r.Context(), v.actor().TenantID()).Of(p.Credits.Rule) + "."
		}
	case "unmap":
		if err = d.Store.DeleteBillingPrice(r.Context(), v.actor(), f.Get("id"), tenants.Match{}); err == nil {
			said = "Mapping removed. Subjects keep their plans until their next event."
		}
	default:
		return errForm
	}
	status, err := f.outcome(err)
	if err != nil {
		return err
	}
	if status != 0 {
		f.moveError("signing_secrets.0", "signing_secret")
		f.moveError("signing_secrets", "signing_secret")
		for _, name := range []string{"rule", "units", "expires_after_days"} {
			f.moveError("credits."+name, name)
		}
		return d.showBilling(w, r, v, status, f)
	}
	return d.done(w, r, path, said)
}

// unmapped adds an error to a form that would replace the mapping of a price.
func (d *dashboard) unmapped(r *http.Request, v *visit, f *form, price string) error {
	old, err := d.Store.BillingPriceByID(r.Context(), v.actor(), price)
	if errors.Is(err, tenants.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	stands := "the plan " + d.planNames(r.Context(), v.actor()).Of(old.Plan)
	if c := old.Credits; c != nil {
		stands = grouped(c.Units) + " credits for " + d.ruleNames(r.Context(), v.actor().TenantID()).Of(c.Rule)
	}
	f.wrong("id", limit.Wrong("Use Edit in the row of the price below, or remove its mapping.", "stands for %s already", stands))
	return nil
}

// price reads what a price stands for: a plan, or credits.
func (f *form) price(credits bool) tenants.BillingPrice {
	id, _ := uuid.Parse(f.Get("endpoint")) // the store reports an invalid id
	p := tenants.BillingPrice{Price: f.Get("id"), Endpoint: id}
	if !credits {
		p.Plan, p.Multiply, p.Priority = f.Get("plan"), f.Checked("multiply", false), int(f.wholeFrom("priority", 0, 1_000_000))
		return p
	}
	p.Credits = &tenants.PriceCredits{Rule: f.Get("rule"), Units: f.integer("units")}
	if f.Get("expires_after_days") != "" {
		p.Credits.ExpiresDays = int(f.wholeUpTo("expires_after_days", 3650))
	}
	return p
}

// endpoint reads the settings that both forms of an endpoint have.
func (f *form) endpoint(e *tenants.BillingEndpoint) {
	e.SubjectFrom = f.Get("subject_from")
	if e.SubjectFrom == tenants.FromMetadata {
		e.SubjectFrom += f.Get("metadata_key")
	}
	e.GraceDays, e.FallbackPlan = int(f.wholeFrom("grace_days", 0, 365)), f.Get("fallback_plan")
}

// moveError shows the error of one field at another field.
func (f *form) moveError(from, to string) {
	if p := f.errors[from]; p != nil {
		delete(f.errors, from)
		f.wrong(to, p)
	}
}

type endpointView struct {
	endpointRow
	OwnName, SubjectFrom, MetadataKey string
	GraceDays                         int64
	FallbackPlan                      string
	Secrets, APIKey                   string  // the last characters of each
	Reconciled, NotReconciled         *moment // when the last comparison succeeded, and when it failed
	ReconcileError                    string
	Version                           int64
	Plans                             []option
	Wait                              eventWait

	sentForms
}

// eventWait waits for the first event of an endpoint, or shows the newest one.
type eventWait struct {
	Endpoint string
	Stripe   bool
	Events   []eventRow // the newest event, if any

	// The last event that was refused, if no event was accepted after it.
	Refused, RefusedAgo, RefusedHint string
	RefusedAt                        moment
}

// refusals says for each reason what arrived, and what to do.
var refusals = map[string][2]string{
	tenants.RefusedNoSecret:     {"An event was refused, because the endpoint has no signing secret yet,", "Enter the secret first."},
	tenants.RefusedNoSignature:  {"An event without a signature arrived", "It did not come from the billing system, or a proxy removed a header."},
	tenants.RefusedBadSignature: {"An event with a wrong signature arrived", "Is the signing secret that of this endpoint?"},
	tenants.RefusedOldSignature: {"An event whose signature is too old, or of the future, arrived", "Are the clocks of the sender and of this server right?"},
	tenants.RefusedMalformed:    {"An event with a valid signature and wrong content arrived", "The answer to the sender names what is wrong."},
	tenants.RefusedWrongMode:    {"An event of the other mode arrived", "Create an endpoint for each mode of Stripe."},
	tenants.RefusedVolume:       {"An event beyond the maximum of a day arrived", "Select fewer types of events at the billing system. It sends refused events again."},
}

// Again returns when a comparison that failed is repeated: within an hour, or, if only a part of it
// failed, with the next one.
func (v *endpointView) Again() string {
	if v.Reconciled != nil && !v.NotReconciled.At.After(v.Reconciled.At) {
		return "within a day"
	}
	return "within an hour"
}

// Page returns the endpoint's page.
func (e eventWait) Page() string { return "/billing/endpoints/" + e.Endpoint }

// Path returns the address that the page polls.
func (e eventWait) Path() string { return "/billing/endpoints/" + e.Endpoint + "/wait" }

// EventsPath returns the list of the endpoint's events.
func (e eventWait) EventsPath() string { return billingEventsPath + "?endpoint=" + e.Endpoint }

func (d *dashboard) endpointPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showEndpoint(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showEndpoint(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	e, err := d.Store.BillingEndpointByID(r.Context(), v.actor(), id)
	if err != nil {
		return err
	}
	view := endpointView{
		endpointRow: d.endpointRowOf(r, e), OwnName: e.Name, SubjectFrom: e.SubjectFrom, GraceDays: int64(e.GraceDays), FallbackPlan: e.FallbackPlan,
		Version: e.Version, Reconciled: momentOf(e.ReconciledAt), NotReconciled: momentOf(e.ReconcileFailedAt), ReconcileError: e.ReconcileError, sentForms: sentForms{f},
	}
	if key, isMetadata := cutMetadata(e.SubjectFrom); isMetadata {
		view.SubjectFrom, view.MetadataKey = tenants.FromMetadata, key
	}
	for i, hint := range e.SecretHints {
		if i > 0 {
			view.Secrets += ", "
		}
		view.Secrets += "…" + hint
	}
	if e.APIKeyHint != "" {
		view.APIKey = "…" + e.APIKeyHint
	}
	if view.Plans, err = d.planChoices(r, v); err != nil {
		return err
	}
	view.Fallback = nameOr(optionName(view.Plans, e.FallbackPlan), view.Fallback)
	if view.Wait, err = d.eventWait(r, v, e); err != nil {
		return err
	}
	v.frame.Title = view.Name
	return d.render(w, r, status, endpointPage(v.frame, &view))
}

func cutMetadata(from string) (key string, ok bool) {
	if len(from) > len(tenants.FromMetadata) && from[:len(tenants.FromMetadata)] == tenants.FromMetadata {
		return from[len(tenants.FromMetadata):], true
	}
	return "", false
}

func (d *dashboard) eventWait(r *http.Request, v *visit, e tenants.BillingEndpoint) (eventWait, error) {
	events, _, err := d.Store.BillingEvents(r.Context(), v.actor(), tenants.BillingEventFilter{Endpoint: &e.ID}, tenants.Page{Limit: 1})
	wait := eventWait{Endpoint: e.ID.String(), Stripe: e.Provider == tenants.StripeProvider}
	for i := range events {
		wait.Events = append(wait.Events, eventRowOf(&events[i]))
	}
	if e.RefusedAt != nil && (e.LastEventAt == nil || e.RefusedAt.After(*e.LastEventAt)) {
		says := refusals[e.RefusedWhy]
		if e.RefusedWhy == tenants.RefusedNoSecret && len(e.SecretHints) > 0 {
			says = [2]string{"An event was refused, because the endpoint had no signing secret then,", "Stripe sends it again."}
		}
		wait.Refused, wait.RefusedHint = says[0], says[1]
		wait.RefusedAt, wait.RefusedAgo = moment{*e.RefusedAt}, agoInWords(d.Now().Sub(*e.RefusedAt))
	}
	return wait, err
}

// waitForEvent returns the part of an endpoint's page that waits for the first event.
func (d *dashboard) waitForEvent(w http.ResponseWriter, r *http.Request, v *visit) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	e, err := d.Store.BillingEndpointByID(r.Context(), v.actor(), id)
	if err != nil {
		return err
	}
	wait, err := d.eventWait(r, v, e)
	if err != nil {
		return err
	}
	return d.render(w, r, http.StatusOK, eventWaiting(wait))
}

// actOnEndpoint executes a form of an endpoint's page.
func (d *dashboard) actOnEndpoint(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := keyID(r)
	if err != nil {
		return err
	}
	path, said := "/billing/endpoints/"+id.String(), "Saved."
	edit := func(change func(*tenants.BillingEndpoint) tenants.BillingSecrets) {
		_, err = d.Store.EditBillingEndpoint(r.Context(), v.actor(), id, f.match(), func(e *tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
			return change(e), nil
		})
	}
	switch f.Get("do") {
	case "edit":
		var in tenants.BillingEndpoint
		full := f.values.Has("grace_days") // the form of a signed webhook has only the name
		if full {
			f.endpoint(&in)
		}
		if f.invalid() {
			break
		}
		edit(func(e *tenants.BillingEndpoint) tenants.BillingSecrets {
			if e.Name = f.Get("name"); full {
				e.SubjectFrom, e.GraceDays, e.FallbackPlan = in.SubjectFrom, in.GraceDays, in.FallbackPlan
			}
			return tenants.BillingSecrets{}
		})
	case "add":
		secret := f.Get("signing_secret")
		edit(func(*tenants.BillingEndpoint) tenants.BillingSecrets {
			return tenants.BillingSecrets{AddSigning: &secret}
		})
	case "replace":
		secret := f.Get("signing_secret")
		edit(func(*tenants.BillingEndpoint) tenants.BillingSecrets {
			return tenants.BillingSecrets{Signing: []string{secret}}
		})
	case "key":
		key := f.Get("api_key")
		edit(func(*tenants.BillingEndpoint) tenants.BillingSecrets { return tenants.BillingSecrets{APIKey: &key} })
	case "compare":
		if _, err = d.Store.RequestReconcile(r.Context(), v.actor(), id); err == nil {
			d.Billing.Wake()
			said = "Comparing all subscriptions with Stripe. Subjects with the wrong plan are moved, and the audit log lists them."
		}
	case "delete":
		if err = d.Store.DeleteBillingEndpoint(r.Context(), v.actor(), id, tenants.Match{}); err == nil {
			path, said = "/billing", "Endpoint deleted. Subjects keep their plans."
		}
	default:
		return errForm
	}
	status, err := f.outcome(err)
	if err != nil {
		return err
	}
	if status != 0 {
		f.moveError("signing_secrets.0", "signing_secret")
		f.moveError("signing_secrets", "signing_secret")
		return d.showEndpoint(w, r, v, status, f)
	}
	return d.done(w, r, path, said)
}
