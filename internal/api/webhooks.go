package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/subscription"
	"weir/internal/tenants"
)

// Webhooks receive the events of billing systems without an API key. The signature over the raw
// body authenticates them, and the endpoint's random id determines the secrets. An event is
// answered with 200 once it is stored. It is processed later (internal/billing).
//
// Anybody can send requests to these addresses, so each step has a limit before the next, more
// expensive one: lookups of endpoints, bodies in memory, signatures, and writes to Postgres. The
// whole instance runs only a few of each at the same time, and fewer for one tenant. Requests
// beyond that are refused, and the provider sends them again later. Checks are not affected.

const (
	maxWebhookBody = 256 << 10 // bytes; no provider sends larger events

	webhookBodies    = 64              // concurrent requests for known endpoints, of all tenants; as many more are for tenants with one
	webhookWrites    = 3               // concurrent writes of events, of one tenant one; the other connections to Postgres are for the admin API
	webhookWait      = 2 * time.Second // for a turn
	webhookRate      = 50              // events per second of one endpoint that an instance stores
	webhookBurst     = 1000            // and at once
	webhookReadLimit = 5 * time.Second // for a body
)

// The results of a webhook, for the metric.
const (
	webhookStored       = "stored"
	webhookDuplicate    = "duplicate"
	webhookNoSecret     = tenants.RefusedNoSecret
	webhookNoSignature  = tenants.RefusedNoSignature
	webhookBadSignature = tenants.RefusedBadSignature
	webhookOldSignature = tenants.RefusedOldSignature
	webhookMalformed    = tenants.RefusedMalformed
	webhookWrongMode    = tenants.RefusedWrongMode
	webhookNoEndpoint   = "unknown_endpoint"
	webhookBadBody      = "bad_body"
	webhookBusy         = "busy"
	webhookLimited      = "rate_limited"
	webhookVolume       = tenants.RefusedVolume
	webhookFailed       = "failed"
)

var webhookResults = []string{
	webhookStored, webhookDuplicate, webhookNoSecret, webhookNoSignature, webhookBadSignature, webhookOldSignature, webhookMalformed, webhookWrongMode,
	webhookNoEndpoint, webhookBadBody, webhookBusy, webhookLimited, webhookVolume, webhookFailed,
}

// webhooks receives events.
type webhooks struct {
	*server
	*webhookEndpoints
	refusals          chan struct{}
	verifying, writes *places.Turns[limit.TenantID]
	bodies            *places.Places[limit.TenantID]
	rates             *engine.Memory
}

// WebhookPath is the address of an endpoint below the installation's.
func WebhookPath(e tenants.BillingEndpoint) string {
	return "/v1/webhooks/" + e.Provider + "/" + e.ID.String()
}

func newWebhooks(s *server) *webhooks {
	return &webhooks{
		server: s, webhookEndpoints: newWebhookEndpoints(), refusals: make(chan struct{}, 1), bodies: places.New[limit.TenantID](0, 0),
		verifying: s.capacity.bodies.small,
		// The events of a tenant lock its row, so a second place would only wait for the first one.
		writes: places.NewTurns[limit.TenantID](webhookWrites, 1, 0),
		rates:  engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return time.Now().UnixMilli() }}),
	}
}

// mountWebhooks adds the webhooks to r.
func mountWebhooks(r chi.Router, s *server) {
	w := newWebhooks(s)
	for _, provider := range []string{tenants.StripeProvider, tenants.GenericProvider} {
		r.Post("/v1/webhooks/"+provider+"/{endpoint}", func(writer http.ResponseWriter, r *http.Request) {
			known, result, p := w.receive(writer, r, provider)
			s.metrics.webhooks.WithLabelValues(provider, result).Inc()
			if p != nil {
				w.refused(r.Context(), known, result)
				writeProblem(writer, r, p)
				return
			}
			writeStatus(writer, []byte(`{"received":true}`+"\n"))
		})
	}
}

// receive stores the event of a request, or answers with a problem. known is the endpoint, or nil.
func (w *webhooks) receive(writer http.ResponseWriter, r *http.Request, provider string) (known *knownWebhook, result string, p *Problem) {
	ctx := r.Context()
	known, leave, p := w.endpoint(r, chi.URLParam(r, "endpoint"), provider)
	if p != nil {
		if p.Status == http.StatusServiceUnavailable {
			p = closing(r, p) // or the connection would wait for a body that nobody reads
		}
		return nil, resultOf(p), p
	}
	defer leave()
	setBodyDeadline(writer, r, webhookReadLimit)
	body, p := w.capacity.read(w.capacity.of(known.Tenant), r, nil, maxWebhookBody)
	switch {
	case p != nil && p.Code == codeOverloaded:
		return known, webhookBusy, p
	case p != nil:
		return known, webhookBadBody, p
	}
	e, result, p := w.verify(ctx, r, known, body)
	if result == webhookBadSignature || result == webhookNoSecret { // its secrets may be new
		if fresh := w.again(ctx, known); fresh != nil {
			known = fresh
			e, result, p = w.verify(ctx, r, known, body)
		}
	}
	if p != nil {
		return known, result, p
	}
	if known.Live != nil && e.Live != nil && *known.Live != *e.Live {
		return known, webhookWrongMode, wrongMode(*e.Live)
	}
	if wait := w.overRate(ctx, known.Webhook); wait > 0 {
		return known, webhookLimited, newProblem(http.StatusTooManyRequests, codeWebhookRateExceeded,
			"The endpoint received more events than this instance stores for one endpoint. Send the event again.").withRetryAfter(wholeSeconds(wait))
	}
	result, p = w.store(ctx, known, &e, body)
	return known, result, p
}

// store stores an event.
func (w *webhooks) store(ctx context.Context, known *knownWebhook, e *subscription.Event, body []byte) (result string, p *Problem) {
	done, err := w.writes.TakeWithin(ctx, known.Tenant, webhookWait)
	if err != nil {
		return webhookBusy, busyWebhook()
	}
	defer done()
	first, err := w.Store.StoreBillingEvent(ctx, known.Webhook, *e, body)
	var volume *tenants.BillingVolumeError
	switch {
	case errors.As(err, &volume):
		return webhookVolume, newProblem(http.StatusTooManyRequests, codeWebhookVolumeExceeded,
			sentence(volume.Error())+" Send the event again after the end of the day, in UTC.").withRetryAfter(wholeSeconds(volume.RetryAfter))
	case errors.Is(err, tenants.ErrWrongMode) && e.Live != nil:
		return webhookWrongMode, wrongMode(*e.Live)
	case errors.Is(err, tenants.ErrNotFound): // deleted since it was looked up
		return webhookNoEndpoint, noWebhook()
	case err != nil:
		p := problemOf(err)
		if p.Status >= http.StatusInternalServerError {
			w.logger.ErrorContext(ctx, "webhook failed", "request_id", requestID(ctx), "code", p.Code, "error", err)
		}
		return webhookFailed, p
	case !first:
		return webhookDuplicate, nil
	}
	if tenants.WithoutEffect(e) {
		w.billing.Decided(tenants.EventIgnored)
	} else {
		w.billing.Wake()
	}
	return webhookStored, nil
}

// place takes a place for an event. A tenant has at most a quarter of the places that are left, or
// one. Under overload there are fewer.
func (w *webhooks) place(tenant limit.TenantID) (leave func(), ok bool) {
	return w.bodies.TakeShare(tenant, min(webhookBodies, int(w.capacity.bound.Small())), 1)
}

// refused records that an event was refused, for the page of the endpoint: once for each lookup of
// the endpoint, which is at most about once a second. It holds no place of the tenant meanwhile.
func (w *webhooks) refused(ctx context.Context, known *knownWebhook, why string) {
	if known == nil || !slices.Contains(tenants.RefusalReasons, why) || !take(ctx, w.refusals, 0) {
		return
	}
	defer give(w.refusals)
	w.mu.Lock()
	done := known.refusal
	known.refusal = true
	w.mu.Unlock()
	if done {
		return
	}
	if err := w.Store.RecordBillingRefusal(ctx, known.Webhook, why); err != nil && ctx.Err() == nil {
		w.logger.WarnContext(ctx, "cannot record that a webhook was refused", "endpoint", known.Endpoint, "error", err)
	}
}

// wrongMode is the answer to an event of another mode than that of the endpoint.
func wrongMode(live bool) *Problem {
	return newProblem(http.StatusBadRequest, codeWrongMode, "The event is of "+modeName(live)+
		", and the endpoint takes events of "+modeName(!live)+". Create an endpoint for each mode. To change the mode of this one, replace its signing secrets.")
}

func modeName(live bool) string {
	if live {
		return "live mode"
	}
	return "test mode"
}

func resultOf(p *Problem) string {
	switch p.Status {
	case http.StatusNotFound:
		return webhookNoEndpoint
	case http.StatusServiceUnavailable:
		return webhookBusy
	}
	return webhookFailed
}

func noWebhook() *Problem {
	return newProblem(http.StatusNotFound, codeNotFound, "There is no such webhook endpoint.")
}

func busyWebhook() *Problem {
	return newProblem(http.StatusServiceUnavailable, codeOverloaded, "Too many webhooks are being received. Send the event again.").withRetryAfter(1)
}

// take waits for a place, at most for wait.
func take(ctx context.Context, places chan struct{}, wait time.Duration) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
	}
	if wait == 0 {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case places <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func give(places chan struct{}) { <-places }

// verify verifies the signature over the raw body, and decodes the event.
func (w *webhooks) verify(ctx context.Context, r *http.Request, known *knownWebhook, body []byte) (e subscription.Event, result string, p *Problem) {
	if len(known.Secrets) == 0 {
		return e, webhookNoSecret, newProblem(http.StatusBadRequest, codeSigningSecretMissing, "The endpoint has no signing secret yet, so it accepts no events. Enter the secret that the billing system shows.")
	}
	for _, name := range signatureHeaders[known.Provider] {
		if r.Header.Get(name) == "" {
			return e, webhookNoSignature, newProblem(http.StatusBadRequest, codeInvalidSignature, "The header "+name+" is missing, so the event is not signed.")
		}
	}
	if longExponents(body) > maxLongExponents {
		return e, webhookMalformed, newProblem(http.StatusBadRequest, codeMalformedEvent, "The body is not an event: it has more than "+itoa(maxLongExponents)+" numbers with an exponent of three digits.")
	}
	done, err := w.verifying.TakeWithin(ctx, known.Tenant, webhookWait)
	if err != nil {
		return e, webhookBusy, busyWebhook()
	}
	defer done()
	var wrong *subscription.InvalidFields
	if known.Provider == tenants.GenericProvider {
		e, err = subscription.ReadGeneric(body, r.Header, known.Secrets)
	} else {
		e, err = subscription.ReadStripe(body, r.Header.Get("Stripe-Signature"), known.Secrets, time.Now())
	}
	switch {
	case errors.Is(err, subscription.ErrOldSignature):
		return e, webhookOldSignature, newProblem(http.StatusBadRequest, codeInvalidSignature, sentence(subscription.ErrOldSignature.Error()))
	case errors.Is(err, subscription.ErrBadSignature):
		return e, webhookBadSignature, newProblem(http.StatusBadRequest, codeInvalidSignature, sentence(subscription.ErrBadSignature.Error()))
	case errors.As(err, &wrong):
		var fields []ProblemField
		for _, f := range wrong.Fields {
			fields = append(fields, wrongField("/"+f.Field, &f.Problem))
		}
		return e, webhookMalformed, invalid(fields...)
	case err != nil:
		return e, webhookMalformed, newProblem(http.StatusBadRequest, codeMalformedEvent, "The signature is valid, but the body is not an event: "+eventForms[known.Provider]+".")
	}
	return e, "", nil
}

// signatureHeaders are the headers that a signed event of each provider has.
var signatureHeaders = map[string][]string{
	tenants.StripeProvider:  {"Stripe-Signature"},
	tenants.GenericProvider: {"webhook-id", "webhook-timestamp", "webhook-signature"},
}

// eventForms says what an event of each provider needs.
var eventForms = map[string]string{
	tenants.StripeProvider:  "it must be one JSON object with id, type, created and data.object, as Stripe sends it",
	tenants.GenericProvider: "it must be one JSON object with a type, and the headers must have a webhook-id",
}

// overRate counts an event of an endpoint. If there were too many, it returns how long to wait.
func (w *webhooks) overRate(ctx context.Context, known tenants.Webhook) time.Duration {
	call := engine.Call{Tenant: known.Tenant, Cost: 1, Counters: []engine.Counter{{
		Key: "webhooks " + string(known.Endpoint[:]), Numbers: limit.Numbers{
			Algorithm: limit.TokenBucket, Limit: webhookRate, Burst: webhookBurst, WindowMS: time.Second.Milliseconds(),
		},
	}}}
	w.rates.Evaluate(ctx, &call)
	if call.Err != nil || call.Outcome.Allowed {
		return 0
	}
	return time.Duration(max(call.Outcome.Verdicts[0].RetryAfterMS, 1)) * time.Millisecond
}

// Received is the answer to a webhook.
type Received struct {
	Received bool `json:"received" doc:"The event is stored"`
}

// describeWebhooks adds the webhooks to the OpenAPI document.
func describeWebhooks(api huma.API) {
	for provider, headers := range map[string][]*huma.Param{
		tenants.StripeProvider: {headerParam("Stripe-Signature", "As Stripe signs webhooks")},
		tenants.GenericProvider: {
			headerParam("webhook-id", "Id of the event, the same each time it is sent"),
			headerParam("webhook-timestamp", "When it is sent, seconds since 1970"),
			headerParam("webhook-signature", "As Standard Webhooks says"),
		},
	} {
		op := &huma.Operation{
			Method: http.MethodPost, Path: "/v1/webhooks/" + provider + "/{endpoint}", OperationID: "webhook-" + provider,
			Summary: "Receive an event of a billing system", Tags: []string{"webhooks"},
			Description: "It needs no API key: the signature over the raw body authenticates it. 200 means that the event is stored; /v1/billing/events shows its outcome. " +
				"An event may have up to 256 KiB, else 413. A tenant may store " + itoa(tenants.DefaultBillingEvents) + " events a day (UTC), of " + itoa(tenants.DefaultBillingBytes>>30) +
				" GiB together, unless the operator sets other numbers, and an endpoint " + itoa(webhookRate) + " per second and instance; beyond that, 429 with Retry-After. Send the event again then.",
			Parameters: append([]*huma.Param{{
				Name: "endpoint", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString, Format: "uuid"}, Description: "Id of the billing endpoint",
			}}, headers...),
			RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {Schema: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}}}},
			Responses:   map[string]*huma.Response{"200": jsonResponse[Received](api, "The event is stored")},
		}
		for _, status := range []int{400, 404, 408, 413, 422, 429, 500, 503} {
			if status == http.StatusUnprocessableEntity && provider != tenants.GenericProvider {
				continue // the events of Stripe are stored, and their outcome says what is wrong
			}
			op.Responses[itoa(int64(status))] = problemResponse(api, status)
		}
		api.OpenAPI().AddOperation(op)
	}
}
