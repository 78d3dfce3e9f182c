package tenants

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// MeteredQuery selects metered usage of a tenant.
type MeteredQuery struct {
	// From is inclusive, To is exclusive; both are whole hours. Defaults: To is the end of the
	// present hour, From is the start of the month in UTC.
	From, To time.Time
	Subject  string // only that one; "": all
	Rule     string // only that one; "": all
	Prefix   string // only subjects that begin with it; with Sum
	// Sum gives one item per subject and rule for the whole period, instead of one for each hour.
	Sum bool
	// Open includes hours that are not sealed yet, whose numbers still grow.
	Open bool

	after MeteredItem // the last item of the previous page
}

// MeteredItem is the metered usage of a subject under a rule, in an hour or a period.
type MeteredItem struct {
	Start         time.Time // of the hour; with MeteredQuery.Sum, zero
	Subject, Rule string
	Units         int64
	OverageUnits  int64 // of Units: those beyond the limit
	// FreeUnits and BilledUnits are of the units within the limit: those of plans that invoice only
	// units beyond it, and those of plans that invoice all.
	FreeUnits, BilledUnits int64
	Checks                 int64
	LateUnits              int64 // of Units: those of earlier hours, which arrived after these were sealed
}

// Invoiced returns the units to invoice under a rule with this metering. Those of a rule that only
// plans meter are within a limit and billed, or beyond it.
func (m *MeteredItem) Invoiced(of limit.Metering) int64 {
	if of == limit.MeterUnits {
		return m.Units - m.FreeUnits
	}
	return m.OverageUnits + m.BilledUnits
}

// MeteredTotal is the sum of all subjects under a rule, in a period.
type MeteredTotal struct {
	MeteredItem
	// UnattributedUnits are units of Units that no item has: the tenant had too many subjects at
	// once or in an hour.
	UnattributedUnits int64
}

// MeteringGap is a time in which an instance may have metered units that are missing. If there are
// very many, the last one spans the rest of those that are not closed.
type MeteringGap struct {
	From, To time.Time
	ClosedAt *time.Time // when the instance wrote its units after all; nil: it never did
}

// MeteredReport describes metered usage as a whole.
type MeteredReport struct {
	From, To    time.Time
	SealedUntil time.Time // hours before it never change
	Totals      []MeteredTotal
	Gaps        []MeteringGap
}

const (
	maxMeteringGaps = 1000
	meteredBatch    = 5000 // items per statement of an export
	// maxMeteredTotals is how many rules a report has: a tenant has up to 1000 at a time, and can
	// delete rules and create others.
	maxMeteredTotals = 5000
)

// fill sets the defaults of the period.
func (q *MeteredQuery) fill(now time.Time) {
	now = now.UTC()
	if q.To.IsZero() {
		q.To = now.Truncate(time.Hour).Add(time.Hour)
	}
	if q.From.IsZero() {
		q.From = time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	}
	q.From, q.To = q.From.UTC(), q.To.UTC()
}

func (q *MeteredQuery) validate() error {
	var errs limit.FieldErrors
	notHour := limit.Wrong("Use a time such as 2026-01-31T13:00:00Z: metered usage is counted by hour.", "must be a whole hour")
	for _, f := range []struct {
		name string
		at   time.Time
	}{{"from", q.From}, {"to", q.To}} {
		if !f.at.Equal(f.at.Truncate(time.Hour)) {
			errs.Add(f.name, notHour)
		}
	}
	if !q.From.Before(q.To) {
		errs.Add("from", limit.MustBe("before to"))
	} else if q.To.Sub(q.From) > MeteringRetention+24*time.Hour {
		errs.Add("from", limit.Wrong("Use a shorter period.", "must be at most 401 days before to"))
	}
	if q.Subject != "" {
		if problem := limit.ValidName(q.Subject); problem != nil {
			errs.Add("subject", problem)
		}
	}
	if q.Rule != "" && !limit.ValidSlug(q.Rule) {
		errs.Add("rule", limit.MustBe("the slug of a rule"))
	}
	return invalidIf(errs)
}

// meteredTotalsOf returns the sums of the subject that a query selects.
func meteredTotalsOf(ctx context.Context, q *db.Queries, a Actor, query *MeteredQuery) (out []MeteredTotal, err error) {
	totals, err := q.MeteredTotalsOf(ctx, db.MeteredTotalsOfParams{
		TenantID: a.tenant, Subject: query.Subject, Since: query.From, Until: query.To, Rule: query.Rule, Most: maxMeteredTotals + 1,
	})
	for _, t := range totals {
		out = append(out, MeteredTotal{MeteredItem: MeteredItem{Rule: t.Rule, Units: t.Units, OverageUnits: t.OverageUnits, FreeUnits: t.FreeUnits, BilledUnits: t.BilledUnits, Checks: t.Checks, LateUnits: t.LateUnits}})
	}
	return out, err
}

// CheckRuleFilter returns an *InvalidError about the field rule if the tenant has no such rule, and
// no metered usage of a deleted one. "" selects all rules.
func (s *Store) CheckRuleFilter(ctx context.Context, a Actor, slug string) error {
	if slug == "" {
		return nil
	}
	known := false
	if limit.ValidSlug(slug) {
		err := s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			known, err = q.KnowsRule(ctx, db.KnowsRuleParams{TenantID: a.tenant, Slug: slug})
			return err
		})
		if err != nil {
			return err
		}
	}
	if !known {
		return invalid("rule", noSuchRule)
	}
	return nil
}

// MeteredReport describes metered usage: the sums by rule, until when it is sealed, and the gaps.
// Without MeteredQuery.Open, it ends with the sealed hours. Errors: *InvalidError, ErrUnavailable.
func (s *Store) MeteredReport(ctx context.Context, a Actor, query MeteredQuery) (out MeteredReport, err error) {
	query.fill(s.instant())
	if err := query.validate(); err != nil {
		return out, err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = meteredReport(ctx, q, a, &query)
		return err
	})
	return out, err
}

// meteredReport reads a report. It ends the query's period with the sealed hours if only these are
// selected.
func meteredReport(ctx context.Context, q *db.Queries, a Actor, query *MeteredQuery) (out MeteredReport, err error) {
	out.SealedUntil, err = q.MeteringState(ctx)
	if err != nil {
		return out, err
	}
	out.SealedUntil = out.SealedUntil.UTC()
	if !query.Open && out.SealedUntil.Before(query.To) {
		query.To = out.SealedUntil
	}
	if query.To.Before(query.From) {
		query.To = query.From
	}
	out.From, out.To = query.From, query.To
	gaps, err := q.MeteringGaps(ctx, db.MeteringGapsParams{Since: out.From, Until: out.To, Most: maxMeteringGaps})
	if err != nil {
		return out, err
	}
	for _, g := range gaps {
		out.Gaps = append(out.Gaps, MeteringGap{From: g.FromAt.UTC(), To: g.ToAt.UTC(), ClosedAt: g.ClosedAt})
	}
	if query.Subject != "" {
		if out.Totals, err = meteredTotalsOf(ctx, q, a, query); err != nil {
			return out, err
		}
		return out, out.bounded()
	}
	totals, err := q.MeteredTotals(ctx, db.MeteredTotalsParams{TenantID: a.tenant, Since: out.From, Until: out.To, Rule: query.Rule, Most: maxMeteredTotals + 1})
	for _, t := range totals {
		out.Totals = append(out.Totals, MeteredTotal{
			MeteredItem:       MeteredItem{Rule: t.Rule, Units: t.Units, OverageUnits: t.OverageUnits, FreeUnits: t.FreeUnits, BilledUnits: t.BilledUnits, Checks: t.Checks, LateUnits: t.LateUnits},
			UnattributedUnits: t.UnattributedUnits,
		})
	}
	if err != nil {
		return out, err
	}
	return out, out.bounded()
}

// bounded returns an *InvalidError for a report about too many rules.
func (r *MeteredReport) bounded() error {
	if len(r.Totals) > maxMeteredTotals {
		return invalid("from", limit.Wrong("Use a shorter period, or name a rule.", "gives totals of more than %d rules", maxMeteredTotals))
	}
	return nil
}

// MeteredUsage returns a page of metered usage with its report, sorted by hour, subject and rule,
// and where the next page begins, "" at the end. Errors: *InvalidError, ErrUnavailable.
func (s *Store) MeteredUsage(ctx context.Context, a Actor, query MeteredQuery, p Page) (report MeteredReport, items []MeteredItem, next string, err error) {
	query.fill(s.instant())
	if err := query.validate(); err != nil {
		return report, nil, "", err
	}
	if p.After != "" {
		if query.after, err = meteredPlace(p.After); err != nil {
			return report, nil, "", err
		}
	}
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if report, err = meteredReport(ctx, q, a, &query); err != nil {
			return err
		}
		if err := byIndex(ctx, tx); err != nil {
			return err
		}
		items, err = query.page(ctx, q, a, int(p.most()))
		return err
	})
	if err != nil {
		return report, nil, "", err
	}
	if size := int(p.most()) - 1; len(items) > size {
		items = items[:size]
		next = items[size-1].place()
	}
	return report, items, next, nil
}

// ExportMetered calls begin with the report, and each with all items, some thousands at a time, all
// of one instant. A call may take up to a minute, for a client that reads slowly, and the whole
// export fifteen. Errors: *InvalidError, ErrUnavailable, ErrTooManyExports, and those of begin and
// each.
func (s *Store) ExportMetered(ctx context.Context, a Actor, query MeteredQuery, begin func(MeteredReport) error, each func([]MeteredItem) error) error {
	query.fill(s.instant())
	if err := query.validate(); err != nil {
		return err
	}
	var failed error // of begin and each, to distinguish it from errors of the database
	err := s.export(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		report, err := meteredReport(ctx, q, a, &query)
		if err != nil {
			return err
		}
		if failed = begin(report); failed != nil {
			return failed
		}
		for {
			items, err := query.page(ctx, q, a, meteredBatch)
			if err != nil || len(items) == 0 {
				return err
			}
			query.after = items[len(items)-1]
			if failed = each(items); failed != nil {
				return failed
			}
			if len(items) < meteredBatch {
				return nil
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// byIndex makes the statements of a long read use an index, whatever the statistics were when a
// plan was made, and lets a slow client take a minute between two of them.
func byIndex(ctx context.Context, tx pgx.Tx) error {
	for _, sql := range []string{byIndexSQL, `SELECT set_config('idle_in_transaction_session_timeout', '60s', true),
		set_config('plan_cache_mode', 'force_custom_plan', true)`} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// page reads the next items, at most most.
func (q *MeteredQuery) page(ctx context.Context, queries *db.Queries, a Actor, most int) (items []MeteredItem, err error) {
	if q.Sum {
		rows, err := queries.MeteredPeriod(ctx, db.MeteredPeriodParams{
			TenantID: a.tenant, Since: q.From, Until: q.To, Subject: q.Subject, Rule: q.Rule, Prefix: q.Prefix,
			AfterSubject: q.after.Subject, AfterRule: q.after.Rule, Most: int32(most),
		})
		for _, r := range rows {
			items = append(items, MeteredItem{Subject: r.Subject, Rule: r.Rule, Units: r.Units, OverageUnits: r.OverageUnits, FreeUnits: r.FreeUnits, BilledUnits: r.BilledUnits, Checks: r.Checks, LateUnits: r.LateUnits})
		}
		return items, err
	}
	after := q.after.Start
	if after.IsZero() {
		after = q.From.Add(-time.Hour)
	}
	rows, err := queries.MeteredHours(ctx, db.MeteredHoursParams{
		TenantID: a.tenant, Since: q.From, Until: q.To, Subject: q.Subject, Rule: q.Rule,
		AfterStart: after, AfterSubject: q.after.Subject, AfterRule: q.after.Rule, Most: int32(most),
	})
	for _, r := range rows {
		items = append(items, MeteredItem{
			Start: r.Start.UTC(), Subject: r.Subject, Rule: r.Rule, Units: r.Units, OverageUnits: r.OverageUnits, FreeUnits: r.FreeUnits, BilledUnits: r.BilledUnits, Checks: r.Checks, LateUnits: r.LateUnits,
		})
	}
	return items, err
}

// place identifies an item in its list. Control characters occur in no subject and no rule.
func (m *MeteredItem) place() string {
	start := ""
	if !m.Start.IsZero() {
		start = m.Start.Format(time.RFC3339)
	}
	return start + "\x00" + m.Subject + "\x00" + m.Rule
}

var errNoPlace = fmt.Errorf("a place in a list of metered usage: %w", ErrNotFound)

func meteredPlace(text string) (m MeteredItem, err error) {
	parts := strings.Split(text, "\x00")
	if len(parts) != 3 {
		return m, errNoPlace
	}
	if parts[0] != "" {
		if m.Start, err = time.Parse(time.RFC3339, parts[0]); err != nil {
			return m, errNoPlace
		}
	}
	m.Subject, m.Rule = parts[1], parts[2]
	return m, nil
}
