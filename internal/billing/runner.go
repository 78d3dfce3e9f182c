// Package billing processes events of billing systems, and moves subjects between plans. It also
// sends metered usage to their meters (meter.go).
//
// internal/api stores each event when it arrives. A Runner in every instance then looks in Postgres
// for tasks that are due and executes them. A task is a row with a time: a new event, the end of a
// grace period, or the daily comparison with the provider. Tasks are stored, so a crash loses none,
// and any instance can execute them. If two instances take the same task, the second one waits for
// the first, and then finds the task done.
//
// An example: Stripe sends that the payment of subscription sub_1 failed. The webhook stores the
// event and answers 200. The runner finds the event: internal/subscription computes that the plan
// stays for a grace period of 7 days, and internal/tenants stores a task for its end. No payment
// arrives, so 7 days later a runner moves the subject to the fallback plan.
//
// internal/subscription has the arithmetic, internal/tenants the queries.
package billing

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/places"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Options are the settings of a Runner.
type Options struct {
	Store      *tenants.Store
	StripeURL  string                // "" for Stripe's own
	HTTP       *http.Client          // for requests to the provider; nil for a client with a timeout
	Logger     *slog.Logger          // nil for none
	Registerer prometheus.Registerer // nil for no metrics
	// Noticed is called with each notice about events that were not applied, after it was sent to
	// the notification endpoints of the tenant; nil: nothing is.
	Noticed func(context.Context, tenants.BillingNotice)
	// Every is the interval between looking for due tasks; 0 for half a second. Wake ends it early.
	Every time.Duration
	// CompareFor is how long a comparison may make no progress; 0 for an hour.
	CompareFor time.Duration
	// CompareTurn is how long a comparison keeps its place while others wait; 0 for ten minutes.
	CompareTurn time.Duration
	// Pause waits before a step of a comparison is tried again; nil waits in real time.
	Pause func(context.Context, time.Duration)
}

// Runner executes due tasks. Its methods can be called concurrently.
type Runner struct {
	Options
	wake      chan struct{}
	outcomes  *prometheus.CounterVec // outcome
	backlog   *prometheus.GaugeVec   // what
	unapplied *prometheus.GaugeVec   // outcome
	// pushes and repeats are the places of pushes, of those that failed before apart.
	pushes, repeats *places.Places[uuid.UUID]
	pushLogMu       sync.Mutex
	pushLogged      map[uuid.UUID]time.Time // when a failed push of each tenant was in the log
	rejections      *rejections
	turns, looks    *turns // of due tasks, and of looks at waiting events
	comparisons     *comparisons
	underway        sync.WaitGroup // turns, looks and comparisons
}

const (
	lookEvery   = 500 * time.Millisecond
	countEvery  = 15 * time.Second // how often events are counted that were not applied
	noticeEvery = 30 * time.Second // how often notices about such events are sent
	page        = 200              // maximum number of tasks per query
)

// New returns a Runner. Call Run.
func New(o Options) *Runner {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Every == 0 {
		o.Every = lookEvery
	}
	o.CompareFor = cmp.Or(o.CompareFor, reconcileFor)
	if o.Pause == nil {
		o.Pause = pause
	}
	r := &Runner{
		Options: o, wake: make(chan struct{}, 1), pushes: places.New[uuid.UUID](pushPlaces, 1), repeats: places.New[uuid.UUID](pushPlaces, 1),
		pushLogged: map[uuid.UUID]time.Time{}, rejections: newRejections(),
		turns: newTurns(turnPlaces), looks: newTurns(lookPlaces), comparisons: newComparisons(cmp.Or(o.CompareTurn, compareTurn)),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_billing_events_total",
			Help: "Billing events that this instance has decided about, by outcome.",
		}, []string{"outcome"}),
		backlog: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_billing_backlog",
			Help: "Billing events of all tenants that are not decided yet: their number (events), at most 10000, and for how long the oldest waits (seconds).",
		}, []string{"of"}),
		unapplied: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_billing_unapplied_events",
			Help: "Billing events of all tenants that are parked or failed now, without those that wait for a time; at most 100000 are counted.",
		}, []string{"outcome"}),
	}
	for _, outcome := range tenants.EventOutcomes {
		r.outcomes.WithLabelValues(outcome)
	}
	for _, outcome := range []string{tenants.EventParked, tenants.EventFailed} {
		r.unapplied.WithLabelValues(outcome)
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(r.outcomes, r.backlog, r.unapplied)
	}
	return r
}

// Wake makes the Runner look for due tasks immediately.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // already signaled
	}
}

// Decided counts an event that was decided when it was received.
func (r *Runner) Decided(outcome string) { r.outcomes.WithLabelValues(outcome).Inc() }

// Run executes due tasks until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	defer r.underway.Wait()
	r.underway.Go(func() { r.runPushes(ctx) })
	r.underway.Go(func() { r.repeat(ctx, r.Every, "count due billing events", r.Measure) })
	r.underway.Go(func() { r.repeat(ctx, countEvery, "count unapplied billing events", r.Count) })
	r.underway.Go(func() { r.repeat(ctx, noticeEvery, "send notices about unapplied billing events", r.Notices) })
	failing := false
	for {
		r.turns.look()
		r.looks.look()
		due, err := r.Store.DueBilling(ctx, page)
		if err != nil && !failing && ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "cannot read due billing events; retrying", "error", err)
		}
		failing = err != nil
		again := r.turns.offer(r.tasksOf(due))
		lookAgain := r.looks.offer(r.looksOf(due))
		r.beginComparisons(ctx, due.Reconciles)
		if idle := r.begin(ctx, r.turns); idle && err == nil && (due.More || again) {
			r.Wake() // else a turn that ends does
		}
		if idle := r.begin(ctx, r.looks); idle && lookAgain {
			r.Wake()
		}
		for look := false; !look; {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
				look = true
			case <-ticker.C:
				look = true
			case <-r.turns.ended:
				r.begin(ctx, r.turns)
			case <-r.looks.ended:
				r.begin(ctx, r.looks)
			}
		}
	}
}

// Once executes the tasks that are due now, and returns after that.
func (r *Runner) Once(ctx context.Context) error {
	for {
		r.turns.look()
		due, err := r.Store.DueBilling(ctx, page)
		if err != nil {
			return err
		}
		woken := false
		for _, look := range due.Looks {
			woken = r.look(ctx, look) || woken
		}
		r.turns.offer(r.tasksOf(due))
		for idle := r.begin(ctx, r.turns); !idle; idle = r.begin(ctx, r.turns) {
			select {
			case <-r.turns.ended:
			case <-ctx.Done():
				r.underway.Wait()
				return ctx.Err()
			}
		}
		if len(due.Events)+len(due.Subscriptions) == 0 && !due.More && !woken {
			return ctx.Err()
		}
	}
}

// Measure sets the metrics of the backlog. It is not a part of the loop that begins turns, which a
// backlog would then delay.
func (r *Runner) Measure(ctx context.Context) error {
	count, oldest, err := r.Store.BillingBacklog(ctx)
	if err == nil {
		r.backlog.WithLabelValues("events").Set(float64(count))
		r.backlog.WithLabelValues("seconds").Set(oldest.Seconds())
	}
	return err
}

// repeat calls do until ctx ends.
func (r *Runner) repeat(ctx context.Context, every time.Duration, what string, do func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "billing: cannot "+what+"; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Notices sends the notices that are due about events that were not applied.
func (r *Runner) Notices(ctx context.Context) error {
	sent, err := r.Store.RecordBillingNotices(ctx, page)
	for _, n := range sent {
		if !n.Settled() {
			r.Logger.WarnContext(ctx, "billing events are parked or have failed", "tenant_id", n.Tenant, "endpoint", n.Endpoint, "parked", n.Parked, "failed", n.Failed)
		}
		if r.Noticed != nil {
			r.Noticed(ctx, n)
		}
	}
	return err
}

// Count sets the metric of the events that were not applied.
func (r *Runner) Count(ctx context.Context) error {
	n, err := r.Store.AllUnappliedEvents(ctx)
	if err == nil {
		r.unapplied.WithLabelValues(tenants.EventParked).Set(float64(n.Parked))
		r.unapplied.WithLabelValues(tenants.EventFailed).Set(float64(n.Failed))
	}
	return err
}

func (r *Runner) logFailure(ctx context.Context, what string, task tenants.BillingTask, err error) {
	if err != nil && !errors.Is(err, tenants.ErrNotFound) && ctx.Err() == nil {
		r.Logger.WarnContext(ctx, "billing: cannot "+what, "tenant_id", task.Tenant, "error", err)
	}
}

// errAskLater means that there was no place to ask the provider about an event. It stays due.
var errAskLater = errors.New("too many requests to providers are under way")

// event settles a due event, and reports whether it is no longer due at once.
func (r *Runner) event(ctx context.Context, task tenants.BillingTask, ask func() bool) (done bool) {
	settled, err := r.settle(ctx, task.Tenant, task.Event, "", ask)
	switch {
	case errors.Is(err, errAskLater):
		return false
	case err == nil:
		r.outcomes.WithLabelValues(cmp.Or(settled.Outcome, tenants.EventIgnored)).Inc()
	case errors.Is(err, tenants.ErrNotFound), ctx.Err() != nil:
		r.logFailure(ctx, "settle an event", task, err) // it stays due
		return false
	default:
		// Also if Postgres did not answer in time: the event may be the reason, and would take the
		// same time again at once. If Postgres does not answer at all, it stays due.
		r.logFailure(ctx, "settle an event", task, err)
		err = r.Store.PostponeBillingEvent(ctx, task.Tenant, task.Event, "not applied; it will be retried")
		r.logFailure(ctx, "postpone an event", task, err)
		return err == nil
	}
	return true
}

// subscription settles a due subscription, and reports whether it is no longer due at once.
func (r *Runner) subscription(ctx context.Context, task tenants.BillingTask) (done bool) {
	err := r.Store.SettleBillingSubscription(ctx, task.Tenant, task.Endpoint, task.Subscription)
	r.logFailure(ctx, "settle a subscription", task, err)
	if err == nil || errors.Is(err, tenants.ErrNotFound) || ctx.Err() != nil {
		return err == nil
	}
	err = r.Store.PostponeBillingSubscription(ctx, task.Tenant, task.Endpoint, task.Subscription)
	r.logFailure(ctx, "postpone a subscription", task, err)
	return err == nil
}

// Replay settles an event again for the actor, regardless of its outcome. Errors: ErrForbidden,
// ErrNotFound, ErrUnavailable, *tenants.ConflictError for a duplicate.
func (r *Runner) Replay(ctx context.Context, a tenants.Actor, event uuid.UUID) (tenants.BillingEvent, error) {
	if !a.May(tenants.MayManage) {
		return tenants.BillingEvent{}, tenants.ErrForbidden
	}
	e, err := r.Store.BillingEventByID(ctx, a, event)
	if err != nil {
		return e, err
	}
	if e.DuplicateOf != nil {
		return e, &tenants.ConflictError{Code: tenants.CodeConflict, Detail: "this row records duplicates of an event: replay that event, " + e.DuplicateOf.String()}
	}
	return r.settle(ctx, a.TenantID(), event, a.Label(), func() bool { return true })
}

// settle settles one event. It calls ask before it asks the provider. Errors besides those of the
// store: errAskLater if ask returns false.
func (r *Runner) settle(ctx context.Context, tenant, event uuid.UUID, replayedBy string, ask func() bool) (tenants.BillingEvent, error) {
	work, err := r.Store.BillingWork(ctx, tenant, event)
	if err != nil {
		return tenants.BillingEvent{}, err
	}
	p := work.Parsed.Purchase
	lines := p != nil && p.Partial && work.GrantsCredits && work.Endpoint.APIKeyHint != ""
	subscribed := inconclusive(&work)
	if (lines || subscribed) && !ask() {
		return tenants.BillingEvent{}, errAskLater
	}
	var fetched *subscription.Fetched
	if subscribed {
		if fetched, err = r.fetch(ctx, tenant, &work); err != nil {
			// Continue with what the event has: an outage of the provider must not stop plans.
			work.Unfetched = !errors.Is(err, subscription.ErrGone)
			r.Logger.WarnContext(ctx, "billing: request to the provider failed", "tenant_id", tenant, "error", err)
		}
	}
	if lines {
		if err := r.fetchLines(ctx, tenant, &work); err != nil {
			r.Logger.WarnContext(ctx, "billing: request to the provider failed", "tenant_id", tenant, "error", err)
		}
	}
	return r.Store.SettleBillingEvent(ctx, work, tenant, fetched, replayedBy)
}

// fetchLines requests the lines of a purchase from the provider. Without them, the event is parked.
func (r *Runner) fetchLines(ctx context.Context, tenant uuid.UUID, w *tenants.BillingWork) error {
	client, err := r.client(tenant, w.Endpoint)
	if err != nil {
		return err
	}
	lines, err := client.Lines(ctx, w.Parsed.Purchase.ID)
	if err != nil && !errors.Is(err, subscription.ErrGone) {
		return err
	}
	w.Parsed.Purchase.Lines, w.Parsed.Purchase.Partial = lines, false
	return nil
}

// inconclusive reports whether the subscription of an event must be requested from the provider:
// the endpoint has an API key, and the order of the event within a second is unknown, or it cannot
// be parsed, lacks items, or its subject is unknown.
func inconclusive(w *tenants.BillingWork) bool {
	e := &w.Parsed
	if w.Endpoint.APIKeyHint == "" || e.Subscription == "" {
		return false
	}
	switch e.Kind {
	case subscription.Changed:
		key, fromMetadata := strings.CutPrefix(w.Endpoint.SubjectFrom, tenants.FromMetadata)
		return e.Snapshot.Partial || w.State.Tied(e.Snapshot) || fromMetadata && w.Subject == "" && e.Snapshot.Metadata[key] == ""
	case subscription.PaymentFailed, subscription.PaymentMade:
		return w.State.Newest == nil || w.State.Newest.Partial
	case subscription.Unreadable:
		return true
	}
	return false
}

// fetch requests the subscription of an event from the provider.
func (r *Runner) fetch(ctx context.Context, tenant uuid.UUID, w *tenants.BillingWork) (*subscription.Fetched, error) {
	client, err := r.client(tenant, w.Endpoint)
	if err != nil {
		return nil, err
	}
	fetched, err := client.Subscription(ctx, w.Parsed.Subscription)
	if err != nil {
		return nil, err
	}
	return &fetched, nil
}

func (r *Runner) client(tenant uuid.UUID, e tenants.BillingEndpoint) (*subscription.Client, error) {
	key, err := r.Store.BillingAPIKey(e, tenant)
	if err != nil {
		return nil, err
	}
	return subscription.NewClient(key, r.StripeURL, r.HTTP), nil
}

// daily compares an endpoint with its provider, unless another instance does.
func (r *Runner) daily(ctx context.Context, task tenants.BillingTask) {
	mine, err := r.Store.ClaimReconcile(ctx, task.Tenant, task.Endpoint, r.CompareFor)
	if err != nil || !mine {
		r.logFailure(ctx, "claim a reconciliation", task, err)
		return
	}
	e, err := r.Store.BillingEndpointByID(ctx, tenants.AsSystem(task.Tenant, "billing"), task.Endpoint)
	if err == nil {
		watched, progress, end := r.watch(ctx, task)
		defer end()
		var sum Summary
		report := func(Summary, tenants.ReconcileResult) {}
		if sum, err = r.reconcile(watched, comparison{tenant: task.Tenant, endpoint: e, report: report, progress: progress}); err == nil {
			r.Logger.InfoContext(ctx, "billing reconciled", "tenant_id", task.Tenant, "endpoint", task.Endpoint,
				"subscriptions", sum.Subscriptions, "repaired", sum.Repaired, "problems", sum.Problems, "recovered_events", sum.Recovered)
			r.logFailure(ctx, "compare purchases", task, sum.PurchasesErr)
		}
	}
	r.logFailure(ctx, "reconcile", task, err)
}
