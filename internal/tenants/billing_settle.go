package tenants

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// verdict is the outcome of an event.
type verdict struct {
	outcome, why, waits, subject string
	due                          *time.Time
	unfinished                   bool // a part of the event was processed; the next one is due
}

func parked(waits, format string, args ...any) verdict {
	return verdict{outcome: EventParked, waits: waits, why: fmt.Sprintf(format, args...)}
}

// settling is a change by an endpoint.
type settling struct {
	*change
	endpoint BillingEndpoint
	fetched  *subscription.Fetched
	tiers    map[string]subscription.Tier // by price; nil: not read yet
	credits  map[string]*PriceCredits     // by price, read with tiers
	changes  []string                     // of plans, in words
	notes    []string                     // on what was not done
	attempts int32                        // to process the event, before this one
	// unfetched means that the provider was asked for the subscription and did not answer.
	unfetched bool
	// continues means that a part of the event was processed before.
	continues bool
	received  time.Time              // when the event arrived
	newest    *subscription.Snapshot // of the event's subscription; nil: there is none
}

// settle returns a change by an endpoint. Its number is taken at its end, because it may write many
// subjects and subscriptions.
func (c *change) settle(e BillingEndpoint) *settling {
	c.numberLast = true
	return &settling{change: c, endpoint: e}
}

func (st *settling) event(ctx context.Context, e *subscription.Event) (verdict, error) {
	if e.Effective.After(st.now) {
		v := parked("time", "it takes effect at %s", e.Effective.Format(time.RFC3339))
		v.due = &e.Effective
		return v, nil
	}
	if e.Kind == subscription.Granted || e.Kind == subscription.Purchased {
		if v := st.tooOld(e); v.outcome != "" {
			return v, nil
		}
	}
	var v verdict
	var err error
	if e.Kind != subscription.Purchased && e.Kind != subscription.Refunded {
		v, err = st.plan(ctx, e)
	}
	if err != nil || e.Purchase == nil || v.unfinished {
		return v, err
	}
	return st.bought(ctx, e, v)
}

// tooOld returns the verdict about an event that would grant credits, if it may have granted them
// before, or have been refunded, and the rows that say so are deleted by now. For a newer event, it
// has no outcome.
func (st *settling) tooOld(e *subscription.Event) verdict {
	if !e.At.Before(st.now.Add(-CreditsKeptFor)) {
		return verdict{}
	}
	return verdict{outcome: EventIgnored, why: "the event is so old that the grants of its time are deleted: whether it granted credits is unknown"}
}

// plan processes what an event says about plans.
func (st *settling) plan(ctx context.Context, e *subscription.Event) (verdict, error) {
	switch {
	case e.Kind == subscription.Ignored:
		return verdict{outcome: EventIgnored, why: e.Why}, nil
	case e.Kind == subscription.Unreadable && st.fetched != nil:
		e.Kind = subscription.Changed // the form of the fetched subscription is known
		e.Snapshot = st.fetched.Snapshot
	case e.Kind == subscription.Unreadable && st.endpoint.Provider == GenericProvider:
		return verdict{outcome: EventFailed, why: e.Why}, nil
	case e.Kind == subscription.Unreadable:
		return st.unreadable(e), nil
	case e.Kind == subscription.Granted:
		return st.grant(ctx, e)
	case e.Kind == subscription.Customer, e.Kind == subscription.Linked:
		return st.customer(ctx, e)
	}
	return st.subscription(ctx, e)
}

// unreadable parks an event whose subscription must be fetched.
func (st *settling) unreadable(e *subscription.Event) verdict {
	switch {
	case st.endpoint.APIKeyHint == "":
		return parked("", "%s; add an API key to the endpoint and replay the event: the subscription is then fetched", e.Why)
	case st.unfetched:
		return parked("", "%s", e.Why)
	}
	return parked("", "%s, and the provider does not know the subscription", e.Why)
}

// fetchAgain schedules a parked event whose subscription could not be fetched.
func (st *settling) fetchAgain(v *verdict) {
	if !st.unfetched || v.outcome != EventParked || v.due != nil {
		return
	}
	due := st.now.Add(postponeFor(st.attempts))
	v.due = &due
	v.why += "; the subscription could not be fetched; it is requested again"
}

// grant grants the credits of an event. Without a reference of its own, the event grants once, also
// if it is replayed.
func (st *settling) grant(ctx context.Context, e *subscription.Event) (verdict, error) {
	g := NewCredits{Rule: e.Grant.Rule, Units: e.Grant.Units, ExpiresAt: stored(e.Grant.ExpiresAt), Reference: e.Grant.Reference}
	if g.Reference == "" {
		g.Reference = "event " + e.ID + " of " + st.endpoint.ID.String()
	}
	_, created, err := st.grantCredits(ctx, e.Subject, g)
	var wrong *InvalidError
	var conflict *ConflictError
	switch {
	case errors.As(err, &wrong):
		return verdict{outcome: EventFailed, why: whyInvalid(wrong)}, nil
	case errors.As(err, &conflict):
		return verdict{outcome: EventFailed, why: conflict.Detail}, nil
	case err != nil:
		return verdict{}, err
	case !created:
		return verdict{outcome: EventDuplicate, why: "the reference granted these credits before"}, nil
	}
	return verdict{outcome: EventApplied, why: fmt.Sprintf("%d credits for %s", g.Units, g.Rule)}, nil
}

// subscription processes an event of one subscription.
func (st *settling) subscription(ctx context.Context, e *subscription.Event) (verdict, error) {
	row, state, err := st.state(ctx, e.Subscription)
	if err != nil {
		return verdict{}, err
	}
	before := bytes.Clone(row.State)
	newest := state.Merge(e)
	row.Customer = cmp.Or(e.Customer, row.Customer)
	facts, err := st.facts(ctx, row.Customer)
	if err != nil {
		return verdict{}, err
	}
	if st.fetched != nil {
		newest = true
		if err := st.observe(ctx, &row, &state, &facts); err != nil {
			return verdict{}, err
		}
	}
	if facts.Gone != 0 {
		state.Gone = facts.Gone
	}
	if !newest {
		if err := st.gaveBefore(ctx, e, &row, &state, facts); err != nil {
			return verdict{}, err
		}
	}
	st.newest = state.Newest
	if row.State, err = json.Marshal(state); err != nil {
		return verdict{}, err
	}
	if !newest && bytes.Equal(before, row.State) {
		return verdict{outcome: EventStale, why: st.staleWhy(&state), subject: row.Subject}, nil
	}
	v, err := st.settle(ctx, row, facts)
	if err == nil && !newest && v.outcome == EventApplied && len(st.changes) == 0 {
		v.outcome, v.why = EventStale, st.staleWhy(&state)
	}
	return v, err
}

// gaveBefore notes that a subscription had given its subject a plan before its newest event, if
// that one arrived first: its end needs no mapped price then, as if the events had arrived in
// order.
func (st *settling) gaveBefore(ctx context.Context, e *subscription.Event, row *db.BillingSubscription, state *subscription.State, facts subscription.Facts) error {
	if state.Gave || row.Subject == "" || e.Kind != subscription.Changed || st.endpoint.Provider == GenericProvider {
		return nil
	}
	var then subscription.State
	then.Observe(e.Snapshot)
	subject, err := st.subjectOf(ctx, row, &then, facts)
	if err != nil || subject != row.Subject {
		return err
	}
	standing, err := st.standing(ctx, &then, e.At)
	state.Gave = err == nil && standing.Right == subscription.Entitled
	return err
}

// placed is a subscription that is stored with its subject. The plans of the subjects are not
// changed yet.
type placed struct {
	row      db.BillingSubscription
	state    subscription.State
	standing subscription.Standing
	before   string // another subject that it belonged to and gave a plan; "": none
}

// settle finds the subject of a subscription, stores the subscription, and changes the subject's
// plan.
func (st *settling) settle(ctx context.Context, row db.BillingSubscription, facts subscription.Facts) (verdict, error) {
	p, err := st.place(ctx, row, facts)
	if err != nil {
		return verdict{}, err
	}
	if p.before != "" {
		if err := st.move(ctx, p.before, p.row.Customer); err != nil {
			return failed(err)
		}
	}
	if v, moves := st.judge(&p); !moves {
		return v, nil
	}
	done := len(st.changes)
	if err := st.move(ctx, p.row.Subject, p.row.Customer); err != nil {
		v, err := failed(err)
		v.subject = p.row.Subject
		return v, err
	}
	v := verdict{outcome: EventApplied, subject: p.row.Subject, why: p.standing.Why + "; no plan changes"}
	if len(st.changes) > done {
		v.why = p.standing.Why + "; " + strings.Join(st.changes[done:], "; ")
	}
	for _, note := range st.notes {
		v.why += "; " + note
	}
	return v, nil
}

// place finds the subject of a subscription, and stores the subscription.
func (st *settling) place(ctx context.Context, row db.BillingSubscription, facts subscription.Facts) (p placed, err error) {
	if err := json.Unmarshal(row.State, &p.state); err != nil {
		return p, err
	}
	state := &p.state
	state.Gone = max(state.Gone, facts.Gone)
	before := row.Subject
	if row.Subject, err = st.subjectOf(ctx, &row, state, facts); err != nil {
		return p, err
	}
	p.row = row
	if before != row.Subject {
		if state.Gave { // else it leaves that subject as it is
			p.before = before
		}
		state.Gave, state.Kept = false, nil
	}
	if p.standing, err = st.standing(ctx, state, st.now); err != nil {
		return p, err
	}
	if p.standing.Right == subscription.Entitled && row.Subject != "" {
		state.Gave = true
	}
	if err := st.keep(ctx, row.Subject, state, p.standing); err != nil {
		return p, err
	}
	if err := st.put(ctx, row, *state, p.standing); err != nil {
		return p, err
	}
	return p, st.wakeSubscription(ctx, &row)
}

// judge returns what a subscription means that changes no plan. moves reports whether it may change
// that of its subject.
func (st *settling) judge(p *placed) (v verdict, moves bool) {
	standing := &p.standing
	switch {
	case st.undescribed(p.state.Newest) && st.unfetched:
		return parked(waitsSubscription, "%s", standing.Why), false
	case st.undescribed(p.state.Newest):
		return verdict{outcome: EventIgnored, why: standing.Why}, false
	case p.row.Subject == "":
		return parked("subject", "%s", st.unknown(p.row.Customer)), false
	case standing.Partial:
		v = parked("", "%s", standing.Why)
	case standing.Right == subscription.Unknown && st.sellsCredits(&p.state):
		v = verdict{outcome: EventIgnored, why: "its prices stand for credits, which a paid invoice grants"}
	case standing.Right == subscription.Unknown && standing.Unmapped != nil:
		v = parked("price", "%s; map the price, or its product", standing.Why)
	case standing.Right == subscription.Unknown, standing.Right == subscription.Pending:
		v = verdict{outcome: EventIgnored, why: standing.Why}
	default:
		return verdict{}, true
	}
	v.subject = p.row.Subject
	return v, false
}

// failed is the verdict if a subject cannot be written as the event requires.
func failed(err error) (verdict, error) {
	var wrong *InvalidError
	switch {
	case errors.As(err, &wrong):
		return verdict{outcome: EventFailed, why: whyInvalid(wrong)}, nil
	case errors.Is(err, errManySubscriptions):
		return verdict{outcome: EventFailed, why: err.Error()}, nil
	}
	return verdict{}, err
}

func (st *settling) unknown(customer string) string {
	text := "customer " + customer + " is not known: "
	if key, ok := strings.CutPrefix(st.endpoint.SubjectFrom, FromMetadata); ok {
		text += "neither the subscription nor the customer has metadata " + key + ", and "
	} else if st.endpoint.SubjectFrom == FromReference {
		text += "no checkout with client_reference_id was received, and "
	}
	text += "no subject has billing_ref " + customer + "; set it for the right subject"
	if key, ok := strings.CutPrefix(st.endpoint.SubjectFrom, FromMetadata); ok {
		text += ", or add the metadata " + key + " to the customer at the provider"
	}
	return text
}

// whyInvalid says why an event cannot be applied.
func whyInvalid(wrong *InvalidError) string {
	texts := make([]string, len(wrong.Fields))
	for i, f := range wrong.Fields {
		texts[i] = f.Error()
		for what, problem := range map[string]*limit.Problem{"plan": noSuchPlan, "rule": noSuchRule} {
			if name, ok := strings.CutPrefix(f.Message, problem.Message+": "); ok {
				texts[i] = "there is no " + what + " " + name
			}
		}
	}
	return strings.Join(texts, "; ")
}

func (st *settling) subjectOf(ctx context.Context, row *db.BillingSubscription, state *subscription.State, facts subscription.Facts) (string, error) {
	switch {
	case st.endpoint.Provider == GenericProvider:
		return row.Subscription, nil
	case st.undescribed(state.Newest):
		return "", nil
	}
	registered, err := st.registered(ctx, row.Customer)
	return facts.Subject(st.endpoint.SubjectFrom, state.Newest, row.Customer, registered), err
}

// registered returns the subject whose reference is a customer, or "".
func (st *settling) registered(ctx context.Context, customer string) (string, error) {
	if customer == "" {
		return "", nil
	}
	name, err := st.SubjectByBillingRef(ctx, db.SubjectByBillingRefParams{TenantID: st.tenant, BillingRef: customer})
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return name, err
}

func (st *settling) standing(ctx context.Context, state *subscription.State, at time.Time) (subscription.Standing, error) {
	if err := st.readPrices(ctx); err != nil {
		return subscription.Standing{}, err
	}
	return state.Standing(at, st.grace(), func(price string) (subscription.Tier, bool) {
		tier, ok := st.tiers[price]
		return tier, ok
	}), nil
}

func (st *settling) readPrices(ctx context.Context) error {
	if st.tiers != nil {
		return nil
	}
	prices, err := st.BillingPricesOf(ctx, db.BillingPricesOfParams{TenantID: st.tenant, EndpointID: st.endpoint.ID})
	if err != nil {
		return err
	}
	st.tiers, st.credits = make(map[string]subscription.Tier, len(prices)), map[string]*PriceCredits{}
	for _, row := range prices {
		if p := billingPriceOf(db.BillingPricesRow(row)); p.Credits != nil {
			st.credits[p.Price] = p.Credits
		} else {
			st.tiers[p.Price] = subscription.Tier{Plan: p.Plan, Multiply: p.Multiply, Priority: p.Priority}
		}
	}
	return nil
}

// sellsCredits reports whether a subscription without a plan has a price that stands for credits.
func (st *settling) sellsCredits(state *subscription.State) bool {
	return state.Newest != nil && slices.ContainsFunc(state.Newest.Items, func(i subscription.Item) bool {
		return st.credits[i.Price] != nil || st.credits[i.Product] != nil
	})
}

func (st *settling) grace() time.Duration {
	return time.Duration(st.endpoint.GraceDays) * 24 * time.Hour
}

func (st *settling) put(ctx context.Context, row db.BillingSubscription, state subscription.State, standing subscription.Standing) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	var due *time.Time
	if !standing.Until.IsZero() {
		due = &standing.Until
	}
	return st.PutBillingSubscription(ctx, db.PutBillingSubscriptionParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Subscription: row.Subscription, Customer: row.Customer, Subject: row.Subject,
		State: text, Standing: storedStanding(&state, standing), Priority: int32(standing.Priority), Created: createdOf(&state), DueAt: due, Now: st.now,
	})
}
