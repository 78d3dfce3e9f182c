package tenants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// Purchases of prices that stand for credits. Each line of a paid invoice or checkout grants once,
// because its id is in the reference of the grant. If the payment is refunded, what is left of its
// grants is revoked. Events of a purchase, its payment and its refund may arrive in any order.

// bought processes the purchase of an event, after everything else that the event says.
func (st *settling) bought(ctx context.Context, e *subscription.Event, v verdict) (verdict, error) {
	if err := st.readPrices(ctx); err != nil {
		return verdict{}, err
	}
	var g verdict
	var err error
	switch {
	case e.Kind == subscription.Refunded:
		g, err = st.refund(ctx, e.Purchase.Payment)
	case len(st.credits) > 0, e.Purchase.Link:
		// No other event names the payment of an invoice. Without it, a refund would leave the
		// credits of an invoice that a later mapping grants.
		g, err = st.purchase(ctx, e, v)
	case v.outcome == "":
		g = verdict{outcome: EventIgnored, why: "no price of this endpoint stands for credits"}
	}
	if err != nil || v.outcome == "" {
		return g, err
	}
	return v.and(g), nil
}

// and combines the verdicts about an event that both changes a plan and buys credits. The one that
// waits or has failed takes precedence, so that the event is processed again: first of all the
// credits, if it is known when.
func (v verdict) and(g verdict) verdict {
	first := v
	switch {
	case g.outcome == "":
		return v
	case g.due != nil:
		first = g
		if v.due != nil && v.due.Before(*g.due) {
			first.due = v.due
		}
	case v.outcome == EventParked || v.outcome == EventFailed:
	case g.outcome == EventParked || g.outcome == EventFailed || g.outcome == EventApplied:
		first = g
	}
	first.subject, first.why = cmp.Or(v.subject, g.subject), v.why+"; "+g.why
	return first
}

// sale is a line whose price stands for credits.
type sale struct {
	line    subscription.Line
	credits PriceCredits
}

func (st *settling) purchase(ctx context.Context, e *subscription.Event, v verdict) (verdict, error) {
	p := e.Purchase
	if err := st.LockBillingPurchases(ctx, st.endpoint.ID.String()); err != nil {
		return verdict{}, err
	}
	if p.Payment != "" {
		err := st.PutBillingPayment(ctx, db.PutBillingPaymentParams{
			TenantID: st.tenant, EndpointID: st.endpoint.ID, Payment: p.Payment, Purchase: p.ID, Now: st.now,
		})
		if err != nil {
			return verdict{}, err
		}
	}
	refunded, err := st.PurchaseRefunded(ctx, db.PurchaseRefundedParams{TenantID: st.tenant, EndpointID: st.endpoint.ID, Purchase: p.ID})
	switch {
	case err != nil:
		return verdict{}, err
	case refunded:
		return st.takeBack(ctx, p.ID)
	case p.Link:
		return verdict{outcome: EventIgnored, why: p.ID + " was paid with " + p.Payment + "; a complete refund of that takes back what is left of its credits"}, nil
	case p.Partial:
		return st.awaitLines(p), nil
	}
	var sold []sale
	var other []string
	for _, line := range p.Lines {
		if c := cmp.Or(st.credits[line.Price], st.credits[line.Product]); c != nil {
			sold = append(sold, sale{line, *c})
		} else {
			other = append(other, line.Price)
		}
	}
	switch {
	case len(p.Lines) == 0:
		return verdict{outcome: EventIgnored, why: "nothing in it was sold"}, nil
	case len(sold) == 0 && e.Kind != subscription.Purchased:
		return verdict{}, nil
	case len(sold) == 0:
		return verdict{outcome: EventIgnored, why: "no price of the purchase stands for credits: " + strings.Join(other, ", ")}, nil
	}
	if g := st.tooOld(e); g.outcome != "" {
		return g, nil
	}
	return st.sell(ctx, e, v, sold)
}

// awaitLines is the verdict about a purchase whose lines are not known.
func (st *settling) awaitLines(p *subscription.Purchase) verdict {
	if st.endpoint.APIKeyHint == "" {
		return parked("price", "the event does not have all lines of %s: give the endpoint an api_key, or let the checkout create an invoice", p.ID)
	}
	v := parked("price", "the lines of %s could not be fetched; they are requested again", p.ID)
	due := st.now.Add(postponeFor(st.attempts))
	v.due = &due
	return v
}

// grantSales grants the credits of a purchase that were not granted before.
func (st *settling) grantSales(ctx context.Context, e *subscription.Event, subject string, sold []sale) (verdict, error) {
	var granted []string
	for _, s := range sold {
		reference := e.Purchase.ID + "/" + s.line.ID
		_, err := st.CreditsByReference(ctx, db.CreditsByReferenceParams{TenantID: st.tenant, Reference: reference})
		if err == nil { // also if the mapping has changed since
			continue
		}
		if !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, ErrNotFound) {
			return verdict{}, err
		}
		n := NewCredits{Rule: s.credits.Rule, Units: s.line.Quantity, Reference: reference, Reason: "purchase of " + s.line.Price}
		if n.Units > limit.MaxFixedLimit/s.credits.Units {
			n.Units = math.MaxInt64 // refused below
		} else {
			n.Units *= s.credits.Units
		}
		if s.credits.ExpiresDays > 0 {
			at := e.At.AddDate(0, 0, s.credits.ExpiresDays)
			n.ExpiresAt = stored(&at)
		}
		_, _, err = st.grantCredits(ctx, subject, n)
		var wrong *InvalidError
		if errors.As(err, &wrong) {
			return verdict{outcome: EventFailed, why: s.line.Price + ": " + whyInvalid(wrong), subject: subject}, nil
		}
		if err != nil {
			return verdict{}, err
		}
		granted = append(granted, fmt.Sprintf("%d credits for %s", n.Units, n.Rule))
	}
	if len(granted) == 0 {
		return verdict{outcome: EventDuplicate, why: "the credits of " + e.Purchase.ID + " were granted before", subject: subject}, nil
	}
	return verdict{outcome: EventApplied, why: strings.Join(granted, "; "), subject: subject}, nil
}

// refund processes a refunded payment.
func (st *settling) refund(ctx context.Context, payment string) (verdict, error) {
	if err := st.LockBillingPurchases(ctx, st.endpoint.ID.String()); err != nil {
		return verdict{}, err
	}
	purchase, err := st.PutBillingRefund(ctx, db.PutBillingRefundParams{TenantID: st.tenant, EndpointID: st.endpoint.ID, Payment: payment, Now: st.now})
	if err != nil {
		return verdict{}, err
	}
	if purchase == "" {
		return verdict{outcome: EventIgnored, why: "no credits were granted for this payment; if its purchase arrives later, it grants none"}, nil
	}
	return st.takeBack(ctx, purchase)
}

// maxTakenBack is how many grants a refund takes back. A purchase grants one for each of its items;
// only references that somebody else has chosen can be more.
const maxTakenBack = 1000

// takeBack revokes what is left of the grants of a refunded purchase.
func (st *settling) takeBack(ctx context.Context, purchase string) (verdict, error) {
	rows, err := st.CreditsOfPurchase(ctx, db.CreditsOfPurchaseParams{TenantID: st.tenant, Purchase: purchase, Most: maxTakenBack + 1})
	if err != nil {
		return verdict{}, err
	}
	if len(rows) > maxTakenBack {
		return verdict{outcome: EventFailed, why: fmt.Sprintf("the references of more than %d grants begin with %s: revoke them yourself", maxTakenBack, purchase)}, nil
	}
	v := verdict{outcome: EventIgnored, why: purchase + " was refunded and grants no credits"}
	var taken []string
	for _, row := range rows {
		grant := creditsOf(db.CreditsRow(row))
		if err := st.stampCredits(ctx, row.Subject, true); err != nil {
			return verdict{}, err
		}
		if err := st.RevokeCredits(ctx, db.RevokeCreditsParams{TenantID: st.tenant, ID: row.ID, RevokedBy: st.actor.label(), RevokedAt: &st.now}); err != nil {
			return verdict{}, err
		}
		taken = append(taken, fmt.Sprintf("%d of %d credits for %s taken back", grant.Balance(st.now), grant.Units, grant.Rule))
		v.subject = row.Subject
	}
	if len(taken) > 0 {
		v.outcome, v.why = EventApplied, purchase+" was refunded: "+strings.Join(taken, "; ")
	}
	return v, nil
}
