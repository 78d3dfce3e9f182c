package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/stripe/stripe-go/v85"
)

// StripeAPI is the address of Stripe's API.
const StripeAPI = "https://api.stripe.com"

// ErrGone: the provider has no such object.
var ErrGone = errors.New("the provider has no such object")

// ErrUnreadable: what answered is not the provider, or the provider is broken.
var ErrUnreadable = errors.New("the answer of the provider cannot be read")

// Client reads from Stripe's API with an endpoint's restricted key, which needs read access to
// subscriptions and customers, and to invoices, checkouts and events to sell credits. It writes
// meter events only.
type Client struct {
	api    *stripe.Client // repeats requests that fail
	meters *stripe.Client // sends each request once
	now    func() time.Time
}

const (
	clientTimeout = 10 * time.Second
	clientRetries = 2
)

// NewClient returns a client of the API at base, such as StripeAPI.
func NewClient(key, base string, httpClient *http.Client) *Client {
	if httpClient == nil {
		httpClient = &http.Client{Timeout: clientTimeout}
	}
	with := func(retries int64) *stripe.Client {
		return stripe.NewClient(key, stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
			URL: stripe.String(cmp.Or(base, StripeAPI)), HTTPClient: httpClient, MaxNetworkRetries: stripe.Int64(retries),
			EnableTelemetry: stripe.Bool(false), LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
		})))
	}
	return &Client{api: with(clientRetries), meters: with(0), now: time.Now}
}

// Fetched is the current subscription of the provider, with its customer's metadata.
type Fetched struct {
	ID       string
	Snapshot *Snapshot
	Metadata map[string]string // of the customer; nil if unknown
	Gone     bool              // the customer was deleted
}

// Subscription fetches one subscription and its customer. It returns ErrGone if it does not exist.
func (c *Client) Subscription(ctx context.Context, id string) (Fetched, error) {
	params := &stripe.SubscriptionRetrieveParams{}
	params.AddExpand("customer")
	sub, err := c.api.V1Subscriptions.Retrieve(ctx, id, params)
	if err != nil {
		return Fetched{}, apiError("fetch subscription "+id, err)
	}
	return c.fetched(ctx, sub, sub.LastResponse)
}

// KnowsCustomer reports whether the provider knows a customer. It also knows those who were
// deleted, but not those of another account.
func (c *Client) KnowsCustomer(ctx context.Context, id string) (bool, error) {
	if _, err := c.api.V1Customers.Retrieve(ctx, id, &stripe.CustomerRetrieveParams{}); err != nil {
		if err = apiError("fetch customer "+id, err); errors.Is(err, ErrGone) {
			return false, nil
		}
		return false, err
	}
	return true, nil
}

// Subscriptions calls each for all subscriptions, including ended ones, behind the one that is
// named; "": from the first one on. It returns the first error of each.
func (c *Client) Subscriptions(ctx context.Context, after string, each func(Fetched) error) error {
	params := &stripe.SubscriptionListParams{Status: stripe.String("all")}
	params.StartingAfter = behind(after)
	params.Limit = stripe.Int64(100)
	params.AddExpand("data.customer")
	list := c.api.V1Subscriptions.List(ctx, params)
	for sub, err := range list.All(ctx) {
		if err != nil {
			return apiError("list subscriptions", err)
		}
		fetched, err := c.fetched(ctx, sub, list.LastResponse())
		if err != nil {
			return err
		}
		if err := each(fetched); err != nil {
			return err
		}
	}
	return nil
}

// purchaseEvents are the types of events about purchases, payments and refunds.
var purchaseEvents = []string{
	"invoice.paid", "checkout.session.completed", "checkout.session.async_payment_succeeded", "invoice_payment.paid", "charge.refunded",
}

// behind is where a list begins; nil: with its first object.
func behind(after string) *string {
	if after == "" {
		return nil
	}
	return &after
}

// Purchases calls each for the events about purchases and refunds since an instant, newest first,
// with the body that a webhook has, behind the event that is named; "": from the newest on. The
// provider keeps events for 30 days. It returns the first error of each.
func (c *Client) Purchases(ctx context.Context, since time.Time, after string, each func(Event, []byte) error) error {
	params := &stripe.EventListParams{CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: since.Unix()}, Types: stripe.StringSlice(purchaseEvents)}
	params.Limit, params.StartingAfter = stripe.Int64(100), behind(after)
	for in, err := range c.api.V1Events.List(ctx, params).All(ctx) {
		if err != nil {
			return apiError("list events", err)
		}
		e, body, err := listedEvent(in)
		if err != nil { // nor would a webhook store it
			continue
		}
		if err := each(e, body); err != nil {
			return err
		}
	}
	return nil
}

// listedEvent returns an event of a list in the form in which a webhook sends it.
func listedEvent(in *stripe.Event) (Event, []byte, error) {
	if in.Data == nil {
		return Event{}, nil, ErrMalformed
	}
	body, err := json.Marshal(map[string]any{
		"id": in.ID, "object": "event", "type": in.Type, "created": in.Created, "livemode": in.Livemode, "api_version": in.APIVersion,
		"data": map[string]any{"object": in.Data.Raw},
	})
	if err != nil || hasNUL(body) {
		return Event{}, nil, ErrMalformed
	}
	e, err := ParseStripe(body)
	return e, body, err
}

// fetched returns a snapshot of a subscription, with all of its items. Its time is the
// provider's, from the header Date of the response. Snapshots of one second are in the order of
// our requests.
func (c *Client) fetched(ctx context.Context, sub *stripe.Subscription, response *stripe.APIResponse) (Fetched, error) {
	if sub.Customer == nil {
		return Fetched{}, fmt.Errorf("subscription %s has no customer", sub.ID)
	}
	form := stripeSubscription{
		ID: sub.ID, Status: Status(sub.Status), Customer: reference(sub.Customer.ID), Created: sub.Created,
		BillingCycleAnchor: sub.BillingCycleAnchor, Metadata: sub.Metadata,
	}
	items, err := c.items(ctx, sub)
	if err != nil {
		return Fetched{}, err
	}
	for _, i := range items {
		item := stripeItem{Quantity: i.Quantity, CurrentPeriodStart: i.CurrentPeriodStart, Deleted: i.Deleted}
		if i.Price != nil {
			item.Price = &stripePlan{ID: i.Price.ID}
			if i.Price.Product != nil {
				item.Price.Product = reference(i.Price.Product.ID)
			}
		}
		form.Items.Data = append(form.Items.Data, item)
	}
	snapshot, why := form.snapshot()
	if why != "" {
		return Fetched{}, fmt.Errorf("subscription %s: %s", sub.ID, why)
	}
	now := c.now().UTC()
	at := now
	if response != nil {
		if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			at = date
		}
	}
	snapshot.At, snapshot.Rank, snapshot.Event = at.Unix(), 1, FetchedEvent+now.Format("2006-01-02T15:04:05.000000000Z")
	return Fetched{ID: sub.ID, Snapshot: snapshot, Metadata: shortMetadata(sub.Customer.Metadata), Gone: sub.Customer.Deleted}, nil
}

// items returns all items of a subscription, which has only the first ones itself.
func (c *Client) items(ctx context.Context, sub *stripe.Subscription) ([]*stripe.SubscriptionItem, error) {
	if sub.Items == nil {
		return nil, nil
	}
	all := sub.Items.Data
	if !sub.Items.HasMore || len(all) == 0 {
		return all, nil
	}
	params := &stripe.SubscriptionItemListParams{Subscription: &sub.ID}
	params.Limit, params.StartingAfter = stripe.Int64(100), &all[len(all)-1].ID
	for i, err := range c.api.V1SubscriptionItems.List(ctx, params).All(ctx) {
		if err != nil {
			return nil, apiError("list the items of subscription "+sub.ID, err)
		}
		all = append(all, i)
	}
	return all, nil
}

// FetchedEvent is the prefix of Event in a fetched snapshot. It sorts after the ids of events.
const FetchedEvent = "fetched "

// APIError is an answer of the provider that refuses a request. It has no part of the answer's
// text, which can repeat the key.
type APIError struct {
	What   string // the request, such as "list subscriptions"
	Status int    // of HTTP
	Code   string // Stripe's code or type of the error; may be empty
}

// Error implements error.
func (e *APIError) Error() string {
	return fmt.Sprintf("%s: the provider answered %d %s", e.What, e.Status, e.Code)
}

func apiError(what string, err error) error {
	var failed *stripe.Error
	if errors.As(err, &failed) {
		if failed.HTTPStatusCode == http.StatusNotFound {
			return fmt.Errorf("%s: %w", what, ErrGone)
		}
		return &APIError{What: what, Status: failed.HTTPStatusCode, Code: cmp.Or(string(failed.Code), string(failed.Type))}
	}
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	// The error may have a part of an answer that is not JSON, in which a proxy may have repeated
	// the request with the key.
	return fmt.Errorf("%s: %w", what, ErrUnreadable)
}
