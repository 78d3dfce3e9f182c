// Package notify sends notifications to the endpoints of tenants, as signed webhooks.
//
// internal/tenants stores a notification in the transaction that causes it, with one delivery for
// each endpoint: an outbox. A Sender in every instance looks for deliveries that are due, claims
// one at a time, and sends it. If a server dies after it has sent one, another server sends it
// again with the same webhook-id, so an endpoint gets each notification at least once.
//
// A delivery that fails is repeated with growing waits for a day. Then it is parked with the
// reason, and a person can replay it. guard.go keeps requests away from internal networks.
//
// To send another kind of notification, add its type to tenants.NotificationTypes and call
// tenants.Store.Notify, or its form for changes within a transaction.
//
// Example: a limit request is stored, with deliveries for the endpoints a and b. a answers 200, and
// its delivery is done. b does not answer. Its delivery is due again later, and b is slow: all slow
// endpoints together get half of the places, so that they do not delay others (turns.go). If the
// instance is killed between the answer of a and the write to Postgres, its claim ends after a
// minute, and a gets the same webhook-id a second time.
package notify

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"weir/internal/tenants"
)

const (
	lookEvery  = time.Second
	page       = 1000             // endpoints per look
	patience   = 15 * time.Second // for one request
	firstWait  = 5 * time.Second  // after the first failure; it doubles
	longest    = 3 * time.Hour    // between two attempts
	jitter     = 0.2              // share by which a wait is longer or shorter
	keptAnswer = 512              // bytes that are read of an answer
)

// Options are the settings of a Sender.
type Options struct {
	Store      *tenants.Store
	Networks   []netip.Prefix        // internal networks that endpoints may have addresses in
	Logger     *slog.Logger          // nil for none
	Registerer prometheus.Registerer // nil for no metrics
	Every      time.Duration         // the interval between looks; 0 for a second
	Now        func() time.Time      // measures how long an endpoint takes; nil for the real time
}

// Sender sends notifications.
type Sender struct {
	Options
	client   *http.Client
	attempts *prometheus.CounterVec // outcome
	backlog  prometheus.Gauge
	turns    *turns
}

// outcomes are the values of the label of a metric.
var outcomes = []string{tenants.DeliveryDelivered, "failed", tenants.DeliveryParked}

// New returns a Sender. Call Run.
func New(o Options) *Sender {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Every == 0 {
		o.Every = lookEvery
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Sender{
		Options: o, client: newClient(o.Networks), turns: newTurns(o.Now),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_notification_attempts_total",
			Help: "Attempts of this instance to deliver a notification, by outcome: delivered, failed (it is tried again) or parked.",
		}, []string{"outcome"}),
		backlog: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_notification_backlog", Help: fmt.Sprintf("Deliveries of notifications of all tenants that wait for an attempt, at most %d.", tenants.MostDeliveryBacklog)}),
	}
	for _, outcome := range outcomes {
		s.attempts.WithLabelValues(outcome)
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(s.attempts, s.backlog)
	}
	return s
}

// Run sends what is due until ctx ends. Requests that are on their way then are cancelled, and
// another server repeats them.
func (s *Sender) Run(ctx context.Context) {
	ticker := time.NewTicker(s.Every)
	defer ticker.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	failing := false
	for {
		err := s.look(ctx)
		s.start(ctx, &all)
		if err != nil && !failing && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "cannot read due notifications; retrying", "error", err)
		}
		failing = err != nil
		for looking := false; !looking; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				looking = true
			case <-s.turns.freed:
				s.start(ctx, &all)
			}
		}
	}
}

// look reads which endpoints have something to get.
func (s *Sender) look(ctx context.Context) error {
	due, err := s.Store.DueDeliveries(ctx, page)
	if err != nil {
		return err
	}
	if waiting, err := s.Store.DeliveryBacklog(ctx); err == nil {
		s.backlog.Set(float64(waiting))
	}
	s.turns.offer(due)
	return nil
}

// start starts the work for as many endpoints as there are places, and returns how many.
func (s *Sender) start(ctx context.Context, all *sync.WaitGroup) int {
	tasks := s.turns.take()
	for _, task := range tasks {
		all.Go(func() {
			more := false
			defer func() { s.turns.leave(task, more) }()
			more = s.send(ctx, task)
		})
	}
	return len(tasks)
}

// send sends what an endpoint has due, one after the other, until its turn ends or one fails: an
// endpoint that answers late or not at all occupies one place for one request. more reports whether
// the turn ended first.
func (s *Sender) send(ctx context.Context, task tenants.DeliveryTask) (more bool) {
	for began := s.Now(); ctx.Err() == nil && !more; more = s.Now().Sub(began) >= turnFor {
		work, err := s.Store.ClaimDelivery(ctx, task)
		if work == nil {
			if err != nil && ctx.Err() == nil {
				s.Logger.WarnContext(ctx, "notifications: cannot claim a delivery", "tenant_id", task.Tenant, "error", err)
			}
			return false
		}
		var result tenants.DeliveryResult
		if err != nil {
			s.Logger.ErrorContext(ctx, "notifications: cannot sign", "tenant_id", task.Tenant, "endpoint", task.Endpoint, "error", err)
			result = tenants.DeliveryResult{Why: "the signing secret cannot be decrypted: the operator must add its key to WEIR_ENCRYPTION_KEY"}
		} else {
			sent := s.Now()
			result = s.attempt(ctx, work)
			answered := result.Delivered || result.Status != 0 || result.Final
			s.turns.judge(task, answered && s.Now().Sub(sent) <= quick)
		}
		if ctx.Err() != nil && !result.Delivered {
			return false // stopped, not refused: another server repeats it when the lease ends
		}
		result.Wait = max(result.Wait, waitAfter(work.Attempt))
		state, err := s.Store.SettleDelivery(context.WithoutCancel(ctx), work, result)
		if err != nil {
			s.Logger.WarnContext(ctx, "notifications: cannot record an outcome", "tenant_id", task.Tenant, "error", err)
			return false
		}
		if state == tenants.DeliveryPending {
			state = "failed"
		}
		s.attempts.WithLabelValues(state).Inc()
		if !result.Delivered {
			return false
		}
	}
	return more
}

// waitAfter returns the wait after so many failures: 5 s, 10 s, 20 s and so on, up to 3 hours, each
// up to a fifth longer or shorter, so that deliveries that failed together spread out.
func waitAfter(failures int) time.Duration {
	wait := min(firstWait<<min(failures-1, 20), longest)
	return time.Duration(float64(wait) * (1 - jitter + 2*jitter*rand.Float64()))
}

// attempt sends one request.
func (s *Sender) attempt(ctx context.Context, work *tenants.DeliveryWork) tenants.DeliveryResult {
	if !work.Enabled && work.Type != tenants.TestNotification {
		return tenants.DeliveryResult{Why: "the endpoint is disabled", Final: true}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := newRequest(ctx, work)
	if err != nil {
		return tenants.DeliveryResult{Why: "the request cannot be made: " + err.Error(), Final: true}
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return tenants.DeliveryResult{Why: reasonOf(err)}
	}
	defer answer.Body.Close()
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, keptAnswer)) // what was read is enough
	return resultOf(answer, string(begin))
}

// newRequest returns the request of an attempt, signed by each of the secrets.
func newRequest(ctx context.Context, work *tenants.DeliveryWork) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, work.URL, strings.NewReader(work.Body))
	if err != nil {
		return nil, err
	}
	now := time.Now() // the time of the attempt, so that receivers can refuse old requests
	var signatures []string
	for _, secret := range work.Secrets {
		hook, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return nil, err
		}
		signature, err := hook.Sign(work.WebhookID, now, []byte(work.Body))
		if err != nil {
			return nil, err
		}
		signatures = append(signatures, signature)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Weir")
	request.Header.Set(standardwebhooks.HeaderWebhookID, work.WebhookID)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return request, nil
}

// resultOf returns what an answer means.
func resultOf(answer *http.Response, begin string) tenants.DeliveryResult {
	r := tenants.DeliveryResult{Status: answer.StatusCode, Answer: begin}
	switch {
	case answer.StatusCode >= 200 && answer.StatusCode < 300:
		r.Delivered = true
	case answer.StatusCode >= 300 && answer.StatusCode < 400:
		r.Why = fmt.Sprintf("the endpoint answered %d: redirects are not followed, so change the address", answer.StatusCode)
	case answer.StatusCode == http.StatusGone:
		r.Why, r.Final = "the endpoint answered 410: it does not want notifications any more", true
		r.Disable = "it answered 410 (gone)"
	default:
		r.Why = fmt.Sprintf("the endpoint answered %d", answer.StatusCode)
		r.Wait = retryAfter(answer.Header.Get("Retry-After"))
	}
	return r
}

// retryAfter returns the seconds of the header, up to the longest wait; 0 for another value.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, longest)
}
