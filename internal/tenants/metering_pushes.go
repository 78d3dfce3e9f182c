package tenants

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// MeterPushPage is how many rows one call of CreateMeterPushes should read. That takes a small part
// of the time of an operation, however many pushes an hour has.
const MeterPushPage = 2000

// CreateMeterPushes creates pushes for the next page of usage in sealed hours, and reports whether
// there is more to do. A page has at most so many rows of totals, of at most so many tenants. At
// most as many rows are deleted of meters that have ended and are no longer needed. The place where
// a page ends is stored in its transaction, so a page that fails is repeated, and each push is
// created once. Only one server creates pushes at a time. Neither sealing nor writers wait for it,
// however many there are. Error: ErrUnavailable.
func (s *Store) CreateMeterPushes(ctx context.Context, most int32) (more bool, err error) {
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		more = false
		alone, err := q.TryLock(ctx, meterPushLock)
		if err != nil || !alone {
			return err
		}
		if err := q.ReadByIndexes(ctx); err != nil {
			return err
		}
		stored, err := q.PushesPlace(ctx)
		if err != nil {
			return err
		}
		at := pushesPlace{stored.PushesUntil, stored.PushesTenant, stored.PushesRule}
		next := at
		if stored.Hour.After(at.hour) { // nobody used anything before it
			next = pushesPlace{hour: stored.Hour}
		}
		if next.hour.Before(stored.SealedUntil) {
			if next, err = next.create(ctx, q, most); err != nil {
				return err
			}
		}
		purged, err := q.PurgeEndedMeters(ctx, db.PurgeEndedMetersParams{Until: at.hour, Most: most})
		if err != nil {
			return err
		}
		moved := next != at
		more = moved || purged == int64(most)
		if !moved {
			return nil
		}
		// Last, since each look of SealMetering waits for it.
		return q.MovePushesPlace(ctx, db.MovePushesPlaceParams{Until: next.hour, Tenant: next.tenant, Rule: next.rule})
	})
	return more && err == nil, err
}

// pushesPlace is a place in the totals of sealed hours, by hour, tenant and rule. The pushes of all
// before it are created, also that of the rule.
type pushesPlace struct {
	hour   time.Time
	tenant uuid.UUID
	rule   string
}

// create creates the pushes of the page behind a place, and returns where it ends.
func (p pushesPlace) create(ctx context.Context, q *db.Queries, most int32) (pushesPlace, error) {
	// One more than belong to the page: with it the next page begins.
	tenants, err := q.TenantsFrom(ctx, db.TenantsFromParams{First: p.tenant, Most: most + 1})
	if err != nil {
		return p, err
	}
	end := pushesPlace{hour: p.hour.Add(time.Hour)}
	if len(tenants) > int(most) {
		end = pushesPlace{hour: p.hour, tenant: tenants[most]}
		tenants = tenants[:most]
	}
	if len(tenants) == 0 {
		return end, nil
	}
	// A place in a tenant that was deleted is before all rules of the first one that is left.
	last, err := q.CreateMeteredPushes(ctx, db.CreateMeteredPushesParams{
		Start: p.hour, First: p.tenant, AfterRule: p.rule, Last: tenants[len(tenants)-1], Most: most,
	})
	if err != nil {
		return p, err
	}
	if len(last) == 1 && last[0].Looked == int64(most) {
		end = pushesPlace{hour: p.hour, tenant: last[0].TenantID, rule: last[0].Rule}
	}
	return end, nil
}
