package tenants

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// An event about a customer concerns all of their subscriptions, and the events that wait for the
// customer. It is processed in parts, each in a transaction of its own, because there is no limit
// to their number: the event stays due until all are processed. The facts of the customer say how
// far.
// If several events of a customer are unfinished, each part counts for all of them, because it
// applies the facts of all.

const (
	settledOfCustomer = 50   // subscriptions in one part
	wokenOfCustomer   = 1000 // waiting events in one part
)

// customer processes an event about a customer, or the next part of it.
func (st *settling) customer(ctx context.Context, e *subscription.Event) (verdict, error) {
	facts, err := st.facts(ctx, e.Customer)
	if err != nil {
		return verdict{}, err
	}
	if !st.continues {
		if !facts.Merge(e) {
			return verdict{outcome: EventStale, why: "a newer event of the customer was received before"}, st.putFacts(ctx, e.Customer, facts)
		}
		facts.Passed = nil // a part with older facts does not count
	}
	passed := subscription.Passed{}
	if facts.Passed != nil {
		passed = *facts.Passed
	}
	v, done, err := st.customerPart(ctx, e, facts, &passed)
	if err != nil {
		return verdict{}, err
	}
	if facts.Passed = &passed; done {
		facts.Passed = nil
	}
	return v, st.putFacts(ctx, e.Customer, facts)
}

// customerPart processes the part of an event that follows those passed, which it moves on. done
// reports whether it is the last one.
func (st *settling) customerPart(ctx context.Context, e *subscription.Event, facts subscription.Facts, passed *subscription.Passed) (v verdict, done bool, err error) {
	if !passed.Events {
		if v, err = st.subscriptionsOf(ctx, e.Customer, facts, passed); err != nil {
			return verdict{}, false, err
		}
	}
	woken := false
	if passed.Events {
		if woken, err = st.wakeCustomer(ctx, e.Customer, passed); err != nil {
			return verdict{}, false, err
		}
	}
	if !woken {
		unfinished := parked("time", "the customer has many subscriptions or waiting events, which are processed in parts; the next part follows")
		unfinished.due, unfinished.unfinished, unfinished.subject = &st.now, true, v.subject
		return unfinished, false, nil
	}
	v.outcome = EventApplied
	changes := strings.Join(st.changes, "; ")
	switch none := passed.Subscription == ""; {
	case passed.Failed != "":
		v.outcome, v.subject, v.why = EventFailed, passed.Failed, passed.Why
		if changes != "" {
			v.why += "; of the others: " + changes
		}
	case changes != "":
		v.why = changes
	case none && e.Gone:
		v.outcome, v.why = EventIgnored, "the customer has no subscription"
	case none:
		v.why = "it is kept for the subscriptions of the customer; there is none yet"
	case st.continues:
		v.why = "the subscriptions of the customer were processed in parts"
	default:
		v.why = "no plan changes"
	}
	return v, true, nil
}

// subscriptionsOf settles the next subscriptions of a customer. The plan of each subject is
// determined once, after all of them, because that reads all subscriptions of the subject. A
// subject that cannot be written keeps no other one from its plan.
func (st *settling) subscriptionsOf(ctx context.Context, customer string, facts subscription.Facts, passed *subscription.Passed) (v verdict, err error) {
	rows, err := st.BillingSubscriptionsOfCustomer(ctx, db.BillingSubscriptionsOfCustomerParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Customer: customer, After: passed.Subscription, Most: settledOfCustomer,
	})
	if err != nil {
		return verdict{}, err
	}
	var subjects []string
	add := func(subject string) {
		if subject != "" && !slices.Contains(subjects, subject) {
			subjects = append(subjects, subject)
		}
	}
	for _, row := range rows {
		p, err := st.place(ctx, row, facts)
		if err != nil {
			return verdict{}, err
		}
		add(p.before)
		if _, moves := st.judge(&p); moves {
			add(p.row.Subject)
		}
		v.subject = cmp.Or(v.subject, p.row.Subject)
		passed.Subscription = row.Subscription
	}
	passed.Events = len(rows) < settledOfCustomer
	for _, subject := range subjects {
		if err := st.move(ctx, subject, customer); err != nil {
			wrong, err := failed(err)
			if err != nil {
				return verdict{}, err
			}
			if passed.Failed == "" {
				passed.Failed, passed.Why = subject, wrong.why
			}
		}
	}
	return v, nil
}

// wakeCustomer makes the next events due that wait for a customer, and may be applicable now. done
// reports whether there are no others.
func (st *settling) wakeCustomer(ctx context.Context, customer string, passed *subscription.Passed) (done bool, err error) {
	after := uuid.Nil
	if passed.Event != "" {
		if after, err = uuid.Parse(passed.Event); err != nil {
			return false, err
		}
	}
	last, err := st.WakeBillingCustomer(ctx, db.WakeBillingCustomerParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Customer: customer, AfterID: after, Most: wokenOfCustomer, Now: &st.now,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	passed.Event = last.ID.String()
	return last.Looked < wokenOfCustomer, nil
}
