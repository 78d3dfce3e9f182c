package tenants

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// PlanBySlug returns a plan with the limits of its newest version, or ErrNotFound.
func (s *Store) PlanBySlug(ctx context.Context, a Actor, slug string) (out Plan, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := planRow(ctx, q, a.tenant, slug)
		if err != nil {
			return err
		}
		plans, err := withNewest(ctx, q, a.tenant, []db.Plan{row}, nil)
		if err == nil {
			out = plans[0]
		}
		return err
	})
	return out, err
}

// Plans lists plans with the limits of their newest versions, newest plan first, and returns where
// the next page begins.
func (s *Store) Plans(ctx context.Context, a Actor, p Page) (out []Plan, next string, err error) {
	return s.plans(ctx, a, nil, p)
}

// PlansFor is Plans with only the limits for some rules.
func (s *Store) PlansFor(ctx context.Context, a Actor, rules []string, p Page) (out []Plan, next string, err error) {
	return s.plans(ctx, a, append([]string{}, rules...), p)
}

// plans lists plans with their limits for some rules; nil: for all.
func (s *Store) plans(ctx context.Context, a Actor, rules []string, p Page) (out []Plan, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Plans(ctx, db.PlansParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.Plan) uuid.UUID { return r.ID })
		out, err = withNewest(ctx, q, a.tenant, rows, rules)
		return err
	})
	return out, next, err
}

// PlanHead is a plan without its limits, of which a tenant can have many.
type PlanHead struct {
	Slug, Name string
	Default    bool
}

// PlanHeads lists plans without their limits, newest first, and returns where the next page begins.
func (s *Store) PlanHeads(ctx context.Context, a Actor, p Page) (out []PlanHead, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.PlanHeads(ctx, db.PlanHeadsParams{TenantID: a.tenant, After: after, Most: p.most()})
		rows, next = cut(p, rows, func(r db.PlanHeadsRow) uuid.UUID { return r.ID })
		out = make([]PlanHead, len(rows))
		for i, r := range rows {
			out[i] = PlanHead{r.Slug, r.Name, r.IsDefault}
		}
		return err
	})
	return out, next, err
}

// PlanNames returns the names of the newest plans by slug, without those that have none.
func (s *Store) PlanNames(ctx context.Context, a Actor) (map[string]string, error) {
	plans, _, err := s.PlanHeads(ctx, a, Page{Limit: maxPage})
	out := map[string]string{}
	for _, p := range plans {
		if p.Name != "" {
			out[p.Slug] = p.Name
		}
	}
	return out, err
}
