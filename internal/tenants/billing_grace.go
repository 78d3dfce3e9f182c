package tenants

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// GracePeriod is the time for which a subject keeps the plan of a subscription after a payment
// failed.
type GracePeriod struct {
	Subject, Subscription string
	EndsAt                time.Time
	FallbackPlan          string // slug of the plan after it; "": the tenant's default plan
}

// GracePeriods returns the grace periods that have not ended, those that end first, at most most of
// them. Errors: ErrUnavailable.
func (s *Store) GracePeriods(ctx context.Context, a Actor, most int) (out []GracePeriod, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.GracePeriods(ctx, db.GracePeriodsParams{TenantID: a.tenant, Most: int32(most)})
		for _, row := range rows {
			out = append(out, gracePeriodOf(row))
		}
		return err
	})
	return out, err
}

// GracePeriodsOf returns those of one subject. Errors: ErrUnavailable.
func (s *Store) GracePeriodsOf(ctx context.Context, a Actor, subject string) (out []GracePeriod, err error) {
	const most = 10 // a subject rarely has more than one subscription
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.GracePeriodsOfSubject(ctx, db.GracePeriodsOfSubjectParams{TenantID: a.tenant, Subject: subject, Most: most})
		for _, row := range rows {
			out = append(out, gracePeriodOf(db.GracePeriodsRow(row)))
		}
		return err
	})
	return out, err
}

func gracePeriodOf(row db.GracePeriodsRow) GracePeriod {
	return GracePeriod{Subject: row.Subject, Subscription: row.Subscription, EndsAt: row.EndsAt.UTC(), FallbackPlan: row.FallbackPlan}
}
