package tenants

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

const (
	// noticeAfter is how long an event is parked or failed before a notice: most of them wait only
	// for another event that arrives moments later.
	noticeAfter = time.Minute
	// noticeRepeated is the interval between notices about the same endpoint while it has such
	// events.
	noticeRepeated = 24 * time.Hour
	// noticeAgain is the shortest interval between two notices about the same endpoint, if the
	// events of the first one were settled.
	noticeAgain = time.Hour
)

// BillingNotice says that an endpoint has events that are parked or have failed, or that it has
// none any more.
type BillingNotice struct {
	Tenant, Endpoint uuid.UUID
	Name             string // of the endpoint; "": none
	Provider         string
	Parked, Failed   int64     // together at most MostUnapplied; both 0: settled
	Oldest           time.Time // when the oldest of them was received
}

// Settled reports whether all events were applied or dismissed.
func (n *BillingNotice) Settled() bool { return n.Parked+n.Failed == 0 }

// billingNoticeData is the data of notifications about events that were not applied.
type billingNoticeData struct {
	Endpoint string     `json:"endpoint"`
	Provider string     `json:"provider"`
	Name     string     `json:"name"`
	Parked   int64      `json:"parked"`
	Failed   int64      `json:"failed"`
	Oldest   *time.Time `json:"oldest_received_at"`
}

// noticesLookedAt is the number of endpoints whose notices are determined in one statement. If it
// fails, those of each one are determined alone.
const noticesLookedAt = 100

// Each failure may take seconds.
const (
	// endpointsFailed is after how many failures about endpoints of a tenant its others on a page
	// wait for the next time.
	endpointsFailed = 3
	// tenantsFailed is after how many tenants with failures all others on a page wait for the next
	// time: the cause is none of them.
	tenantsFailed = 5
)

// RecordBillingNotices sends notifications about endpoints with events that are parked or have
// failed, each at most once a day while there are such events, and about endpoints that have none
// any more. It ends after most of them. Each notice is recorded, so of several servers only one
// sends it. An error does not stop the notices about other endpoints: the first one is returned.
// Error: ErrUnavailable.
func (s *Store) RecordBillingNotices(ctx context.Context, most int) (sent []BillingNotice, first error) {
	now := s.instant()
	after := db.BillingEndpointsAfterRow{}
	for len(sent) < most && ctx.Err() == nil {
		var page []db.BillingEndpointsAfterRow
		err := s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			page, err = q.BillingEndpointsAfter(ctx, db.BillingEndpointsAfterParams{AfterTenant: after.TenantID, AfterID: after.ID, Most: noticesLookedAt})
			return err
		})
		if err != nil {
			return sent, cmp.Or(first, err)
		}
		if len(page) == 0 {
			break
		}
		due, err := s.dueBillingNoticesOf(ctx, after, page, now)
		first, after = cmp.Or(first, err), page[len(page)-1]
		for _, n := range due {
			fresh, err := s.recordBillingNotice(ctx, n, now)
			if first = cmp.Or(first, err); fresh {
				sent = append(sent, n)
			}
		}
	}
	return sent, first
}

// dueBillingNoticesOf returns the notices about a page of endpoints, which begins after one. If
// they cannot be determined at once, because one of the endpoints takes too long, the error is
// returned with the notices about the others.
func (s *Store) dueBillingNoticesOf(ctx context.Context, after db.BillingEndpointsAfterRow, page []db.BillingEndpointsAfterRow, now time.Time) (due []BillingNotice, err error) {
	due, err = s.dueBillingNotices(ctx, after, page[len(page)-1], now)
	if err == nil {
		return due, nil
	}
	failed := map[uuid.UUID]int{}
	for _, e := range page {
		if ctx.Err() != nil || len(failed) == tenantsFailed {
			break
		}
		if failed[e.TenantID] < endpointsFailed {
			alone, err := s.dueBillingNotices(ctx, after, e, now)
			if err != nil {
				failed[e.TenantID]++
			}
			due = append(due, alone...)
		}
		after = e
	}
	return due, err
}

// dueBillingNotices returns the notices about the endpoints after one, up to another.
func (s *Store) dueBillingNotices(ctx context.Context, after, last db.BillingEndpointsAfterRow, now time.Time) (due []BillingNotice, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := enableSort(ctx, tx, "off"); err != nil { // else see turn.step
			return err
		}
		rows, err := q.DueBillingNotices(ctx, db.DueBillingNoticesParams{
			AfterTenant: after.TenantID, AfterID: after.ID, LastTenant: last.TenantID, LastID: last.ID,
			Before: now.Add(-noticeAfter), RepeatBefore: now.Add(-noticeRepeated), AgainBefore: now.Add(-noticeAgain), CountMost: MostUnapplied,
		})
		for _, row := range rows {
			due = append(due, BillingNotice{
				Tenant: row.TenantID, Endpoint: row.ID, Name: row.Name, Provider: row.Provider, Parked: row.Parked, Failed: row.Failed, Oldest: row.Oldest.UTC(),
			})
		}
		return err
	})
	return due, err
}

func (s *Store) recordBillingNotice(ctx context.Context, n BillingNotice, now time.Time) (fresh bool, err error) {
	data := billingNoticeData{Endpoint: n.Endpoint.String(), Provider: n.Provider, Name: n.Name, Parked: n.Parked, Failed: n.Failed}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if n.Settled() {
			rows, err := q.SettleBillingNotice(ctx, db.SettleBillingNoticeParams{TenantID: n.Tenant, EndpointID: n.Endpoint, Now: &now})
			if fresh = rows > 0; err != nil || !fresh {
				return err
			}
			return notify(ctx, q, n.Tenant, now, Notification{BillingEventsSettled, data})
		}
		rows, err := q.PutBillingNotice(ctx, db.PutBillingNoticeParams{
			TenantID: n.Tenant, EndpointID: n.Endpoint, Now: now, RepeatBefore: now.Add(-noticeRepeated), AgainBefore: now.Add(-noticeAgain),
		})
		if fresh = rows > 0; err != nil || !fresh {
			return err
		}
		data.Oldest = &n.Oldest
		return notify(ctx, q, n.Tenant, now, Notification{BillingEventsUnapplied, data})
	})
	return fresh && err == nil, err
}
