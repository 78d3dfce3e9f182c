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
	out = SubjectUsage{From: query.From, To: query.To}
	out.CompleteUntil, err = s.readLists(ctx, a, &query, func(row db.UsageSubjectsRow) error {
		top, err := decodeTop(row.Top)
		if err == nil {
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

// BusySubject is what the lists of the busiest subjects know of one of them. Its counts are never
// too large.
type BusySubject struct {
	Subject        string
	Checks, Denied int64 // in all days; Checks are allowed or denied
	MostChecks     int64 // on its busiest day
}

// BusySubjects returns the subjects in the lists of the busiest and of the most denied subjects of
// each day from from until to, which are rounded outward to days, in no order. Errors:
// ErrUnavailable, also for a query that takes too long; ErrTooManyReports.
func (s *Store) BusySubjects(ctx context.Context, a Actor, from, to time.Time) ([]BusySubject, error) {
	query := UsageQuery{Grain: usage.Day, From: from, To: to}
	query.fill(s.instant())
	var read readDays
	err := s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) (err error) {
		read, err = s.busyDays.read(ctx, tx, a.tenant, query.From, query.To)
		return err
	})
	if err != nil {
		return nil, err
	}
	var sums busySums
	err = s.inTurn(ctx, a.tenant, read.isLong(), func() error {
		days, err := s.busyDays.decode(a.tenant, read)
		for _, top := range days {
			sums.add(top)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return sums.list(), nil
}

// busySums adds up lists. A subject may be in both lists of a day, whose counts overlap, so each
// kind has its own sum.
type busySums struct {
	places map[string]int
	all    []busySum
}

type busySum struct {
	BusySubject
	inDenied int64 // sum of the lists of the most denied subjects
}

func (b *busySums) add(top usage.TopSubjects) {
	for i := range top.Checks {
		s := &top.Checks[i]
		sum := b.at(s.Subject)
		sum.Checks += s.Allowed + s.Denied
		sum.Denied += s.Denied
		sum.MostChecks = max(sum.MostChecks, s.Allowed+s.Denied)
	}
	for i := range top.Denied {
		s := &top.Denied[i]
		sum := b.at(s.Subject)
		sum.inDenied += s.Denied
		sum.MostChecks = max(sum.MostChecks, s.Denied)
	}
}

func (b *busySums) at(subject string) *busySum {
	if b.places == nil {
		b.places = map[string]int{}
	}
	i, known := b.places[subject]
	if !known {
		i = len(b.all)
		b.places[subject] = i
		b.all = append(b.all, busySum{BusySubject: BusySubject{Subject: subject}})
	}
	return &b.all[i]
}

func (b *busySums) list() []BusySubject {
	out := make([]BusySubject, len(b.all))
	for i := range b.all {
		out[i] = b.all[i].BusySubject
		out[i].Checks, out[i].Denied = max(out[i].Checks, b.all[i].inDenied), max(out[i].Denied, b.all[i].inDenied)
	}
	return out
}
