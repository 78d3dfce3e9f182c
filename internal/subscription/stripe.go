package subscription

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-go/v85/webhook"
)

// Tolerance is the maximum difference between a signature's time and the server's, in both
// directions.
const Tolerance = webhook.DefaultTolerance

var (
	// ErrBadSignature means that the signature is missing, malformed or not made with any of the
	// secrets.
	ErrBadSignature = errors.New("the signature does not match any signing secret of the endpoint")
	// ErrOldSignature means that the signature's time differs by more than Tolerance.
	ErrOldSignature = errors.New("the time of the signature is more than five minutes away from the time of the server")
	// ErrMalformed means that the signature is valid, but the body is not an event.
	ErrMalformed = errors.New("the body is not an event")
)

// ReadStripe verifies a webhook of Stripe over the raw body, with any of the secrets, and parses
// it. Errors: ErrBadSignature, ErrOldSignature, ErrMalformed.
func ReadStripe(body []byte, header string, secrets []string, now time.Time) (Event, error) {
	found := ErrBadSignature
	for _, secret := range secrets {
		// The version of the API is checked below, because older events can be parsed.
		event, err := webhook.ConstructEventWithOptions(body, header, secret, webhook.ConstructEventOptions{
			Tolerance: Tolerance, IgnoreAPIVersionMismatch: true,
		})
		switch {
		case errors.Is(err, webhook.ErrTooOld):
			found = ErrOldSignature
		case errors.Is(err, webhook.ErrInvalidHeader), errors.Is(err, webhook.ErrNoValidSignature), errors.Is(err, webhook.ErrNotSigned):
		case err != nil:
			return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
		case signedAt(header).After(now.Add(Tolerance)): // the library refuses only old ones
			return Event{}, ErrOldSignature
		case hasNUL(body):
			return Event{}, fmt.Errorf("%w: it contains a NUL character", ErrMalformed)
		default:
			return stripeEvent(&event)
		}
	}
	return Event{}, found
}

// ParseStripe parses an event that was verified before.
func ParseStripe(body []byte) (Event, error) {
	var event stripe.Event
	if err := json.Unmarshal(body, &event); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return stripeEvent(&event)
}

// hasNUL reports whether a text in the body may contain NUL, which the database cannot store.
func hasNUL(body []byte) bool { return bytes.Contains(body, []byte(`\u0000`)) }

func signedAt(header string) time.Time {
	for part := range strings.SplitSeq(header, ",") {
		if text, ok := strings.CutPrefix(part, "t="); ok {
			seconds, _ := strconv.ParseInt(text, 10, 64) // the library has parsed it
			return time.Unix(seconds, 0)
		}
	}
	return time.Time{}
}

// unread are events of subscriptions that have no effect, with the reason.
var unread = map[string]string{
	"customer.subscription.trial_will_end": "the trial ends soon; the plan changes when the provider changes the subscription",
	"subscription_schedule.":               "a schedule changes a plan when the provider changes the subscription",
	"invoice.":                             "only paid and failed invoices are used",
	"checkout.session.":                    "only completed checkouts are used",
	"charge.":                              "only refunded charges are used",
}

func stripeEvent(in *stripe.Event) (Event, error) {
	e := Event{ID: in.ID, Type: string(in.Type), At: time.Unix(in.Created, 0).UTC(), Live: &in.Livemode, APIVersion: in.APIVersion}
	if e.ID == "" || len(e.ID) > maxID || e.Type == "" || len(e.Type) > maxID || in.Created <= 0 || in.Created > maxTime || in.Data == nil || len(in.Data.Raw) == 0 {
		return Event{}, fmt.Errorf("%w: id, type, created and data.object are required", ErrMalformed)
	}
	switch e.Type {
	case "customer.subscription.created", "customer.subscription.updated", "customer.subscription.deleted",
		"customer.subscription.paused", "customer.subscription.resumed", "customer.subscription.pending_update_applied",
		"customer.subscription.pending_update_expired":
		e.subscription(in)
	case "invoice.payment_failed", "invoice.paid", "invoice.payment_succeeded":
		e.invoice(in.Data.Raw)
	case "customer.created", "customer.updated", "customer.deleted":
		e.customer(in)
	case "checkout.session.completed", "checkout.session.async_payment_succeeded":
		e.checkout(in.Data.Raw)
	case "invoice_payment.paid":
		e.payment(in.Data.Raw)
	case "charge.refunded":
		e.refund(in.Data.Raw)
	default:
		e.Why = "events of type " + e.Type + " are not used"
		for prefix, why := range unread {
			if strings.HasPrefix(e.Type, prefix) {
				e.Why = why
			}
		}
	}
	if len(e.Customer) > maxID || len(e.Subscription) > maxID || e.Purchase.long() {
		return Event{}, fmt.Errorf("%w: an id is longer than %d bytes", ErrMalformed, maxID)
	}
	return e, nil
}

const (
	maxID   = 255
	maxTime = 253402300799 // end of the year 9999
)

func (e *Event) unreadable(format string, args ...any) {
	e.Kind, e.Why = Unreadable, fmt.Sprintf(format, args...)
	if e.APIVersion != "" {
		e.Why += " (API version " + e.APIVersion + "; this release knows " + stripe.APIVersion + ")"
	}
}

// unknownForm says what of an object cannot be parsed, in the words of JSON: people read it in the
// outcome of the event.
func (e *Event) unknownForm(what string, err error) {
	why := what + " is not of a known form"
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		why += ": the type of " + wrong.Field + " is " + wrong.Value
	}
	e.unreadable("%s", why)
}

// reference is an id, or an expanded object with an id.
type reference string

// UnmarshalJSON parses both forms, and null.
func (r *reference) UnmarshalJSON(data []byte) error {
	var id string
	if json.Unmarshal(data, &id) == nil {
		*r = reference(id)
		return nil
	}
	var object struct {
		ID string `json:"id"`
	}
	err := json.Unmarshal(data, &object)
	*r = reference(object.ID)
	return err
}

// stripeSubscription is a subscription in the versions of the API since 2018. The period is on the
// subscription up to 2025-02-24, and on each item since 2025-03-31. stripe-go parses only the
// newest form.
type stripeSubscription struct {
	ID                 string            `json:"id"`
	Status             Status            `json:"status"`
	Customer           reference         `json:"customer"`
	Created            int64             `json:"created"`
	BillingCycleAnchor int64             `json:"billing_cycle_anchor"`
	CurrentPeriodStart int64             `json:"current_period_start"`
	Metadata           map[string]string `json:"metadata"`
	Items              struct {
		Data    []stripeItem `json:"data"`
		HasMore bool         `json:"has_more"`
	} `json:"items"`
	Plan     *stripePlan `json:"plan"` // in versions before items
	Quantity int64       `json:"quantity"`
}

type stripeItem struct {
	Price              *stripePlan `json:"price"`
	Plan               *stripePlan `json:"plan"` // in versions before prices
	Quantity           int64       `json:"quantity"`
	CurrentPeriodStart int64       `json:"current_period_start"`
	Deleted            bool        `json:"deleted"`
}

type stripePlan struct {
	ID      string    `json:"id"`
	Product reference `json:"product"`
}

var statuses = []Status{Active, Trialing, PastDue, Unpaid, Paused, Incomplete, IncompleteExpired, Canceled}

// ranks orders events of one second about one subscription.
var ranks = map[string]int{"customer.subscription.created": 0, "customer.subscription.deleted": 2}

func (e *Event) subscription(in *stripe.Event) {
	var sub stripeSubscription
	if err := json.Unmarshal(in.Data.Raw, &sub); err != nil {
		e.unknownForm("the subscription", err)
		return
	}
	e.Subscription, e.Customer = sub.ID, string(sub.Customer)
	snapshot, why := sub.snapshot()
	if why != "" {
		e.unreadable("%s", why)
		return
	}
	snapshot.At, snapshot.Event, snapshot.Rank = e.At.Unix(), e.ID, 1
	if rank, known := ranks[e.Type]; known {
		snapshot.Rank = rank
	}
	if e.Type == "customer.subscription.deleted" {
		snapshot.Status = Canceled // older versions keep the last status
	}
	snapshot.Was = snapshot.before(in.Data.PreviousAttributes)
	e.Kind, e.Snapshot = Changed, snapshot
}

// snapshot returns the subscription, or the reason why it cannot be parsed.
func (sub *stripeSubscription) snapshot() (s *Snapshot, why string) {
	switch {
	case sub.ID == "":
		return nil, "the subscription has no id"
	case sub.Customer == "":
		return nil, "the subscription has no customer"
	case !slices.Contains(statuses, sub.Status):
		return nil, fmt.Sprintf("the status %q is unknown", sub.Status)
	}
	s = &Snapshot{
		Status: sub.Status, Customer: string(sub.Customer), Created: sub.Created, Metadata: shortMetadata(sub.Metadata),
		Anchor: sub.BillingCycleAnchor,
	}
	if s.Anchor == 0 {
		s.Anchor = sub.CurrentPeriodStart
	}
	s.Partial = sub.Items.HasMore
	for _, i := range sub.Items.Data {
		price := i.Price
		if price == nil {
			price = i.Plan
		}
		switch {
		case price == nil || price.ID == "":
			return nil, "an item of the subscription has no price"
		case len(price.ID) > maxID || len(price.Product) > maxID:
			return nil, fmt.Sprintf("an id of the subscription is longer than %d bytes", maxID)
		case i.Deleted:
		case len(s.Items) == maxItems:
			s.Partial = true
		default:
			s.Items = append(s.Items, Item{
				Price: price.ID, Product: string(price.Product), Quantity: i.Quantity, Anchor: i.CurrentPeriodStart,
			})
		}
	}
	if len(s.Items) == 0 && sub.Plan != nil && sub.Plan.ID != "" && max(len(sub.Plan.ID), len(sub.Plan.Product)) <= maxID {
		s.Items = []Item{{Price: sub.Plan.ID, Product: string(sub.Plan.Product), Quantity: sub.Quantity}}
	}
	if len(s.Items) == 0 {
		return nil, "the subscription has no items"
	}
	if s.Anchor < 0 || s.Anchor > maxTime || s.Created < 0 || s.Created > maxTime {
		return nil, "a time of the subscription is out of range"
	}
	return s, ""
}

// What is kept of a provider's objects is bounded: states of subscriptions are kept for as long as
// their endpoint, and all those of a subject are read at once.
const (
	maxItems    = 100 // of a subscription. Stripe permits 20
	maxMetadata = 50  // entries, as at Stripe
	maxKeyName  = 160 // bytes of the name of an entry. Stripe permits 40 characters
	// maxText is the maximum length of a text that may name a subject, in bytes. It is longer than
	// any subject, so that what is too long for one stays too long.
	maxText = 512
)

// shortMetadata returns metadata within the bounds.
func shortMetadata(in map[string]string) map[string]string {
	if len(in) == 0 || len(in) > maxMetadata {
		return nil
	}
	out := make(map[string]string, len(in))
	for key, value := range in {
		if len(key) <= maxKeyName {
			out[key] = shortText(value)
		}
	}
	return out
}

// shortText returns at most maxText bytes of a text.
func shortText(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

// before returns the key of the previous values, or "" if the event does not have them.
func (a *Snapshot) before(previous map[string]any) string {
	status, changed := a.Status, false
	if text, ok := previous["status"].(string); ok {
		status, changed = Status(text), true
	}
	items := a.Items
	if list, ok := previous["items"].(map[string]any); ok {
		data, _ := list["data"].([]any)
		items, changed = nil, true
		for _, entry := range data {
			item, _ := entry.(map[string]any)
			price, _ := item["price"].(map[string]any)
			if price == nil {
				price, _ = item["plan"].(map[string]any)
			}
			id, _ := price["id"].(string)
			items = append(items, Item{Price: id})
		}
	}
	if !changed {
		return ""
	}
	return wasKey(status, items)
}

func (e *Event) invoice(raw json.RawMessage) {
	var invoice struct {
		Customer     reference `json:"customer"`
		Subscription reference `json:"subscription"` // up to 2025-02-24
		Parent       struct {
			SubscriptionDetails struct {
				Subscription reference `json:"subscription"`
			} `json:"subscription_details"`
		} `json:"parent"`
	}
	if err := json.Unmarshal(raw, &invoice); err != nil {
		e.unknownForm("the invoice", err)
		return
	}
	e.Customer, e.Subscription = string(invoice.Customer), string(invoice.Subscription)
	if e.Subscription == "" {
		e.Subscription = string(invoice.Parent.SubscriptionDetails.Subscription)
	}
	if e.Type != "invoice.payment_failed" {
		e.Purchase = invoicePurchase(raw)
	}
	switch {
	case e.Subscription == "" && e.Purchase != nil:
		e.Kind = Purchased
	case e.Subscription == "":
		e.Why = "the invoice has no subscription"
	case e.Type == "invoice.payment_failed":
		e.Kind = PaymentFailed
	default:
		e.Kind = PaymentMade
	}
}

func (e *Event) customer(in *stripe.Event) {
	var customer struct {
		ID       string            `json:"id"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(in.Data.Raw, &customer); err != nil || customer.ID == "" {
		e.unreadable("the customer is not of a known form")
		return
	}
	e.Kind, e.Customer, e.Metadata = Customer, customer.ID, shortMetadata(customer.Metadata)
	e.Gone = e.Type == "customer.deleted"
	if e.Type == "customer.updated" {
		e.Rank, e.Was = 1, previousMetadata(customer.Metadata, in.Data.PreviousAttributes)
	}
}

func (e *Event) checkout(raw json.RawMessage) {
	var session struct {
		Customer     reference         `json:"customer"`
		Subscription reference         `json:"subscription"`
		Reference    string            `json:"client_reference_id"`
		Metadata     map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &session); err != nil {
		e.unknownForm("the checkout", err)
		return
	}
	e.Customer, e.Subscription, e.Purchase = string(session.Customer), string(session.Subscription), checkoutPurchase(raw)
	linked := e.Customer != "" && (session.Reference != "" || len(session.Metadata) > 0)
	switch {
	case e.Purchase != nil && !linked:
		e.Kind = Purchased
	case e.Customer == "":
		e.Why = "the checkout has no customer"
	case !linked:
		e.Why = "the checkout has neither client_reference_id nor metadata"
	default:
		e.Kind, e.Reference, e.Metadata = Linked, shortText(session.Reference), shortMetadata(session.Metadata)
	}
}
