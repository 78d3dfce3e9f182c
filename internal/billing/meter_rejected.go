package billing

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"weir/internal/subscription"
	"weir/internal/tenants"
)

// rejections remembers for a minute which endpoints rejected the events of a meter: very many
// parked subjects of an endpoint with a key that does not work cost some requests a minute.
type rejections struct {
	mu    sync.Mutex
	known map[tenants.MeterAt]rejection
}

type rejection struct {
	why   string
	until time.Time
}

func newRejections() *rejections { return &rejections{known: map[tenants.MeterAt]rejection{}} }

func meterOf(work *tenants.MeterPushWork, item *tenants.MeterPushItem) tenants.MeterAt {
	return tenants.MeterAt{Endpoint: item.Endpoint.ID, Version: item.Endpoint.Version, Event: work.MeterEvent}
}

// note remembers why an endpoint rejected the event of a meter.
func (r *rejections) note(meter tenants.MeterAt, why string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(_ tenants.MeterAt, known rejection) bool { return !now.Before(known.until) })
	r.known[meter] = rejection{why, now.Add(pushPause)}
}

// of returns why an endpoint rejected an event of a meter within a minute; "": it did not.
func (r *rejections) of(meter tenants.MeterAt, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known[meter]
	if !now.Before(known.until) {
		return ""
	}
	return known.why
}

// parkRejected parks those items of a group whose event their endpoint rejected, where others have
// theirs: the endpoint took events of the same group, or the tenant has other endpoints.
func (r *Runner) parkRejected(work *tenants.MeterPushWork, group []tenants.MeterPushItem, failed []*subscription.MeterError) {
	takes, rejects := map[uuid.UUID]bool{}, map[uuid.UUID]int{}
	for i, err := range failed {
		switch {
		case err == nil && group[i].Outcome == "":
			takes[group[i].Endpoint.ID] = true
		case err != nil && err.Rejected:
			rejects[group[i].Endpoint.ID]++
		}
	}
	for i, err := range failed {
		switch item := &group[i]; {
		case err == nil || !err.Rejected:
		case takes[item.Endpoint.ID]:
			parkAt(item, err.Why)
		case work.Several(item.Endpoint.Live):
			if rejects[item.Endpoint.ID] > 1 { // one alone may be about its customer
				r.rejections.note(meterOf(work, item), err.Why, r.Store.Now())
			}
			parkAt(item, err.Why)
		}
	}
}

// parkAt parks an item that was not sent, because its endpoint rejects it.
func parkAt(item *tenants.MeterPushItem, why string) {
	name := cmp.Or(item.Endpoint.Name, item.Endpoint.ID.String())
	item.Outcome, item.Why, item.Rejected = tenants.PushParked, fmt.Sprintf("at the endpoint %q: %s", name, why), true
}
