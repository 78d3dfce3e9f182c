package subscription

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of an event.
type Kind int

// The kinds of events.
const (
	Ignored       Kind = iota // it has no effect; Why has the reason
	Unreadable                // it is relevant, but cannot be parsed; Why has the reason
	Changed                   // a snapshot of a subscription
	PaymentFailed             // an invoice of a subscription was not paid
	PaymentMade               // an invoice of a subscription was paid
	Customer                  // data of a customer
	Linked                    // a checkout names the subject of a customer
	Granted                   // a grant of credits
	Purchased                 // a payment without a subscription
	Refunded                  // a payment was refunded
)

// Event is a message of a provider.
type Event struct {
	ID, Type   string
	At         time.Time // the provider's time, in seconds
	Live       *bool     // whether it is in live mode; nil if the provider has no modes
	APIVersion string

	Kind         Kind
	Why          string // of an ignored or unreadable event
	Customer     string
	Subscription string
	Snapshot     *Snapshot         // of Changed
	Metadata     map[string]string // of Customer
	Rank         int               // of Customer: orders those of one second
	Was          string            // of Customer: the key of the previous metadata; "" if unknown
	Gone         bool              // of Customer: whether it was deleted
	Reference    string            // of Linked: the subject
	Effective    time.Time         // of a generic event: when it takes effect; zero for immediately
	Subject      string            // of a generic event
	Grant        *Grant            // of Granted
	Purchase     *Purchase         // what was paid for, of PaymentMade, Linked, Purchased and Refunded; may be nil
}

// Grant is credits that an event grants.
type Grant struct {
	Rule      string
	Units     int64
	ExpiresAt *time.Time
	Reference string // "": the event grants once
}

// Snapshot is a subscription at one time.
type Snapshot struct {
	At       int64  `json:"at"`   // the provider's time, seconds since 1970
	Rank     int    `json:"rank"` // orders snapshots of one second: the higher rank is newer; of a generic event: 1 and the microseconds
	Event    string `json:"event"`
	Status   Status `json:"status"`
	Customer string `json:"customer,omitempty"`
	Items    []Item `json:"items,omitempty"`
	Partial  bool   `json:"partial,omitempty"` // there are more items
	Plan     string `json:"plan,omitempty"`    // of a generic event: the plan itself, instead of items
	Created  int64  `json:"created,omitempty"`
	Anchor   int64  `json:"anchor,omitempty"` // start of the billing cycle, seconds since 1970; 0 if unknown
	// Metadata may have the subject.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Arrived is when Weir received a generic event, microseconds since 1970. It orders events that
	// take effect at the same time; 0 for events of a provider with an order of its own.
	Arrived int64 `json:"arrived,omitempty"`
	// Was is the key of the previous values, if the provider sends them. It orders snapshots of one
	// second.
	Was string `json:"was,omitempty"`
	// Key is the key of a snapshot that is kept without its items.
	Key string `json:"key,omitempty"`
}

// Item is one price in a subscription.
type Item struct {
	Price    string `json:"price"`
	Product  string `json:"product,omitempty"`
	Quantity int64  `json:"quantity"`
	Anchor   int64  `json:"anchor,omitempty"`
}

// Status is the status of a subscription, with Stripe's values.
type Status string

// The statuses with different effects on a plan.
const (
	Active            Status = "active"
	Trialing          Status = "trialing"
	PastDue           Status = "past_due"
	Unpaid            Status = "unpaid"
	Paused            Status = "paused"
	Incomplete        Status = "incomplete"
	IncompleteExpired Status = "incomplete_expired"
	Canceled          Status = "canceled"
)

// State is what is known of one subscription.
type State struct {
	Newest *Snapshot `json:"newest,omitempty"`
	// Good is when payments were last known to be in order, seconds since 1970, and Paid when the
	// last one was made. Failing has the times of failures since Good, in order. Together they give
	// the beginning of the current failure, in whatever order the events arrive: see failing.
	Good    int64   `json:"good,omitempty"`
	Paid    int64   `json:"paid,omitempty"`
	Failing []int64 `json:"failing,omitempty"`
	// Recent has the newest snapshot of each second since Good that has one and is before Newest's,
	// in order. Only what orders them is kept.
	Recent []*Snapshot `json:"recent,omitempty"`
	// Gone is when the customer, and all their subscriptions, were deleted; 0 for never.
	Gone int64 `json:"gone,omitempty"`
	// Gave means that it gave its subject a plan at some time, so that its end takes the plan away
	// even if no price is mapped any more. The caller sets it.
	Gave bool `json:"gave,omitempty"`
	// Kept is what the subject had when the subscription was last interrupted, so that it has the
	// same version of the plan after a pause or a late payment. The caller sets it.
	Kept *Kept `json:"kept,omitempty"`
}

// Kept is a version of a plan.
type Kept struct {
	Plan    string `json:"plan"`
	Version int    `json:"version"`
}

// Interrupted reports whether the subscription may still give its plan again: it is paused or not
// paid, and was not canceled.
func (s *State) Interrupted() bool {
	if s.Newest == nil || s.Gone != 0 {
		return false
	}
	switch s.Newest.Status {
	case Active, Trialing, PastDue, Unpaid, Paused:
		return true
	}
	return false
}

// maxFailing bounds the stored failures, and the snapshots: a provider gives up after a dozen
// attempts.
const maxFailing = 100

// Merge adds an event and reports whether it is, or was before, the newest of its kind. An older
// event has no effect. Merging the same event twice changes nothing.
func (s *State) Merge(e *Event) (newest bool) {
	at := e.At.Unix()
	switch e.Kind {
	case PaymentFailed:
		s.fail(at)
		failing := s.failing()
		return len(failing) > 0 && at == failing[len(failing)-1]
	case PaymentMade:
		newest = at >= s.Good
		s.Paid = max(s.Paid, at)
		s.good(at)
		return newest
	case Changed:
		return s.Observe(e.Snapshot)
	}
	return false
}

// Observe adds a snapshot in the same way as Merge.
func (s *State) Observe(snapshot *Snapshot) (newest bool) {
	switch snapshot.Status {
	case Active, Trialing:
		s.good(snapshot.At)
	case PastDue, Unpaid:
		s.fail(snapshot.At)
	}
	switch {
	case s.Newest == nil || s.Newest.Event == snapshot.Event:
		s.Newest = snapshot
		return true
	case snapshot.newer(s.Newest):
		if s.Newest.At < snapshot.At {
			s.remember(s.Newest)
		}
		s.Newest = snapshot
		return true
	case s.Newest.At > snapshot.At:
		s.remember(snapshot)
	}
	return false
}

// remember keeps a snapshot of a second before that of Newest, if it is the newest of its second.
func (s *State) remember(snapshot *Snapshot) {
	if snapshot.At < s.Good {
		return
	}
	short := &Snapshot{
		At: snapshot.At, Rank: snapshot.Rank, Event: snapshot.Event, Status: snapshot.Status, Arrived: snapshot.Arrived, Was: snapshot.Was,
		Key: snapshot.key(),
	}
	i, found := slices.BinarySearchFunc(s.Recent, short.At, func(r *Snapshot, at int64) int { return cmp.Compare(r.At, at) })
	switch {
	case !found:
		s.Recent = slices.Insert(s.Recent, i, short)
	case short.Event == s.Recent[i].Event || short.newer(s.Recent[i]):
		s.Recent[i] = short
	}
	if len(s.Recent) > maxFailing {
		s.Recent = slices.Delete(s.Recent, maxFailing/2, maxFailing/2+1)
	}
}

func (s *State) good(at int64) {
	s.Good = max(s.Good, at)
	s.Failing = slices.DeleteFunc(s.Failing, func(t int64) bool { return t < s.Good })
	s.Recent = slices.DeleteFunc(s.Recent, func(r *Snapshot) bool { return r.At < s.Good })
}

func (s *State) fail(at int64) {
	if at < s.Good {
		return
	}
	i, found := slices.BinarySearch(s.Failing, at)
	if !found {
		s.Failing = slices.Insert(s.Failing, i, at)
	}
	if len(s.Failing) > maxFailing { // the first one begins the grace period, and the last one is the current state
		s.Failing = slices.Delete(s.Failing, maxFailing/2, maxFailing/2+1)
	}
}

// failing returns the failures that count. A provider's time has seconds: of the second of Good, a
// payment decides, or else its newest snapshot, because a failure changes the subscription, too.
func (s *State) failing() []int64 {
	if len(s.Failing) > 0 && s.Failing[0] == s.Good && s.settled() {
		return s.Failing[1:]
	}
	return s.Failing
}

// settled reports whether payments were in order at the end of the second of Good.
func (s *State) settled() bool {
	if s.Paid == s.Good {
		return true
	}
	newest := s.Newest
	if len(s.Recent) > 0 && s.Recent[0].At == s.Good {
		newest = s.Recent[0]
	}
	return newest == nil || newest.At != s.Good || newest.Status != PastDue && newest.Status != Unpaid
}

// Tied reports whether the provider's time does not order the two snapshots.
func (s *State) Tied(snapshot *Snapshot) bool {
	return s.Newest != nil && s.Newest.At == snapshot.At && s.Newest.Rank == snapshot.Rank && s.Newest.Event != snapshot.Event
}

// newer orders snapshots: by the provider's time, then by rank, then by the previous values, then
// by when they arrived, and last by the event's id, so that the order is always the same.
func (a *Snapshot) newer(b *Snapshot) bool {
	if a.At != b.At {
		return a.At > b.At
	}
	if a.Rank != b.Rank {
		return a.Rank > b.Rank
	}
	aAfter, bAfter := a.Was != "" && shortKey(a.Was) == b.key(), b.Was != "" && shortKey(b.Was) == a.key()
	if aAfter != bAfter {
		return aAfter
	}
	if a.Arrived != b.Arrived {
		return a.Arrived > b.Arrived
	}
	return a.Event > b.Event
}

// key identifies the snapshot in Was of a later one.
func (a *Snapshot) key() string { return cmp.Or(a.Key, wasKey(a.Status, a.Items)) }

func wasKey(status Status, items []Item) string {
	var b strings.Builder
	b.WriteString(string(status))
	for _, i := range items {
		b.WriteString("\n" + i.Price)
	}
	return shortKey(b.String())
}

// maxKey is the maximum length of a key that is kept as it is, in bytes.
const maxKey = 160

// shortKey returns a long key as a digest: a state keeps many of them.
func shortKey(key string) string {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256 " + hex.EncodeToString(sum[:])
}

// Tier is the plan that a price gives.
type Tier struct {
	Plan     string
	Multiply bool // the plan's limits are multiplied by the quantity
	Priority int  // the plan with the highest priority is used
}

// Lookup returns the tier of a price or a product, false if there is none.
type Lookup func(price string) (Tier, bool)

// Right is what a subscription gives.
type Right int

// The rights, in ascending order. The highest one of a subject's subscriptions counts.
const (
	Unknown  Right = iota // unknown: no event yet, or no mapped price, unless it gave a plan and has ended
	Pending               // the first payment is not made yet
	Ended                 // it has ended: the fallback plan applies
	Entitled              // it gives a plan
)

// Standing is what a subscription gives at one time.
type Standing struct {
	Right      Right
	Plan       string // of Entitled
	Multiplier int64  // of Entitled: 1 or more
	Priority   int
	Created    int64
	Anchor     time.Time // of the billing cycle; zero if unknown
	Until      time.Time // end of the grace period, and of the standing; zero for never
	Why        string    // the reason as text
	Unmapped   []string  // prices without a plan, if no price has one and that matters
	Partial    bool      // Unknown, because some of its items are
}

// MaxMultiplier is the maximum multiplier of limits.
const MaxMultiplier = 1_000_000

// Standing returns what the subscription gives at a time.
func (s *State) Standing(now time.Time, grace time.Duration, lookup Lookup) Standing {
	n := s.Newest
	if n == nil {
		return Standing{Why: "no event has described the subscription yet"}
	}
	out := Standing{Multiplier: 1, Created: n.Created, Plan: n.Plan}
	anchor, quantity := n.Anchor, int64(1)
	switch {
	case n.Plan != "" && len(n.Items) > 0: // a generic event with a quantity
		quantity = n.Items[0].Quantity
	case n.Partial:
		s.judgePartial(&out, now, grace)
		return out
	case n.Plan == "":
		item, tier, found := choose(n.Items, lookup)
		if !found {
			s.judgeUnmapped(&out, now, grace)
			return out
		}
		out.Plan, out.Priority = tier.Plan, tier.Priority
		if tier.Multiply {
			quantity = item.Quantity
		}
		anchor = cmp.Or(anchor, item.Anchor)
	}
	if anchor != 0 {
		out.Anchor = time.Unix(anchor, 0).UTC()
	}
	s.judge(&out, now, grace)
	out.Multiplier = min(max(quantity, 1), MaxMultiplier)
	if out.Right == Entitled && out.Multiplier != quantity {
		out.Why += fmt.Sprintf("; the quantity %d counts as %d", quantity, out.Multiplier)
	}
	return out
}

// judgePartial sets the right if only the first items are known. One of the others may give another
// plan, so it is unknown which plan the subscription gives; its end is not.
func (s *State) judgePartial(out *Standing, now time.Time, grace time.Duration) {
	s.judge(out, now, grace)
	if out.Right == Entitled {
		out.Right, out.Partial = Unknown, true
		out.Why = fmt.Sprintf("only the first %d items of the subscription are known, and another one may give the plan: "+
			"add an api_key with read access to subscriptions to the endpoint, then replay the event", len(s.Newest.Items))
		return
	}
	s.judgeEnd(out)
}

// judgeUnmapped sets the right if no price is mapped. An end needs no mapping, but concerns only a
// subscription that gave a plan before: the others are of products that have no plan.
func (s *State) judgeUnmapped(out *Standing, now time.Time, grace time.Duration) {
	s.judge(out, now, grace)
	if out.Right == Ended {
		s.judgeEnd(out)
		return
	}
	for _, i := range s.Newest.Items { // Until stays, as the end of the grace period may take the plan away
		out.Unmapped = append(out.Unmapped, i.Price)
	}
	out.Right, out.Why = Unknown, "no price of the subscription is mapped to a plan: "+strings.Join(out.Unmapped, ", ")
}

// judgeEnd sets the right of an ended subscription by whether it gave a plan before.
func (s *State) judgeEnd(out *Standing) {
	if out.Right == Ended && !s.Gave {
		out.Right = Unknown
		out.Why += "; it never gave a plan"
	}
}

// judge sets the right, by the status and the time of failed payments.
func (s *State) judge(out *Standing, now time.Time, grace time.Duration) {
	if s.Gone != 0 {
		out.Right, out.Why = Ended, "the customer was deleted"
		return
	}
	switch n := s.Newest; n.Status {
	case Active, Trialing, PastDue, Unpaid:
		out.Right, out.Why = Entitled, "the subscription is "+string(n.Status)
		if n.Plan != "" { // an event of the generic webhook, which knows no subscriptions
			out.Why = "the newest event names plan " + n.Plan
		}
		failing := s.failing()
		if len(failing) == 0 {
			if n.Status == PastDue || n.Status == Unpaid { // a payment succeeded in the same second or later
				out.Why = "the last payment succeeded"
			}
			return
		}
		end := time.Unix(failing[0], 0).Add(grace).UTC()
		if now.Before(end) {
			out.Until, out.Why = end, "a payment failed; the grace period ends at "+end.Format(time.RFC3339)
			return
		}
		out.Right, out.Why = Ended, "a payment failed and the grace period ended at "+end.Format(time.RFC3339)
	case Incomplete:
		out.Right, out.Why = Pending, "the first payment is not made yet"
	default:
		out.Right, out.Why = Ended, "the subscription is "+string(n.Status)
	}
}

// choose returns the item that gives the plan: of those whose price or product is mapped, the one
// with the highest priority, or the first of several.
func choose(items []Item, lookup Lookup) (item Item, tier Tier, found bool) {
	for _, i := range items {
		t, ok := lookup(i.Price)
		if !ok && i.Product != "" {
			t, ok = lookup(i.Product)
		}
		if ok && (!found || t.Priority > tier.Priority) {
			item, tier, found = i, t, true
		}
	}
	return item, tier, found
}

// Better reports whether a takes precedence over b for a subject with both: the higher right, then
// the higher priority, then the newer subscription.
func (a Standing) Better(b Standing) bool {
	if a.Right != b.Right {
		return a.Right > b.Right
	}
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	return a.Created > b.Created
}
