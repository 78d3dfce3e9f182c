package billing

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Summary is what came of comparing an endpoint with its provider.
type Summary struct {
	Subscriptions int // compared
	Repaired      int // whose subject did not have the right plan
	Problems      int // that could not be settled
}

// ErrNoAPIKey: the endpoint cannot be compared with its provider.
var ErrNoAPIKey = errors.New("the endpoint has no API key, so its provider cannot be asked")

// Reconcile compares all subscriptions of an endpoint with what the provider has, and gives
// subjects the plans that follow, unless dryRun. report, where it is not nil, is told of each
// subscription.
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
	return sum, r.Store.NoteReconcile(ctx, tenant, e.ID)
}

// missing compares what is known here and was not in the provider's list: it was deleted there, or
// is newer than the list.
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
