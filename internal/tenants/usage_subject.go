package tenants

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// SubjectStep is what usage knows of one subject in one period. The counts are never too large.
type SubjectStep struct {
	Start time.Time
	usage.Counts
	Listed bool // usage has numbers of the subject
	// Error is how many more checks the subject may have had: usage keeps the busiest subjects of
	// each period only.
	Error int64
}

// SubjectUsage is the answer of UsageOfSubject.
type SubjectUsage struct {
	From, To time.Time // whole grains
	// CompleteUntil is an instant: all decisions before it are counted.
	CompleteUntil time.Time
	// Steps are sorted by time. In a period without a step, the tenant had no checks.
	Steps []SubjectStep
}

// UsageOfSubject returns what is known of one subject in each period of the query, which selects
// nothing else. Errors: those of Usage.
func (s *Store) UsageOfSubject(ctx context.Context, a Actor, subject string, query UsageQuery) (out SubjectUsage, err error) {
	now := s.instant()
	query.Subject = subject
	query.fill(now)
	if err := query.validate(now); err != nil {
		return SubjectUsage{}, err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out = SubjectUsage{From: query.From, To: query.To}
		if out.CompleteUntil, err = q.UsageCompleteUntil(ctx, interval(usageSilence)); err != nil {
			return err
		}
		rows, err := q.UsageSubjects(ctx, db.UsageSubjectsParams{TenantID: a.tenant, Grain: query.Grain.String(), Since: query.From, Until: query.To})
		for _, row := range rows {
			top, err := decodeTop(row.Top)
			if err != nil {
				return err
			}
			out.Steps = append(out.Steps, subjectStep(row.Start, subject, top))
		}
		return err
	})
	return out, err
}

// subjectStep combines both lists of a period. The list of denied checks may know more of them.
func subjectStep(start time.Time, subject string, top usage.TopSubjects) SubjectStep {
	checks, listed := top.Checks.Find(subject)
	step := SubjectStep{Start: start, Counts: checks.Counts, Listed: listed, Error: checks.Error}
	if denied, found := top.Denied.Find(subject); found && denied.Denied > step.Denied {
		step.Error = max(0, step.Error-(denied.Denied-step.Denied))
		step.Denied, step.ShadowDenied = denied.Denied, max(step.ShadowDenied, denied.ShadowDenied)
		step.Listed = true
	}
	return step
}
