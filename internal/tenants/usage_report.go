package tenants

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// Limits of one report.
const (
	maxUsageBuckets  = 10_000 // number of periods
	maxUsageSubjects = 1_000  // number of periods with a list of subjects each
	maxUsageItems    = 50_000
	// usageSilence is how long a server without writes is waited for: it may still count while it
	// cannot reach Postgres.
	usageSilence = 10 * time.Minute
	// usageGone is the same for a server that is known not to run. A server with many tenants
	// writes at least every 34 seconds.
	usageGone = 45 * time.Second
)

// FollowWriters makes alive tell which servers run now, by the names of their usage writers, and
// whether that is certain. It must be called before the store is used.
func (s *Store) FollowWriters(alive func() (writers []uuid.UUID, certain bool)) { s.writers = alive }

// completeUntil returns the time up to which all servers have written what they counted.
func (s *Store) completeUntil(ctx context.Context, q *db.Queries) (time.Time, error) {
	p := db.UsageCompleteUntilParams{Silent: interval(usageSilence), Gone: interval(usageGone)}
	if s.writers != nil {
		p.Alive, p.Certain = s.writers()
	}
	if p.Alive == nil {
		p.Alive = []uuid.UUID{} // and not NULL
	}
	return q.UsageCompleteUntil(ctx, p)
}

// UsageQuery selects a tenant's usage.
type UsageQuery struct {
	Grain usage.Grain
	// From is inclusive, To is exclusive; both are rounded outward to whole grains. Defaults: To is
	// now, and From is an hour (for minutes), a day (for hours) or 30 days (for days) before To.
	From, To time.Time

	ByRule, ByPlan, ByResource bool   // one item for each value
	Rule, Plan, Resource       string // only that one; "": all
	// Rules limits ByRule to these rules. nil: all.
	Rules []string
	// Sum gives one item for the whole period, or one for each group of it, instead of one for each
	// grain. Not for subjects.
	Sum bool

	// BySubject selects the busiest subjects; with Subject only that one. Lists of subjects are
	// kept for the tenant as a whole, so the other groups and filters cannot be combined with them.
	BySubject   bool
	Subject     string
	DeniedFirst bool // busiest by denied checks, and only those are counted
}

// UsageReport is the answer to a UsageQuery.
type UsageReport struct {
	From, To time.Time // whole grains
	// CompleteUntil is an instant: all decisions before it are counted.
	CompleteUntil time.Time
	Approximate   bool // of subjects
	Items         []UsageItem
}

// UsageItem is the usage of one period.
type UsageItem struct {
	Start time.Time // with UsageQuery.Sum, that of the report
	// The values of the grouped fields; "" for others. Resource is also "" for the resources
	// without an item of their own, and Plan for checks without a plan. Plan may be
	// usage.OtherPlans.
	Rule, Plan, Resource, Subject string
	Error                         int64 // for a subject: how many more checks it may have had
	usage.Counts
}

// Usage returns usage, sorted by time, then by rule, plan and resource, or with the busiest
// subjects first. Periods without checks are omitted. Errors: *InvalidError; ErrUnavailable, also
// for a query that takes too long; ErrTooManyReports.
func (s *Store) Usage(ctx context.Context, a Actor, query UsageQuery) (out UsageReport, err error) {
	now := s.instant()
	query.fill(now)
	if err := query.validate(now); err != nil {
		return UsageReport{}, err
	}
	out = UsageReport{From: query.From, To: query.To, Approximate: query.ofSubjects()}
	if query.ofSubjects() {
		out.CompleteUntil, err = s.readLists(ctx, a, &query, out.addList(&query))
		return out, err
	}
	var read usageColumns
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if out.CompleteUntil, err = s.completeUntil(ctx, q); err != nil {
			return err
		}
		return read.read(ctx, tx, a.tenant, &query)
	})
	if err != nil {
		return out, err
	}
	if err := boundedItems(read.items); err != nil {
		return out, err
	}
	out.Items, err = s.decodeItems(ctx, a.tenant, &read)
	return out, err
}

// boundedItems returns an error if there are too many items.
func boundedItems(items int) error {
	if items > maxUsageItems {
		return invalid("group_by", limit.Wrong("Use a shorter range or a coarser grain.", "gives more than %d items", maxUsageItems))
	}
	return nil
}

// ServiceUsage returns the checks of all tenants together, by grain, from from (inclusive) to to
// (exclusive). For the operator only. Errors: ErrNotOperator.
func (s *Store) ServiceUsage(ctx context.Context, a Actor, grain usage.Grain, from, to time.Time) (items []UsageItem, err error) {
	if !a.operator {
		return nil, ErrNotOperator
	}
	args := pgx.NamedArgs{"from": from, "to": to}
	where := "u.start >= @from AND u.start < @to AND u.rule = ''" // whole checks, not the verdicts of each rule
	if grain == usage.Minute {
		where += " AND u.slot = ANY(@slots)" // excludes the tables of other days
		args["slots"] = usageSlotsOf(from, to)
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		// By tenant, because the keys of usage begin with it.
		rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT u.start, sum(u.allowed)::bigint AS allowed, sum(u.denied)::bigint AS denied
			FROM tenants t CROSS JOIN LATERAL (SELECT u.start, u.allowed, u.denied FROM usage_%ss u WHERE u.tenant_id = t.id AND %s) AS u
			GROUP BY 1 ORDER BY 1`, grain, where), args)
		if err != nil {
			return err
		}
		items, err = pgx.CollectRows(rows, pgx.RowToStructByNameLax[UsageItem])
		return err
	})
	return items, err
}

func (q *UsageQuery) ofSubjects() bool { return q.BySubject || q.Subject != "" }

// fill sets the defaults of the period, and rounds it to whole grains.
func (q *UsageQuery) fill(now time.Time) {
	if q.To.IsZero() {
		q.To = now
	}
	length := q.Grain.Duration()
	if q.From.IsZero() {
		// Without the part by which the end is rounded up.
		q.From = q.To.Add(-[...]time.Duration{time.Hour, 24 * time.Hour, 30 * 24 * time.Hour}[q.Grain])
	}
	q.From = q.From.UTC().Truncate(length)
	if end := q.To.UTC().Truncate(length); end.Before(q.To) {
		q.To = end.Add(length)
	} else {
		q.To = end
	}
}

// afterFrom is the problem of a period that ends before it starts.
var afterFrom = limit.Wrong("Use a later end, or an earlier start.", "must be after from")

func (q *UsageQuery) validate(now time.Time) error {
	var fields []limit.FieldError
	bad := func(field, fix, format string, args ...any) {
		fields = append(fields, limit.FieldProblem(field, limit.Wrong(fix, format, args...)))
	}
	kept := now.Add(-UsageRetention(q.Grain)).Truncate(q.Grain.Duration())
	most := int64(maxUsageBuckets)
	if q.ofSubjects() {
		most = maxUsageSubjects
	}
	// In seconds, because a thousand years exceed a Duration.
	buckets := (q.To.Unix() - q.From.Unix()) / int64(q.Grain.Duration()/time.Second)
	// For an end in the future, the report has what exists so far. An end far in the future is a
	// mistake, and rounding up the last day of year 9999 gives a time that cannot be written.
	latest := now.Add(UsageRetention(q.Grain)).Truncate(q.Grain.Duration()).Add(q.Grain.Duration())
	switch {
	case q.To.After(latest):
		bad("to", "Use an earlier time.", "must be at most %s: %d days from now", latest.Format(time.RFC3339), int(UsageRetention(q.Grain)/(24*time.Hour)))
	case q.From.Before(kept):
		bad("from", "Use a later time, or a coarser grain.", "must not be before %s: usage by the %s is kept for %d days",
			kept.Format(time.RFC3339), q.Grain, int(UsageRetention(q.Grain)/(24*time.Hour)))
	case buckets <= 0:
		bad("to", afterFrom.Fix, "%s", afterFrom.Message)
	case buckets > most:
		bad("to", "Use a shorter range, or a coarser grain.", "must be at most %d %ss after from", most, q.Grain)
	}
	if q.ofSubjects() {
		if q.ByRule || q.ByPlan || q.ByResource {
			bad("group_by", "Group by subject alone, or omit subject.", "cannot combine subject with others: the busiest subjects are known for the tenant as a whole")
		}
		for _, f := range []struct{ name, value string }{{"rule", q.Rule}, {"plan", q.Plan}, {"resource", q.Resource}} {
			if f.value != "" {
				bad(f.name, "Omit it, or do not ask for subjects.", "cannot be combined with subject: the busiest subjects are known for the tenant as a whole")
			}
		}
	} else if q.DeniedFirst {
		bad("top", "Omit it, or group by subject.", "is only for subjects")
	}
	return invalidIf(fields)
}

// addList returns a function that adds the items of a period, of the one list that the query
// selects.
func (r *UsageReport) addList(q *UsageQuery) func(db.UsageSubjectsRow) error {
	return func(row db.UsageSubjectsRow) error {
		list, err := decodeList(row.Top, q.DeniedFirst)
		if err != nil {
			return err
		}
		if q.Subject != "" {
			list = slices.DeleteFunc(list, func(s usage.Subject) bool { return s.Subject != q.Subject })
		}
		slices.SortFunc(list, func(a, b usage.Subject) int {
			return cmp.Or(cmp.Compare(b.Allowed+b.Denied, a.Allowed+a.Denied), cmp.Compare(a.Subject, b.Subject))
		})
		for _, s := range list {
			r.Items = append(r.Items, UsageItem{Start: row.Start, Subject: s.Subject, Error: s.Error, Counts: s.Counts})
		}
		return boundedItems(len(r.Items))
	}
}
