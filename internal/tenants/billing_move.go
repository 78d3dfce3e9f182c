package tenants

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// All subscriptions of a subject are read to find the one that gives the plan. Therefore, their
// number is bounded, and the bytes of their states.
const (
	subscriptionsOfSubject = 5000
	subscriptionBytes      = 16 << 20 // a state has a few hundred bytes, and at most about 200 KB
	subscriptionsAtOnce    = 100
)

// errManySubscriptions: a subject has more subscriptions than are read.
var errManySubscriptions = fmt.Errorf("the subject has more than %d subscriptions, or more than %d MiB of them: too many to find its plan",
	subscriptionsOfSubject, subscriptionBytes>>20)

// move gives a subject the plan that follows from all of its subscriptions, also those of other
// endpoints of Stripe, through the same writes as an admin's change.
func (st *settling) move(ctx context.Context, subject, customer string) error {
	best, kept, err := st.best(ctx, subject)
	if err != nil {
		return err
	}
	switch best.Right {
	case subscription.Entitled:
		return st.write(ctx, subject, customer, best.Plan, kept, best)
	case subscription.Ended:
		return st.write(ctx, subject, customer, st.endpoint.FallbackPlan, nil, best)
	}
	return nil
}

// best returns the standing of the subscription of a subject that takes precedence, and what it
// keeps. Where prices were mapped since a subscription was stored, its new standing is noted.
func (st *settling) best(ctx context.Context, subject string) (best subscription.Standing, kept *subscription.Kept, err error) {
	best = subscription.Standing{Right: subscription.Ended, Why: "the subscription belongs to another subject"}
	number, err := st.CountSubscriptionsOfSubject(ctx, db.CountSubscriptionsOfSubjectParams{
		TenantID: st.tenant, EndpointID: st.endpoint.ID, Subject: subject, Most: subscriptionsOfSubject + 1,
	})
	if err == nil && number > subscriptionsOfSubject {
		err = errManySubscriptions
	}
	if err != nil {
		return best, nil, err
	}
	endpoints := map[uuid.UUID]*settling{st.endpoint.ID: st}
	next := db.BillingSubscriptionsOfSubjectParams{TenantID: st.tenant, EndpointID: st.endpoint.ID, Subject: subject, Most: subscriptionsAtOnce}
	for first, size := true, 0; ; {
		rows, err := st.BillingSubscriptionsOfSubject(ctx, next)
		if err != nil {
			return best, nil, err
		}
		stale := db.PutSubscriptionStandingsParams{TenantID: st.tenant}
		for _, row := range rows {
			if size += len(row.State); size > subscriptionBytes {
				return best, nil, errManySubscriptions
			}
			standing, state, err := st.standingOf(ctx, &row, endpoints)
			if err != nil {
				return best, nil, err
			}
			addStale(&stale, &row, &state, standing)
			if first || standing.Better(best) {
				best, kept, first = standing, state.Kept, false
			}
			next.AfterSubscription, next.AfterEndpoint = row.Subscription, row.EndpointID
		}
		if len(stale.Subscriptions) > 0 {
			if err := st.PutSubscriptionStandings(ctx, stale); err != nil {
				return best, nil, err
			}
		}
		if len(rows) < subscriptionsAtOnce {
			return best, kept, nil
		}
	}
}

// standingOf returns the standing of a stored subscription, of one of the endpoints, and its state.
func (st *settling) standingOf(ctx context.Context, row *db.BillingSubscription, endpoints map[uuid.UUID]*settling) (
	standing subscription.Standing, state subscription.State, err error,
) {
	if err := json.Unmarshal(row.State, &state); err != nil {
		return standing, state, err
	}
	of := endpoints[row.EndpointID]
	if of == nil {
		endpoint, err := readBillingEndpoint(ctx, st.Queries, st.tenant, row.EndpointID)
		if err != nil {
			return standing, state, err
		}
		of = &settling{change: st.change, endpoint: endpoint}
		endpoints[row.EndpointID] = of
	}
	standing, err = of.standing(ctx, &state, st.now)
	return standing, state, err
}

// storedStanding is how the standing of a subscription is stored, by which MeteredCustomers finds
// the customer of a subject. One that gives a plan is before all others, and the orders of Better
// and of these are the same. Of those that give none, one that may be invoiced comes first, because
// it has not ended: the price of a metered subscription need not be mapped to a plan.
func storedStanding(state *subscription.State, standing subscription.Standing) int16 {
	switch {
	case standing.Right == subscription.Entitled:
		return 4
	case state.Interrupted():
		return 3
	}
	return int16(standing.Right)
}

// addStale adds the standing of a subscription to those that are stored, if another one is now.
func addStale(stale *db.PutSubscriptionStandingsParams, row *db.BillingSubscription, state *subscription.State, is subscription.Standing) {
	standing, priority := storedStanding(state, is), int32(is.Priority)
	if row.Created != nil && row.Standing != nil && *row.Standing == standing && row.Priority == priority {
		return
	}
	stale.Endpoints, stale.Subscriptions = append(stale.Endpoints, row.EndpointID), append(stale.Subscriptions, row.Subscription)
	stale.Standings, stale.Priorities = append(stale.Standings, standing), append(stale.Priorities, priority)
	stale.Createds = append(stale.Createds, createdOf(state))
}

// createdOf returns when a subscription was created, in seconds since 1970; 0 if that is not known.
func createdOf(state *subscription.State) int64 {
	if state.Newest == nil {
		return 0
	}
	return state.Newest.Created
}

// keep notes in the state of an interrupted subscription which version of a plan its subject has
// now. A customer who pays late, or resumes, keeps the version that they had.
func (st *settling) keep(ctx context.Context, subject string, state *subscription.State, standing subscription.Standing) error {
	switch {
	case standing.Right != subscription.Ended || !state.Gave:
		return nil
	case !state.Interrupted():
		state.Kept = nil
		return nil
	}
	has, err := readSubject(ctx, st.Queries, st.tenant, subject)
	if errors.Is(err, ErrNotFound) || err == nil && (has.Plan == "" || has.Plan == st.endpoint.FallbackPlan) {
		return nil
	}
	if err == nil {
		state.Kept = &subscription.Kept{Plan: has.Plan, Version: has.PlanVersion}
	}
	return err
}

// versionOf returns which version of a plan a subject gets that did not have the plan: the kept one
// if it still exists, else the newest one.
func (st *settling) versionOf(ctx context.Context, plan string, kept *subscription.Kept) (int, error) {
	if kept == nil || kept.Plan != plan {
		return 0, nil
	}
	p, err := st.planNamed(ctx, plan)
	if err == nil && kept.Version != p.NewestVersion && p.older(kept.Version) == nil {
		return 0, nil
	}
	return kept.Version, err
}

// write writes the subject if it differs.
func (st *settling) write(ctx context.Context, subject, customer, plan string, kept *subscription.Kept, standing subscription.Standing) error {
	old, err := readSubject(ctx, st.Queries, st.tenant, subject)
	isNew := errors.Is(err, ErrNotFound)
	if err != nil && !isNew {
		return err
	}
	if isNew && plan == "" { // it has no own settings and needs none
		return nil
	}
	in := old
	if isNew {
		in = Subject{Subject: subject, State: check.Active}
	}
	in.Plan, in.Multiplier = plan, int(max(standing.Multiplier, 1))
	if old.Plan != plan {
		if in.GivePlanVersion, err = st.versionOf(ctx, plan, kept); err != nil {
			return err
		}
	}
	if st.endpoint.Provider == StripeProvider {
		if in.BillingRef == "" {
			other, err := st.otherWithRef(ctx, subject, customer)
			if err != nil {
				return err
			}
			if in.BillingRef = customer; other != "" {
				in.BillingRef = ""
				st.notes = append(st.notes, fmt.Sprintf("no billing_ref is set, because customer %s is that of subject %q", customer, other))
			}
		}
	}
	if !standing.Anchor.IsZero() { // windows follow the paid period
		in.CycleAnchor = &standing.Anchor
	}
	if standing.Right == subscription.Ended {
		in.Multiplier = 1
	}
	if err := in.validate(); err != nil {
		return err
	}
	if in.Plan != "" {
		if _, err := st.planNamed(ctx, in.Plan); err != nil {
			return err
		}
	}
	t, err := st.touch(ctx, auditSubject, subject, isNew)
	if err != nil {
		return err
	}
	reason, _ := ctx.Value(reasonKey{}).(string)
	t.reason = reason + ": " + standing.Why
	if isNew {
		_, err = st.createSubject(ctx, in)
	} else {
		_, err = st.replaceSubject(ctx, old, in)
	}
	if err == nil && (isNew || old.Plan != in.Plan || old.multiplier() != in.multiplier()) {
		st.changes = append(st.changes, planChange(old, in))
	}
	return err
}

func planChange(old, in Subject) string {
	name := func(s Subject) string {
		text := cmp.Or(s.Plan, "the default plan")
		if s.multiplier() > 1 {
			text += fmt.Sprintf(" x %d", s.multiplier())
		}
		return text
	}
	return fmt.Sprintf("subject %q moved from %s to %s", in.Subject, name(old), name(in))
}
