package subscription_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/subscription"
)

var epoch = time.Unix(1_700_000_000, 0).UTC()

func snapshot(id string, second int64, status subscription.Status, prices ...string) *subscription.Event {
	s := &subscription.Snapshot{At: epoch.Unix() + second, Rank: 1, Event: id, Status: status, Customer: "cus_1"}
	for _, p := range prices {
		s.Items = append(s.Items, subscription.Item{Price: p, Quantity: 3})
	}
	return &subscription.Event{ID: id, At: epoch.Add(time.Duration(second) * time.Second), Kind: subscription.Changed, Snapshot: s}
}

func payment(second int64, made bool) *subscription.Event {
	kind := subscription.PaymentFailed
	if made {
		kind = subscription.PaymentMade
	}
	return &subscription.Event{At: epoch.Add(time.Duration(second) * time.Second), Kind: kind}
}

func tiers(price string) (subscription.Tier, bool) {
	t, ok := map[string]subscription.Tier{
		"pro": {Plan: "pro"}, "scale": {Plan: "scale", Priority: 1}, "seats": {Plan: "team", Multiply: true}, "other": {Plan: "other"},
	}[price]
	return t, ok
}

const day = 24 * 3600

// The standing after each of these histories.
func TestStanding(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []*subscription.Event
		at     int64 // seconds after the first event
		right  subscription.Right
		plan   string
		times  int64
		until  int64
	}{
		"active":                          {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro")}, 5, subscription.Entitled, "pro", 1, 0},
		"on trial":                        {[]*subscription.Event{snapshot("a", 0, subscription.Trialing, "pro")}, 5, subscription.Entitled, "pro", 1, 0},
		"upgraded":                        {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), snapshot("b", 9, subscription.Active, "scale")}, 9, subscription.Entitled, "scale", 1, 0},
		"the highest priority of several": {[]*subscription.Event{snapshot("a", 0, subscription.Active, "addon", "pro", "scale")}, 0, subscription.Entitled, "scale", 1, 0},
		"the first of equal priority":     {[]*subscription.Event{snapshot("a", 0, subscription.Active, "addon", "other", "pro")}, 0, subscription.Entitled, "other", 1, 0},
		"seats":                           {[]*subscription.Event{snapshot("a", 0, subscription.Active, "seats")}, 0, subscription.Entitled, "team", 3, 0},
		"no price is mapped":              {[]*subscription.Event{snapshot("a", 0, subscription.Active, "addon")}, 0, subscription.Unknown, "", 1, 0},
		"another product ended":           {[]*subscription.Event{snapshot("a", 0, subscription.Canceled, "addon")}, 0, subscription.Unknown, "", 1, 0},
		"within the grace period": {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), payment(10, false), snapshot("b", 10, subscription.PastDue, "pro")},
			10 + 3*day - 1, subscription.Entitled, "pro", 1, 10 + 3*day},
		"the grace period ended": {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), payment(10, false), snapshot("b", 10, subscription.PastDue, "pro")},
			10 + 3*day, subscription.Ended, "pro", 1, 0},
		"a second failure does not prolong it": {[]*subscription.Event{snapshot("a", 0, subscription.PastDue, "pro"), payment(2*day, false)},
			3 * day, subscription.Ended, "pro", 1, 0},
		"only an invoice failed": {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), payment(10, false)}, 3 * day, subscription.Entitled, "pro", 1, 10 + 3*day},
		"paid again":             {[]*subscription.Event{snapshot("a", 0, subscription.PastDue, "pro"), payment(day, true)}, 9 * day, subscription.Entitled, "pro", 1, 0},
		"paid, and failed again": {[]*subscription.Event{snapshot("a", 0, subscription.PastDue, "pro"), payment(day, true), payment(5*day, false)},
			6 * day, subscription.Entitled, "pro", 1, 8 * day},
		"given up by the provider": {[]*subscription.Event{snapshot("a", 0, subscription.PastDue, "pro"), snapshot("b", day, subscription.Unpaid, "pro")}, 2 * day, subscription.Entitled, "pro", 1, 3 * day},
		"canceled":                 {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), snapshot("b", 1, subscription.Canceled, "pro")}, 1, subscription.Ended, "pro", 1, 0},
		"paused":                   {[]*subscription.Event{snapshot("a", 0, subscription.Active, "pro"), snapshot("b", 1, subscription.Paused, "pro")}, 1, subscription.Ended, "pro", 1, 0},
		"resumed":                  {[]*subscription.Event{snapshot("b", 1, subscription.Paused, "pro"), snapshot("c", 2, subscription.Active, "pro")}, 2, subscription.Entitled, "pro", 1, 0},
		"the first payment is due": {[]*subscription.Event{snapshot("a", 0, subscription.Incomplete, "pro")}, 1, subscription.Pending, "pro", 1, 0},
		"it was never paid":        {[]*subscription.Event{snapshot("a", 0, subscription.IncompleteExpired, "pro")}, 1, subscription.Ended, "pro", 1, 0},
		"only an invoice arrived":  {[]*subscription.Event{payment(3, true)}, 4, subscription.Unknown, "", 0, 0},
	} {
		var s subscription.State
		for _, e := range c.events {
			s.Merge(e)
		}
		got := s.Standing(epoch.Add(time.Duration(c.at)*time.Second), 3*day*time.Second, tiers)
		require.Equal(t, c.right, got.Right, "%s: %s", name, got.Why)
		require.NotEmpty(t, got.Why, name)
		require.Equal(t, c.plan, got.Plan, name)
		require.Equal(t, c.times, got.Multiplier, name)
		if c.until == 0 {
			require.True(t, got.Until.IsZero(), name)
		} else {
			require.Equal(t, epoch.Add(time.Duration(c.until)*time.Second), got.Until, name)
		}
	}
}

// A quantity out of range counts as the nearest one in range, and the reason says so.
func TestQuantityOutOfRange(t *testing.T) {
	t.Parallel()
	for quantity, want := range map[int64]string{
		1_000_000_000: "the subscription is active; the quantity 1000000000 counts as 1000000",
		0:             "the subscription is active; the quantity 0 counts as 1", -1: "the subscription is active; the quantity -1 counts as 1",
		1_000_000: "the subscription is active",
	} {
		e := snapshot("a", 0, subscription.Active, "seats")
		e.Snapshot.Items[0].Quantity = quantity
		var s subscription.State
		s.Merge(e)
		standing := s.Standing(epoch, 0, tiers)
		require.Equal(t, want, standing.Why)
		require.Equal(t, min(max(quantity, 1), 1_000_000), standing.Multiplier)
	}
}

// Providers send events late, twice and in any order. The resulting state does not depend on that.
func TestMergeInAnyOrder(t *testing.T) {
	t.Parallel()
	statuses := []subscription.Status{subscription.Active, subscription.Trialing, subscription.PastDue, subscription.Unpaid, subscription.Paused, subscription.Canceled}
	rapid.Check(t, func(t *rapid.T) {
		var events []*subscription.Event
		for i := range rapid.IntRange(1, 25).Draw(t, "events") {
			at := rapid.Int64Range(0, 12).Draw(t, "at") // so that many are in the same second
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				events = append(events, payment(at, true))
			case 1:
				events = append(events, payment(at, false))
			default:
				e := snapshot("evt_"+strconv.Itoa(i), at, rapid.SampledFrom(statuses).Draw(t, "status"), "pro")
				e.Snapshot.Rank = rapid.IntRange(0, 2).Draw(t, "rank")
				events = append(events, e)
			}
		}
		merge := func(list []*subscription.Event) string {
			var s subscription.State
			for _, e := range list {
				s.Merge(e)
			}
			text, err := json.Marshal(s)
			require.NoError(t, err)
			return string(text)
		}
		want := merge(events)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		shuffled := append(append([]*subscription.Event{}, events...), events...) // each of them twice
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		require.Equal(t, want, merge(shuffled))
	})
}

// The previous values order two changes within one second.
func TestSnapshotsOfOneSecond(t *testing.T) {
	t.Parallel()
	first, second := snapshot("evt_z", 5, subscription.Active, "pro"), snapshot("evt_a", 5, subscription.Active, "scale")
	second.Snapshot.Was = "active\npro"
	for _, order := range [][]*subscription.Event{{first, second}, {second, first}} {
		var s subscription.State
		s.Merge(order[0])
		require.True(t, s.Tied(order[1].Snapshot))
		s.Merge(order[1])
		require.Equal(t, "scale", s.Newest.Items[0].Price)
	}
}

// Stripe's times have seconds. An upgrade, the failure of its payment, and the change to past_due
// often have the same one: the newest snapshot decides, unless a payment was made in it.
func TestFailureInTheSecondOfAChange(t *testing.T) {
	t.Parallel()
	upgraded, failed, made := snapshot("evt_b", 5, subscription.Active, "scale"), payment(5, false), payment(5, true)
	overdue := snapshot("evt_a", 5, subscription.PastDue, "scale")
	overdue.Snapshot.Was = "active\nscale"
	unpaid := snapshot("evt_c", 5+day, subscription.Unpaid, "scale")
	renewed := snapshot("evt_d", 5+2*day, subscription.Active, "scale")
	for name, c := range map[string]struct {
		events []*subscription.Event
		until  int64 // seconds after the epoch; 0: no payment failed
	}{
		"past due":              {[]*subscription.Event{upgraded, failed, overdue}, 5 + 3*day},
		"without the invoice":   {[]*subscription.Event{upgraded, overdue}, 5 + 3*day},
		"later changes":         {[]*subscription.Event{upgraded, failed, overdue, unpaid}, 5 + 3*day},
		"only a change":         {[]*subscription.Event{upgraded, failed}, 0},
		"paid in it":            {[]*subscription.Event{upgraded, failed, overdue, made}, 0},
		"renewed":               {[]*subscription.Event{upgraded, failed, overdue, unpaid, renewed}, 0},
		"paid in it, and later": {[]*subscription.Event{upgraded, failed, overdue, made, unpaid}, 5 + 4*day},
	} {
		for range 50 { // in any order
			rand.Shuffle(len(c.events), func(i, j int) { c.events[i], c.events[j] = c.events[j], c.events[i] })
			var s subscription.State
			for _, e := range c.events {
				s.Merge(e)
			}
			got := s.Standing(epoch.Add(2*day*time.Second), 3*day*time.Second, tiers)
			require.Equal(t, subscription.Entitled, got.Right, name)
			if c.until == 0 {
				require.True(t, got.Until.IsZero(), "%s: %s", name, got.Why)
			} else {
				require.Equal(t, epoch.Add(time.Duration(c.until)*time.Second), got.Until, "%s: %s", name, got.Why)
			}
		}
	}
}

// However large the objects of a provider are, the state of a subscription is small: it is kept for
// years, and those of a subject are read together.
func TestStateIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 249)
	var items []obj
	for n := range 101 {
		items = append(items, obj{"price": obj{"id": fmt.Sprintf("p%04d_%s", n, long), "product": fmt.Sprintf("p%04d_%s", n, long)}, "quantity": 1})
	}
	metadata := obj{"user": strings.Repeat("é", 10_000), strings.Repeat("k", 1000): "of a long name"}
	for n := range 40 {
		metadata[fmt.Sprint(n)] = strings.Repeat("v", 1000)
	}
	body, err := json.Marshal(obj{"id": "evt", "type": "customer.subscription.updated", "created": epoch.Unix(), "data": obj{
		"object":              obj{"id": "sub_1", "customer": "cus_1", "status": "past_due", "items": obj{"data": items}, "metadata": metadata},
		"previous_attributes": obj{"status": "active", "items": obj{"data": items}},
	}})
	require.NoError(t, err)
	e, err := subscription.ParseStripe(body)
	require.NoError(t, err)
	require.Equal(t, subscription.Changed, e.Kind, e.Why)
	var s subscription.State
	for i := range int64(150) {
		one := *e.Snapshot
		one.At, one.Event = epoch.Unix()+i, fmt.Sprintf("evt_%0250d", i)
		s.Observe(&one)
	}
	require.Len(t, s.Newest.Items, 100)
	require.True(t, s.Newest.Partial)
	require.Equal(t, strings.Repeat("é", 256), s.Newest.Metadata["user"], "still too long for a subject")
	require.Len(t, s.Newest.Metadata, 41)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.Less(t, len(text), 200<<10)
	require.Len(t, s.Recent, 100)
}

// Events with many items are ordered by their previous values, too.
func TestSnapshotsWithManyItems(t *testing.T) {
	t.Parallel()
	prices := func(first string) (out []any) {
		for i := range 20 {
			out = append(out, map[string]any{"price": map[string]any{"id": first + strconv.Itoa(i)}})
		}
		return out
	}
	event := func(id, first, previous string) *subscription.Event {
		data := map[string]any{"object": map[string]any{
			"id": "sub_1", "customer": "cus_1", "status": "active", "items": map[string]any{"data": prices(first)},
		}}
		if previous != "" {
			data["previous_attributes"] = map[string]any{"items": map[string]any{"data": prices(previous)}}
		}
		body, err := json.Marshal(map[string]any{"id": id, "type": "customer.subscription.updated", "created": epoch.Unix(), "data": data})
		require.NoError(t, err)
		e, err := subscription.ParseStripe(body)
		require.NoError(t, err)
		return &e
	}
	first, second := event("evt_z", "price_of_the_old_catalog_", ""), event("evt_a", "price_of_the_new_catalog_", "price_of_the_old_catalog_")
	require.Less(t, len(second.Snapshot.Was), 100)
	stored := *second.Snapshot
	stored.Was = "active" // as the releases before stored it
	for i := range 20 {
		stored.Was += "\nprice_of_the_old_catalog_" + strconv.Itoa(i)
	}
	before := *second
	before.Snapshot = &stored
	for _, order := range [][]*subscription.Event{{first, second}, {second, first}, {first, &before}, {&before, first}} {
		var s subscription.State
		s.Merge(order[0])
		s.Merge(order[1])
		require.Equal(t, "price_of_the_new_catalog_0", s.Newest.Items[0].Price)
	}
}
