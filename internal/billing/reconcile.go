package billing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Summary is the result of comparing an endpoint with its provider.
type Summary struct {
	Subscriptions int // number of compared subscriptions
	Repaired      int // those whose subject did not have the right plan
	Problems      int // those that could not be settled
	Foreign       int // those of them that the provider does not know, and neither their customers
	Recovered     int // events of purchases and refunds that had not arrived
	// PurchasesErr is why purchases were not compared; nil: they were, or the endpoint sells none.
	PurchasesErr error
}

// ErrNoAPIKey means that the endpoint cannot be compared with its provider.
var ErrNoAPIKey = errors.New("the endpoint has no API key for requests to its provider")

// comparison is how an endpoint is compared with its provider.
type comparison struct {
	tenant   uuid.UUID
	endpoint tenants.BillingEndpoint
	dryRun   bool
	all      bool // all purchases that the provider knows, instead of those since the last comparison
	report   func(Summary, tenants.ReconcileResult)
	progress func() // is called after each subscription and each event
}

// Reconcile compares all subscriptions of an endpoint with those of the provider, and gives
// subjects the resulting plans, unless dryRun. If the endpoint sells credits, it stores the events
// of purchases that did not arrive: a Runner then processes them like others. It calls report,
// unless nil, for each subscription.
func (r *Runner) Reconcile(ctx context.Context, tenant uuid.UUID, e tenants.BillingEndpoint, dryRun bool, report func(Summary, tenants.ReconcileResult)) (sum Summary, err error) {
	if report == nil {
		report = func(Summary, tenants.ReconcileResult) {}
	}
	return r.reconcile(ctx, comparison{tenant: tenant, endpoint: e, dryRun: dryRun, all: true, report: report, progress: func() {}})
}

const (
	// reconcileFor is how long a comparison may make no progress: after that, another instance may
	// begin it again.
	reconcileFor = time.Hour
	// renewEvery is after how many subscriptions and events that time begins again.
	renewEvery = 100
	// recordFor is how long it may take to record that a comparison has ended in this way.
	recordFor = 30 * time.Second
)

// errNoProgress is why a comparison ended before its end.
var errNoProgress = errors.New("the comparison made no progress for too long")

// watch returns a context that ends when the comparison makes no progress for CompareFor, after
// which another instance may begin it again, and what is to be called as progress. However many
// subscriptions there are, it has time for all.
func (r *Runner) watch(ctx context.Context, task tenants.BillingTask) (watched context.Context, progress, end func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(r.CompareFor, func() { cancel(errNoProgress) })
	renew := func() {
		err := r.Store.RenewReconcile(watched, task.Tenant, task.Endpoint, r.CompareFor)
		r.logFailure(watched, "extend the time of a comparison", task, err)
		if err == nil {
			timer.Reset(r.CompareFor)
		}
	}
	n := 0
	progress = func() {
		r.giveWay(watched, task, renew)
		if n++; n%renewEvery == 0 {
			renew()
		}
	}
	return watched, progress, func() {
		timer.Stop()
		cancel(nil)
	}
}

// reconcile also records why a comparison failed, unless it is a dry run: the endpoint shows it.
// One that ends because this instance does is not recorded: another one begins it again.
func (r *Runner) reconcile(ctx context.Context, c comparison) (sum Summary, err error) {
	if c.endpoint.APIKeyHint == "" {
		return sum, ErrNoAPIKey
	}
	began := r.Store.Now()
	sum, err = r.compare(ctx, c)
	if err != nil && errors.Is(context.Cause(ctx), errNoProgress) {
		err = fmt.Errorf("%w: %w", errNoProgress, err)
		var done context.CancelFunc
		ctx, done = context.WithTimeout(context.WithoutCancel(ctx), recordFor)
		defer done()
	}
	if c.dryRun || ctx.Err() != nil {
		return sum, err
	}
	if err == nil {
		problem := ""
		switch {
		case sum.Foreign > 0:
			problem = fmt.Sprintf("%d of %d subscriptions were not compared, and their subjects keep their plans: for each, %s", sum.Foreign, sum.Subscriptions, foreign)
		case sum.PurchasesErr != nil:
			problem = "plans were compared, but purchases were not: " + failure(sum.PurchasesErr)
		}
		return sum, r.again(ctx, func() error {
			return r.Store.RecordReconcile(ctx, c.tenant, c.endpoint.ID, began, problem, sum.PurchasesErr == nil)
		})
	}
	return sum, errors.Join(err, r.Store.RecordReconcileFailure(ctx, c.tenant, c.endpoint.ID, failure(err)))
}

// foreign is why a subscription is not compared. The provider knows deleted customers, so it is no
// sign of a deletion.
const foreign = "Stripe knows neither the subscription nor its customer; set the API key of the account that sends the events"

// failure says to a tenant why a comparison failed. Details that are none of the provider's
// are only in the log.
func failure(err error) string {
	var answer *subscription.APIError
	var network net.Error
	switch {
	case errors.Is(err, errNoProgress):
		return errNoProgress.Error() + "; it begins again"
	case errors.As(err, &answer):
		text := fmt.Sprintf("%s: Stripe answered %s", answer.What, strings.TrimSpace(fmt.Sprint(answer.Status, " ", answer.Code)))
		switch answer.Status {
		case http.StatusUnauthorized:
			text += "; it does not know the API key. Set a valid one"
		case http.StatusForbidden:
			text += "; the API key lacks the right. Give it read access, or set another one"
		}
		return text
	case errors.Is(err, subscription.ErrUnreadable):
		return err.Error()
	case errors.As(err, &network):
		return "Stripe did not answer"
	case errors.Is(err, tenants.ErrKeyUnreadable):
		return "the API key cannot be decrypted. Set it again"
	}
	return "an error of this installation, of which its log has the details"
}

func (r *Runner) compare(ctx context.Context, c comparison) (sum Summary, err error) {
	client, err := r.client(c.tenant, c.endpoint)
	if err != nil {
		return sum, err
	}
	seen := map[string]bool{}
	compare := func(fetched subscription.Fetched) error {
		seen[fetched.ID] = true
		var result tenants.ReconcileResult
		err := r.again(ctx, func() (err error) {
			result, err = r.Store.ReconcileBilling(ctx, c.tenant, c.endpoint, fetched, c.dryRun)
			return err
		})
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
		c.report(sum, result)
		c.progress()
		return nil
	}
	skip := func(name string) {
		sum.Subscriptions++
		sum.Problems++
		sum.Foreign++
		c.report(sum, tenants.ReconcileResult{Subscription: name, Problem: foreign})
		c.progress()
	}
	last := ""
	err = r.againFrom(ctx, func() int { return sum.Subscriptions }, func() error {
		return client.Subscriptions(ctx, last, func(fetched subscription.Fetched) error {
			if err := compare(fetched); err != nil {
				return given{err}
			}
			last = fetched.ID
			return nil
		})
	})
	if err != nil {
		return sum, err
	}
	if err := r.missing(ctx, c, client, seen, compare, skip); err != nil {
		return sum, err
	}
	// The key may lack the right to read events. That must not stop plans.
	sum.Recovered, sum.PurchasesErr = r.purchases(ctx, c, client)
	return sum, ctx.Err()
}

// purchases stores the events of purchases and refunds that did not arrive.
func (r *Runner) purchases(ctx context.Context, c comparison, client *subscription.Client) (recovered int, err error) {
	var sells bool
	var since time.Time
	err = r.again(ctx, func() (err error) {
		sells, since, err = r.Store.PurchasesSince(ctx, c.tenant, c.endpoint, c.all)
		return err
	})
	if err != nil || !sells {
		return 0, err
	}
	last, looked := "", 0
	err = r.againFrom(ctx, func() int { return looked }, func() error {
		return client.Purchases(ctx, since, last, func(event subscription.Event, body []byte) error {
			var missing bool
			err := r.again(ctx, func() (err error) {
				missing, err = r.Store.RecoverBillingEvent(ctx, c.tenant, c.endpoint, event, body, c.dryRun)
				return err
			})
			if err != nil {
				return given{err}
			}
			if missing {
				recovered++
			}
			last, looked = event.ID, looked+1
			c.progress()
			return nil
		})
	})
	return recovered, err
}

// missing compares subscriptions that are stored here but not in the provider's list: they were
// deleted there, are newer than the list, or are of another account than the API key.
func (r *Runner) missing(ctx context.Context, c comparison, client *subscription.Client, seen map[string]bool, compare func(subscription.Fetched) error, skip func(string)) error {
	after := ""
	for {
		var known []tenants.KnownSubscription
		err := r.again(ctx, func() (err error) {
			known, err = r.Store.KnownSubscriptions(ctx, c.tenant, c.endpoint.ID, after)
			return err
		})
		if err != nil || len(known) == 0 {
			return err
		}
		after = known[len(known)-1].ID
		for _, k := range known {
			if seen[k.ID] {
				continue
			}
			fetched, ours, err := r.unlisted(ctx, client, k)
			if err != nil {
				return err
			}
			if !ours {
				skip(k.ID)
				continue
			}
			if err := compare(fetched); err != nil {
				return err
			}
		}
	}
}

// unlisted asks for a subscription that is not in the provider's list. It is ours if the provider
// knows it, or its customer.
func (r *Runner) unlisted(ctx context.Context, client *subscription.Client, k tenants.KnownSubscription) (fetched subscription.Fetched, ours bool, err error) {
	err = r.again(ctx, func() (err error) {
		fetched, err = client.Subscription(ctx, k.ID)
		return err
	})
	if !errors.Is(err, subscription.ErrGone) {
		return fetched, true, err
	}
	err = r.again(ctx, func() (err error) {
		ours, err = client.KnowsCustomer(ctx, k.Customer)
		return err
	})
	return subscription.Fetched{ID: k.ID, Gone: true}, ours, err
}
