package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/subscription"
	"weir/internal/tenants/db"
)

// purgeRows is the maximum number of rows that one statement deletes: none takes long, and none
// keeps rows locked that others wait for. A row can have hundreds of KiB.
const purgeRows = 1000

// BillingEventRetention is how long billing events are kept after they were decided. A duplicate of
// an event that was deleted is taken for a new one, so it is longer than any provider sends an
// event again, or lists it for a comparison (eventsKeptFor).
const BillingEventRetention = 90 * 24 * time.Hour

// UnappliedEventRetention is how long parked and failed billing events are kept. They wait for a
// person, who has had notices about them for more than a year by then. Events are not scheduled for
// a later time; earlier releases accepted some, which are deleted if they are that far ahead still.
const UnappliedEventRetention = subscription.MaxAhead

// quotaNoticeRetention is how long a notice about a quota is kept after the end of its window. It
// exceeds the differences between the clocks of servers, which must not send one twice.
const quotaNoticeRetention = 24 * time.Hour

// purge deletes up to most expired rows, and returns their number.
type purge struct {
	of  string
	run func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error)
}

// purges are what Purge deletes.
var purges = []purge{
	{"answers to idempotent requests", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
		return q.PurgeIdempotent(ctx, most)
	}},
	{"traces of deleted subjects", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
		if err := q.RaiseSubjectsHistory(ctx, most); err != nil {
			return 0, err
		}
		return q.PurgeTombstones(ctx, most)
	}},
	{"sessions", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeSessions(ctx, db.PurgeSessionsParams{Oldest: now.Add(-SessionLife), IdleSince: now.Add(-SessionIdle), Most: most})
	}},
	{"sessions of customers", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgePortalSessions(ctx, db.PurgePortalSessionsParams{Now: now, Most: most})
	}},
	{"links of customers", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgePortalLinks(ctx, db.PurgePortalLinksParams{Before: now.Add(-PortalSessionLife), Most: most})
	}},
	{"requests for higher limits", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeLimitRequests(ctx, db.PurgeLimitRequestsParams{Before: now.Add(-LimitRequestRetention), Most: most})
	}},
	{"addresses of people", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeAddresses(ctx, db.PurgeAddressesParams{Before: now.Add(-AddressLife), BrowsersBefore: now.Add(-BrowserLife), Most: most})
	}},
	{"notifications", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeNotifications(ctx, db.PurgeNotificationsParams{Before: now.Add(-NotificationRetention), Most: most})
	}},
	{"notices about quotas", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeQuotaNotices(ctx, db.PurgeQuotaNoticesParams{Before: now.Add(-quotaNoticeRetention), Most: most})
	}},
	{"limits of changed plans", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
		return purgeKeptLimits(ctx, q, most)
	}},
	{"limits of rules beside changed plans", func(ctx context.Context, q *db.Queries, _ time.Time, most int32) (int64, error) {
		return q.PurgeOwnLimits(ctx, most)
	}},
	{"sign-ins of devices", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeDeviceLogins(ctx, db.PurgeDeviceLoginsParams{Now: now, Most: most})
	}},
	{"links of accounts", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		return q.PurgeAccountLinks(ctx, db.PurgeAccountLinksParams{Now: now, Most: most})
	}},
	{"billing events", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		before := now.Add(-BillingEventRetention)
		return q.PurgeBillingEvents(ctx, db.PurgeBillingEventsParams{Before: &before, Most: most})
	}},
	{"billing events that were not applied", func(ctx context.Context, q *db.Queries, now time.Time, most int32) (int64, error) {
		before, ahead := now.Add(-UnappliedEventRetention), now.Add(UnappliedEventRetention)
		return q.PurgeUnappliedEvents(ctx, db.PurgeUnappliedEventsParams{Before: &before, Ahead: &ahead, Most: most})
	}},
}

// Purge deletes expired data, some rows in each transaction. Call it about every hour; several
// servers may call it concurrently. What cannot be deleted does not keep the rest. Errors:
// ErrUnavailable, and those of what was not deleted.
func (s *Store) Purge(ctx context.Context) (err error) {
	now := s.instant()
	for _, p := range purges {
		_, failed := s.purgeAlone(ctx, func(ctx context.Context, q *db.Queries) (int64, error) {
			return p.run(ctx, q, now, purgeRows)
		})
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("purge %s: %w", p.of, failed))
		}
	}
	return err
}

// purgeAlone repeats a statement that deletes up to purgeRows, until fewer are left. Servers that
// delete the same rows in different orders would deadlock, so one does it.
func (s *Store) purgeAlone(ctx context.Context, purge func(context.Context, *db.Queries) (int64, error)) (removed int64, err error) {
	for n := int64(purgeRows); n == purgeRows; removed += n {
		err := s.asSystemWithin(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
			n = 0
			if err := longStatements(ctx, tx); err != nil {
				return err
			}
			mine, err := q.TryLock(ctx, purgeLock)
			if err == nil && mine {
				n, err = purge(ctx, q)
			}
			return err
		})
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}
