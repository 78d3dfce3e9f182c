package subscription_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/internal/subscription"
)

type obj = map[string]any

// customer is an event of a second about the metadata of a customer. previous is null for an event
// without previous attributes.
func customer(t require.TestingT, id, typ string, metadata, previous obj) *subscription.Event {
	data := obj{"object": obj{"id": "cus_1", "metadata": metadata}}
	if previous != nil {
		data["previous_attributes"] = previous
	}
	body, err := json.Marshal(obj{"id": id, "type": typ, "created": epoch.Unix(), "data": data})
	require.NoError(t, err)
	e, err := subscription.ParseStripe(body)
	require.NoError(t, err)
	require.Equal(t, subscription.Customer, e.Kind, e.Why)
	return &e
}

// moved is a change of the subject of a customer. from is nil if there was none.
func moved(t require.TestingT, id string, from, to any) *subscription.Event {
	return customer(t, id, "customer.updated", obj{"user": to, "team": "red"}, obj{"metadata": obj{"user": from}, "email": "a@example.com"})
}

// inEveryOrder calls each with all orders of the events.
func inEveryOrder(events []*subscription.Event, each func([]*subscription.Event)) {
	var permute func(n int)
	permute = func(n int) {
		if n == len(events) {
			each(events)
			return
		}
		for i := n; i < len(events); i++ {
			events[n], events[i] = events[i], events[n]
			permute(n + 1)
			events[n], events[i] = events[i], events[n]
		}
	}
	permute(0)
}

// The time of an event has seconds. Events about a customer in one second give the same facts for
// every order, whatever their ids are: those of the last change.
func TestCustomerEventsOfOneSecond(t *testing.T) {
	t.Parallel()
	none := obj{}
	created := customer(t, "evt_z", "customer.created", none, nil)
	elsewhere := func(id, user string) *subscription.Event { // a change of something else
		return customer(t, id, "customer.updated", obj{"user": user, "team": "red"}, obj{"email": "b@example.com"})
	}
	for name, c := range map[string]struct {
		events []*subscription.Event
		want   string
	}{
		"created and changed":           {[]*subscription.Event{created, moved(t, "evt_a", nil, "ann")}, "ann"},
		"changed twice":                 {[]*subscription.Event{moved(t, "evt_b", "ann", "bob"), moved(t, "evt_a", "bob", "cyd")}, "cyd"},
		"the ids in order":              {[]*subscription.Event{moved(t, "evt_a", "ann", "bob"), moved(t, "evt_b", "bob", "cyd")}, "cyd"},
		"the first and the last differ": {[]*subscription.Event{created, moved(t, "evt_d", nil, "ann"), moved(t, "evt_b", "ann", "bob"), moved(t, "evt_a", "bob", "cyd")}, "cyd"},
		"there and back, and on":        {[]*subscription.Event{moved(t, "evt_d", "ann", "bob"), moved(t, "evt_c", "bob", "ann"), moved(t, "evt_a", "ann", "cyd")}, "cyd"},
		"something else, before":        {[]*subscription.Event{elsewhere("evt_z", "ann"), moved(t, "evt_a", "ann", "bob")}, "bob"},
		"something else, between":       {[]*subscription.Event{moved(t, "evt_b", "ann", "bob"), elsewhere("evt_z", "bob"), moved(t, "evt_a", "bob", "cyd")}, "cyd"},
		"there and back":                {[]*subscription.Event{moved(t, "evt_b", "ann", "bob"), moved(t, "evt_a", "bob", "ann")}, "bob"},
		"one is missing":                {[]*subscription.Event{moved(t, "evt_b", "ann", "bob"), moved(t, "evt_a", "cyd", "dot")}, "bob"},
		"nothing says what was before":  {[]*subscription.Event{customer(t, "evt_a", "customer.updated", obj{"user": "ann"}, nil), customer(t, "evt_b", "customer.updated", obj{"user": "bob"}, nil)}, "bob"},
	} {
		stored := ""
		inEveryOrder(c.events, func(events []*subscription.Event) {
			var f subscription.Facts
			for _, e := range append(append([]*subscription.Event{}, events...), events[0]) { // one of them twice
				before := f.Metadata["user"]
				newest := f.Merge(e)
				require.True(t, newest || before == f.Metadata["user"], "%s: a change is the newest", name)
			}
			require.Equal(t, c.want, f.Metadata["user"], "%s: %v", name, ids(events))
			text, err := json.Marshal(f)
			require.NoError(t, err)
			if stored == "" {
				stored = string(text)
			}
			require.Equal(t, stored, string(text), name)
		})
	}
}

func ids(events []*subscription.Event) (out []string) {
	for _, e := range events {
		out = append(out, e.ID)
	}
	return out
}

// However many events a second has, and whether or not they follow each other, the facts are the
// same for every order.
func TestFactsInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		users := rapid.SampledFrom([]string{"ann", "bob", "cyd", "dot"})
		var events []*subscription.Event
		for i := range rapid.IntRange(1, 14).Draw(t, "events") {
			e := moved(t, fmt.Sprintf("evt_%02d", i), users.Draw(t, "from"), users.Draw(t, "to"))
			if rapid.Bool().Draw(t, "checkout") {
				e = &subscription.Event{ID: e.ID, Kind: subscription.Linked, Metadata: e.Metadata, Reference: e.Metadata["user"], At: epoch}
			}
			e.At = epoch.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "at")) * time.Second)
			events = append(events, e)
		}
		merge := func(list []*subscription.Event) string {
			var f subscription.Facts
			for _, e := range list {
				f.Merge(e)
			}
			text, err := json.Marshal(f)
			require.NoError(t, err)
			return string(text)
		}
		want := merge(events)
		require.Equal(t, want, merge(rapid.Permutation(events).Draw(t, "order")))
	})
}

// Of two checkouts in one second, the id decides.
func TestCheckoutsOfOneSecond(t *testing.T) {
	t.Parallel()
	checkout := func(id, subject string) *subscription.Event {
		return &subscription.Event{ID: id, At: epoch, Kind: subscription.Linked, Reference: subject, Metadata: map[string]string{"user": subject}}
	}
	inEveryOrder([]*subscription.Event{checkout("evt_a", "ann"), checkout("evt_b", "bob")}, func(events []*subscription.Event) {
		var f subscription.Facts
		for _, e := range events {
			f.Merge(e)
		}
		require.Equal(t, []string{"bob", "bob"}, []string{f.Reference, f.Linked["user"]})
	})
}

// What was fetched counts like an event whose previous metadata is unknown: a change of its second
// that leads from it is newer, and of others it is the newest.
func TestCustomerFetchedInTheSecondOfAnEvent(t *testing.T) {
	t.Parallel()
	fetched := func(user string, n int) subscription.Description {
		return subscription.Description{Event: subscription.FetchedEvent + fmt.Sprint(n), Rank: 1, Metadata: map[string]string{"user": user, "team": "red"}}
	}
	for _, first := range []bool{false, true} {
		for user, want := range map[string]string{"ann": "bob", "bob": "bob", "cyd": "cyd"} {
			var f subscription.Facts
			if first {
				f.Describe(epoch.Unix(), fetched(user, 1))
			}
			f.Merge(moved(t, "evt_a", "ann", "bob"))
			if !first {
				f.Describe(epoch.Unix(), fetched(user, 1))
			}
			require.Equal(t, want, f.Metadata["user"], "fetched %s, first: %t", user, first)
		}
	}
	var f subscription.Facts
	f.Merge(moved(t, "evt_a", "ann", "bob"))
	for n := range 50 {
		f.Describe(epoch.Unix(), fetched("dot", 10+n))
	}
	f.Describe(epoch.Unix(), fetched("cyd", 10))
	require.Equal(t, "dot", f.Metadata["user"], "the last one")
	require.Len(t, f.Second, 2)
}

// Facts of earlier releases have no descriptions: any event of their second replaces them, as it
// did.
func TestFactsOfEarlierReleases(t *testing.T) {
	t.Parallel()
	f := subscription.Facts{
		Metadata: map[string]string{"user": "ann"}, MetadataAt: epoch.Unix(), Reference: "ann", LinkedAt: epoch.Unix(),
	}
	require.True(t, f.Merge(moved(t, "evt_a", "cyd", "bob")))
	require.True(t, f.Merge(&subscription.Event{ID: "evt_b", At: epoch, Kind: subscription.Linked, Reference: "bob"}))
	require.Equal(t, []string{"bob", "bob"}, []string{f.Metadata["user"], f.Reference})
}

// However many events a second has, the facts of a customer stay small.
func TestFactsAreBounded(t *testing.T) {
	t.Parallel()
	var f subscription.Facts
	for n := range 15 {
		metadata := obj{"user": fmt.Sprint(n)}
		for i := range 49 {
			metadata[fmt.Sprint("key", i)] = strings.Repeat("v", 1000)
		}
		f.Merge(customer(t, fmt.Sprintf("evt_%02d", n), "customer.updated", metadata, obj{"metadata": obj{"user": fmt.Sprint(n - 1)}}))
	}
	require.Equal(t, "14", f.Metadata["user"])
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.Less(t, len(text), 300<<10)
	f.Merge(&subscription.Event{ID: "evt", At: epoch.Add(time.Second), Kind: subscription.Customer})
	require.Len(t, f.Second, 1, "of the newest second only")
}
