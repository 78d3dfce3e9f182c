package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// SettleBillingSubscription processes a subscription again, for example when its grace period has
// ended.
func (s *Store) SettleBillingSubscription(ctx context.Context, tenant, endpoint uuid.UUID, name string) error {
	e, err := s.BillingEndpointByID(ctx, AsSystem(tenant, "billing"), endpoint)
	if err != nil {
		return err
	}
	err = s.change(WithReason(ctx, "the grace period ended"), AsProvider(tenant, e, name), MayEdit, func(ctx context.Context, c *change) error {
		endpoint, err := readBillingEndpoint(ctx, c.Queries, tenant, endpoint)
		if err != nil {
			return err
		}
		st := c.settle(endpoint)
		row, _, err := st.state(ctx, name)
		if err != nil || row.DueAt == nil || row.DueAt.After(c.now) {
			return err
		}
		facts, err := st.facts(ctx, row.Customer)
		if err != nil {
			return err
		}
		v, err := st.settle(ctx, row, facts)
		if err == nil && v.outcome == EventFailed {
			err = errKeepsPlan // nothing is stored, so that the end of the grace period is not lost
		}
		return err
	})
	if errors.Is(err, errKeepsPlan) {
		return s.postponeSubscription(ctx, tenant, endpoint, name, keptFor)
	}
	return err
}

// errKeepsPlan: the plan of a subject cannot be changed at the end of a grace period, for example
// because it has too many subscriptions.
var errKeepsPlan = errors.New("the plan of the subject cannot be changed")

// keptFor is how long the subject keeps its plan until the next attempt.
const keptFor = time.Hour

// PostponeBillingSubscription schedules a subscription that could not be processed for later, so
// that it does not fail again immediately.
func (s *Store) PostponeBillingSubscription(ctx context.Context, tenant, endpoint uuid.UUID, name string) error {
	return s.postponeSubscription(ctx, tenant, endpoint, name, postponedFor)
}

func (s *Store) postponeSubscription(ctx context.Context, tenant, endpoint uuid.UUID, name string, wait time.Duration) error {
	now := s.instant()
	due := now.Add(wait)
	return s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		return q.PostponeBillingSubscription(ctx, db.PostponeBillingSubscriptionParams{
			TenantID: tenant, EndpointID: endpoint, Subscription: name, DueAt: &due, Now: &now,
		})
	})
}

// postponedFor is how long a subscription waits that could not be processed.
const postponedFor = 30 * time.Second

// ReconcileResult is the result of comparing one subscription with the provider.
type ReconcileResult struct {
	Subscription, Subject string
	Changes               []string // in words; empty: all correct
	Problem               string   // why it could not be settled; "": it could
}

// errDryRun rolls back a change that was only computed.
var errDryRun = errors.New("a dry run")

// ReconcileBilling compares one subscription with that of the provider, and corrects it unless
// dryRun.
func (s *Store) ReconcileBilling(ctx context.Context, tenant uuid.UUID, e BillingEndpoint, fetched subscription.Fetched, dryRun bool) (out ReconcileResult, err error) {
	out.Subscription = fetched.ID
	err = s.change(WithReason(ctx, "reconciliation"), AsProvider(tenant, e, fetched.ID), MayEdit, func(ctx context.Context, c *change) error {
		endpoint, err := readBillingEndpoint(ctx, c.Queries, tenant, e.ID)
		if err != nil {
			return err
		}
		st := c.settle(endpoint)
		st.fetched = &fetched
		row, state, err := st.state(ctx, fetched.ID)
		if err != nil {
			return err
		}
		if fetched.Snapshot != nil {
			row.Customer = fetched.Snapshot.Customer
		}
		facts, err := st.facts(ctx, row.Customer)
		if err != nil {
			return err
		}
		if err := st.observe(ctx, &row, &state, &facts); err != nil {
			return err
		}
		if row.State, err = json.Marshal(state); err != nil {
			return err
		}
		v, err := st.settle(ctx, row, facts)
		if err != nil {
			return err
		}
		out.Subject, out.Changes = v.subject, slices.Clone(st.changes)
		if v.outcome == EventParked || v.outcome == EventFailed {
			out.Problem = v.why
		}
		if dryRun {
			return errDryRun
		}
		return nil
	})
	if errors.Is(err, errDryRun) {
		err = nil
	}
	return out, err
}

// KnownSubscription is a subscription of which an endpoint has received an event, or which a
// comparison has found.
type KnownSubscription struct {
	ID       string
	Customer string // "": not known
}

// KnownSubscriptions lists the known subscriptions of an endpoint, in order, after the given one.
func (s *Store) KnownSubscriptions(ctx context.Context, tenant, endpoint uuid.UUID, after string) (known []KnownSubscription, err error) {
	err = s.read(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.BillingSubscriptionNames(ctx, db.BillingSubscriptionNamesParams{
			TenantID: tenant, EndpointID: endpoint, After: after, Most: maxPage,
		})
		for _, row := range rows {
			known = append(known, KnownSubscription{row.Subscription, row.Customer})
		}
		return err
	})
	return known, err
}

// ClaimReconcile reports whether the caller must compare an endpoint with its provider now. If the
// caller crashes, another one may claim it after within.
func (s *Store) ClaimReconcile(ctx context.Context, tenant, endpoint uuid.UUID, within time.Duration) (mine bool, err error) {
	now := s.instant()
	next := now.Add(within)
	err = s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		rows, err := q.ClaimBillingReconcile(ctx, db.ClaimBillingReconcileParams{TenantID: tenant, ID: endpoint, Next: next, Now: &now})
		mine = rows == 1
		return err
	})
	return mine, err
}

// RenewReconcile extends the claim of a comparison that makes progress: another one may claim it
// after within from now on.
func (s *Store) RenewReconcile(ctx context.Context, tenant, endpoint uuid.UUID, within time.Duration) error {
	now := s.instant()
	next := now.Add(within)
	return s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		return q.RenewBillingReconcile(ctx, db.RenewBillingReconcileParams{TenantID: tenant, ID: endpoint, Next: &next, Now: &now})
	})
}

// RequestReconcile makes a server compare an endpoint with its provider soon, instead of a day
// after the last time, with all purchases that the provider knows. Errors: ErrForbidden,
// ErrNotFound; *ConflictError for an endpoint without an API key, whose provider cannot be asked.
func (s *Store) RequestReconcile(ctx context.Context, a Actor, endpoint uuid.UUID) (out BillingEndpoint, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if out, err = readBillingEndpoint(ctx, c.Queries, c.tenant, endpoint); err != nil {
			return err
		}
		if out.apiKeySealed == nil {
			return &ConflictError{CodeConflict, "the endpoint has no API key, so the subscriptions of its provider cannot be read; set api_key first"}
		}
		_, err := c.RequestBillingReconcile(ctx, db.RequestBillingReconcileParams{TenantID: c.tenant, ID: endpoint, Now: c.now})
		return err
	})
	return out, err
}

// RecordReconcile records that an endpoint was compared with its provider, since began. problem
// says what could not be compared; "": everything was. purchases reports whether no purchase was
// left out, so that the next comparison need not look at those of the same time again. One that was
// requested since then follows at once.
func (s *Store) RecordReconcile(ctx context.Context, tenant, endpoint uuid.UUID, began time.Time, problem string, purchases bool) error {
	now := s.instant()
	next := now.Add(reconcileEvery)
	p := db.RecordBillingReconcileParams{TenantID: tenant, ID: endpoint, At: &now, Began: began, Next: next, Error: problem, Purchases: purchases}
	if problem != "" {
		p.FailedAt = &now
	}
	return s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		return q.RecordBillingReconcile(ctx, p)
	})
}

// RecordReconcileFailure records why an endpoint could not be compared with its provider.
func (s *Store) RecordReconcileFailure(ctx context.Context, tenant, endpoint uuid.UUID, problem string) error {
	now := s.instant()
	return s.inTenant(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		return q.RecordBillingReconcileFailure(ctx, db.RecordBillingReconcileFailureParams{TenantID: tenant, ID: endpoint, At: &now, Error: problem})
	})
}

const (
	// eventsKeptFor is how long Stripe keeps events.
	eventsKeptFor = 30 * 24 * time.Hour
	// retriedFor is how long Stripe sends an event that did not arrive.
	retriedFor = 3 * 24 * time.Hour
)

// PurchasesSince returns whether an endpoint sells credits, and from when on its purchases are
// compared with the provider: since the last comparison of purchases, or, with all, without one, or
// after RequestReconcile, as long as the provider keeps events.
func (s *Store) PurchasesSince(ctx context.Context, tenant uuid.UUID, e BillingEndpoint, all bool) (sells bool, since time.Time, err error) {
	err = s.read(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		sells, err = q.EndpointGrantsCredits(ctx, db.EndpointGrantsCreditsParams{TenantID: tenant, EndpointID: e.ID})
		return err
	})
	since = s.instant().Add(-eventsKeptFor)
	if e.CreatedAt.After(since) {
		since = e.CreatedAt
	}
	if at := e.PurchasesComparedAt; at != nil && !all && at.Add(-retriedFor).After(since) {
		since = at.Add(-retriedFor)
	}
	return sells, since, err
}

// RecoverBillingEvent stores an event of the provider's list, unless it was received before, and
// reports whether it was missing. With dryRun, nothing is stored.
func (s *Store) RecoverBillingEvent(ctx context.Context, tenant uuid.UUID, e BillingEndpoint, event subscription.Event, body []byte, dryRun bool) (missing bool, err error) {
	err = s.read(ctx, AsSystem(tenant, "billing"), func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		received, err := q.BillingEventReceived(ctx, db.BillingEventReceivedParams{TenantID: tenant, EndpointID: e.ID, ProviderID: event.ID})
		missing = !received
		return err
	})
	if err != nil || !missing || dryRun {
		return missing, err
	}
	return s.StoreBillingEvent(ctx, Webhook{Tenant: tenant, Endpoint: e.ID, Provider: e.Provider}, event, body)
}
