package billing

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Summary is the result of comparing an endpoint with its provider.
type Summary struct {
	Subscriptions int // number of compared subscriptions
	Repaired      int // those whose subject did not have the right plan
	Problems      int // those that could not be settled
}

// ErrNoAPIKey means that the endpoint cannot be compared with its provider.
var ErrNoAPIKey = errors.New("the endpoint has no API key for requests to its provider")

// Reconcile compares all subscriptions of an endpoint with those of the provider, and gives
// subjects the resulting plans, unless dryRun. It calls report, unless nil, for each subscription.
func (r *Runner) Reconcile(ctx context.Context, tenant uuid.UUID, e tenants.BillingEndpoint, dryRun bool, report func(Summary, tenants.ReconcileResult)) (sum Summary, err error) {
	if e.APIKeyHint == "" {
		return sum, ErrNoAPIKey
	}
	client, err := r.client(tenant, e)
	if err != nil {
		return sum, err
	}
	seen := map[string]bool{}
	compare := func(fetched subscription.Fetched) error {
		seen[fetched.ID] = true
		result, err := r.Store.ReconcileBilling(ctx, tenant, e, fetched, dryRun)
		if err != nil {
			return fmt.Errorf("subscription %s: %w", fetched.ID, err)
		}
		sum.Subscriptions++
		if len(result.Changes) > 0 {
			sum.Repaired++
		}
		if result.Problem != "" {
			sum.Problems++
		}
		if report != nil {
			report(sum, result)
		}
		return nil
	}
	if err := client.Subscriptions(ctx, compare); err != nil {
		return sum, err
	}
	if err := r.missing(ctx, tenant, e, client, seen, compare); err != nil {
		return sum, err
	}
	if dryRun {
		return sum, nil
	}
	return sum, r.Store.RecordReconcile(ctx, tenant, e.ID)
}

// missing compares subscriptions that are stored here but not in the provider's list: they were
// deleted there, or are newer than the list.
func (r *Runner) missing(ctx context.Context, tenant uuid.UUID, e tenants.BillingEndpoint, client *subscription.Client, seen map[string]bool, compare func(subscription.Fetched) error) error {
	after := ""
	for {
		names, err := r.Store.BillingSubscriptionNames(ctx, tenant, e.ID, after)
		if err != nil || len(names) == 0 {
			return err
		}
		after = names[len(names)-1]
		for _, name := range names {
			if seen[name] {
				continue
			}
			fetched, err := client.Subscription(ctx, name)
			if errors.Is(err, subscription.ErrGone) {
				fetched, err = subscription.Fetched{ID: name, Gone: true}, nil
			}
			if err != nil {
				return err
			}
			if err := compare(fetched); err != nil {
				return err
			}
		}
	}
}
