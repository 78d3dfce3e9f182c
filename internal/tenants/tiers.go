package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// The rules of the operator's tenant in a new installation, which count the checks of each tenant,
// and their work for Redis.
const (
	ChecksPerSecond = "checks-per-second"
	ChecksPerMonth  = "checks-per-month"
	WorkPerSecond   = "work-per-second"
)

// The same as check.QuotaResource and check.WorkResource, to avoid an import.
const (
	checksResource = "checks"
	workResource   = "work"
)

// Tiers returns the rules and plans that a new installation proposes to its operator. The default
// plan limits nothing, so a quota applies only to tenants with another tier.
func Tiers() ([]limit.Rule, []Plan) {
	second := limit.NewRule(ChecksPerSecond)
	second.Name, second.Description = "Checks per second", "How many checks a tenant may send per second."
	second.Resource, second.Algorithm, second.Limit = checksResource, limit.FixedWindow, 100
	second.Window = limit.Window{Duration: limit.Duration{Text: "1s", MS: 1000}}
	month := limit.NewRule(ChecksPerMonth)
	month.Name, month.Description = "Checks per month", "How many checks a tenant may send per calendar month, in UTC."
	month.Resource, month.Algorithm, month.Limit = checksResource, limit.FixedWindow, 1_000_000
	month.Window = limit.Window{Duration: limit.Duration{Text: "month"}, Calendar: limit.CalendarMonth}
	work := limit.NewRule(WorkPerSecond)
	work.Name, work.Description = "Work per second", "How much work the checks of a tenant may be for Redis per second. A check with one rule is 1 unit, or 4 to 8 with a log or sub-buckets."
	work.Resource, work.Algorithm, work.Limit = workResource, limit.FixedWindow, 10*second.Limit
	work.Window = second.Window
	tier := func(slug, name, description string, perSecond, perMonth int64, bounds Bounds) Plan {
		return Plan{Slug: slug, Name: name, Description: description, Bounds: bounds, Limits: map[string]limit.Limit{
			ChecksPerSecond: {Limit: perSecond}, ChecksPerMonth: {Limit: perMonth}, WorkPerSecond: {Limit: 10 * perSecond},
		}}
	}
	custom := Plan{
		Slug: "custom", Name: "Custom", Default: true,
		Description: "Has no limits. Set a tenant's own limits as overrides.",
		Limits:      map[string]limit.Limit{ChecksPerSecond: {Unlimited: true}, ChecksPerMonth: {Unlimited: true}, WorkPerSecond: {Unlimited: true}},
	}
	month31 := limit.Duration{Text: "31d", MS: 31 * 24 * time.Hour.Milliseconds()}
	free := Bounds{Rules: 10, MatchingRules: 4, LongestWindow: month31, Members: 3, Counters: 20_000, RecordBytes: 8 << 20, RetentionDays: 30}
	pro := Bounds{Rules: 50, MatchingRules: 8, LongestWindow: month31, Members: 25, Counters: 1_000_000, RecordBytes: 64 << 20, RetentionDays: 365}
	large := Bounds{Rules: 500, MatchingRules: 16, Members: 200, Counters: 20_000_000, RecordBytes: 512 << 20}
	scale := tier("scale", "Scale", "For large applications. Checks over the quota are allowed.", 10_000, 1_000_000_000, large)
	scale.Fail = FailOpen
	return []limit.Rule{second, month, work}, []Plan{
		custom,
		tier("free", "Free", "For trying the service.", 100, 1_000_000, free),
		tier("pro", "Pro", "For an application in production.", 1000, 50_000_000, pro),
		scale,
	}
}

// ProposeTiers creates the rules and plans of Tiers in the operator's tenant, if its configuration
// was never changed. Several servers may call it concurrently.
func (s *Store) ProposeTiers(ctx context.Context, platform Tenant) error {
	a := AsSystem(platform.ID, "start")
	untouched, version := false, int64(0)
	err := s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.TenantByID(ctx, platform.ID)
		// Both have the version of the creation. Deleting the proposal raises one of them.
		untouched, version = row.PolicyVersion == row.SubjectsVersion, max(row.Version, row.PolicyVersion)
		return err
	})
	if err != nil || !untouched {
		return err
	}
	rules, plans := Tiers()
	_, err = s.ApplyDocument(ctx, a, Document{Rules: rules, Plans: plans}, Apply{Match: Match{Versions: []int64{version}}})
	if errors.Is(err, ErrPreconditionFailed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("propose tiers: %w", err)
	}
	return nil
}

// QuotaNotice is a notice that a tenant has used a share of a quota. There is one for each share
// and window.
type QuotaNotice struct {
	Rule        string // slug of a rule of the operator's tenant
	WindowEnd   time.Time
	Percent     int // one of NoticePercents
	Used, Quota int64
	CreatedAt   time.Time
}

// NoticePercents are the shares of a quota that cause notices.
var NoticePercents = []int{80, 95, 100}

// RecordQuota records the usage of a quota, and returns the new notices. The largest one is also
// sent to the notification endpoints of the tenant. Errors: ErrUnavailable.
func (s *Store) RecordQuota(
	ctx context.Context, tenant uuid.UUID, rule string, windowEnd time.Time, used, quota int64,
) (fresh []QuotaNotice, err error) {
	if quota < 1 {
		return nil, nil
	}
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		fresh = nil
		for _, percent := range NoticePercents {
			// The quota is at most 10^15, so its product fits.
			if used*100 < quota*int64(percent) {
				break
			}
			n, err := q.InsertQuotaNotice(ctx, db.InsertQuotaNoticeParams{
				TenantID: tenant, Rule: rule, WindowEnd: windowEnd, Percent: int32(percent), Used: used, Quota: quota, // a constant
			})
			if err != nil {
				return err
			}
			if n > 0 {
				fresh = append(fresh, QuotaNotice{Rule: rule, WindowEnd: windowEnd, Percent: percent, Used: used, Quota: quota})
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		last := fresh[len(fresh)-1] // of several new shares, the largest says it all
		return notify(ctx, q, tenant, s.instant(), Notification{QuotaReached, quotaData{last.Rule, last.Percent, last.Used, last.Quota, last.WindowEnd.UTC()}})
	})
	return fresh, err
}

// QuotaNotices lists the notices of current windows, newest first.
func (s *Store) QuotaNotices(ctx context.Context, a Actor) (out []QuotaNotice, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.QuotaNotices(ctx, db.QuotaNoticesParams{TenantID: a.tenant, Now: s.instant()})
		for _, row := range rows {
			out = append(out, QuotaNotice{
				Rule: row.Rule, WindowEnd: row.WindowEnd.UTC(), Percent: int(row.Percent), Used: row.Used, Quota: row.Quota, CreatedAt: row.CreatedAt,
			})
		}
		return err
	})
	return out, err
}

// Managers returns the addresses of the owners and admins of a tenant who have joined, at most 20:
// owners first, then those who were invited first. Notices are mailed to them. Errors:
// ErrUnavailable.
func (s *Store) Managers(ctx context.Context, tenant uuid.UUID) (out []string, err error) {
	err = s.read(ctx, Actor{tenant: tenant}, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = q.ManagersToNotify(ctx, tenant)
		return err
	})
	return out, err
}

// TenantInTier is an active tenant that is a registered subject of the operator's tenant.
type TenantInTier struct {
	ID   uuid.UUID
	Slug string
}

// TenantsInTiers lists tenants with a tier or their own quota, sorted by slug, after the given one.
// Errors: ErrUnavailable.
func (s *Store) TenantsInTiers(ctx context.Context, platform uuid.UUID, after string, most int) (out []TenantInTier, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.TenantsInTiers(ctx, db.TenantsInTiersParams{Platform: platform, After: after, Most: int32(most)}) // a constant
		for _, row := range rows {
			out = append(out, TenantInTier{row.ID, row.Slug})
		}
		return err
	})
	return out, err
}
