package tenants

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"weir/internal/subscription"
)

// BillingVolume bounds what a tenant's billing systems may store on a day, in all of its endpoints
// together. Every event is a row that is kept for months, so the sender of endless signed events
// would fill the database.
type BillingVolume struct {
	Events int64 // 0: DefaultBillingEvents
	Bytes  int64 // of the events; 0: DefaultBillingBytes
}

// The default bounds are five times what 100 000 events of 4 KB take. A billing system sends a
// refused event again, for days, so one that is beyond them arrives later.
const (
	DefaultBillingEvents = 500_000
	DefaultBillingBytes  = 2 << 30
)

func (v BillingVolume) withDefaults() BillingVolume {
	if v.Events == 0 {
		v.Events = DefaultBillingEvents
	}
	if v.Bytes == 0 {
		v.Bytes = DefaultBillingBytes
	}
	return v
}

// BillingVolumeError means that a tenant has stored as many billing events of this day as it may.
type BillingVolumeError struct {
	Most       BillingVolume
	RetryAfter time.Duration // until the next day begins
}

func (e *BillingVolumeError) Error() string {
	return fmt.Sprintf("the tenant has stored %d billing events or %d MiB of them today, which is the maximum", e.Most.Events, e.Most.Bytes>>20)
}

// sizeOf returns the bytes that a stored event is counted with.
func sizeOf(e *subscription.Event, body []byte) int64 {
	return int64(len(body) + len(e.ID) + len(e.Type) + len(e.Customer) + len(e.Subscription) + len(e.Subject))
}

// WithoutEffect reports whether nothing can follow from an event, whatever is configured later. Its
// content is not stored.
func WithoutEffect(e *subscription.Event) bool {
	return e.Kind == subscription.Ignored && e.Purchase == nil
}

// dayOf returns the day of an instant, in UTC.
func dayOf(at time.Time) pgtype.Date {
	y, m, d := at.UTC().Date()
	return pgtype.Date{Time: time.Date(y, m, d, 0, 0, 0, 0, time.UTC), Valid: true}
}

// untilNextDay returns how long it takes until the next day begins, in UTC.
func untilNextDay(at time.Time) time.Duration {
	return dayOf(at).Time.AddDate(0, 0, 1).Sub(at)
}
