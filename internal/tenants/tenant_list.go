package tenants

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// TenantFilter selects tenants; the zero value all of them.
type TenantFilter struct {
	Search string // text in the slug or the name, ignoring case; "" for any
	State  string // TenantActive or TenantSuspended; "": any
}

func (f *TenantFilter) validate() error {
	var fields []limit.FieldError
	checkText(&fields, "search", f.Search, 200)
	if f.State != "" && f.State != TenantActive && f.State != TenantSuspended {
		fields = append(fields, limit.FieldProblem("state", limit.OneOf("active, suspended")))
	}
	return invalidIf(fields)
}

// ListTenants lists tenants, newest first, and returns where the next page begins. For the
// operator only. Errors: ErrNotOperator, *InvalidError.
func (s *Store) ListTenants(ctx context.Context, a Actor, f TenantFilter, p Page) (out []Tenant, next string, err error) {
	if !a.operator {
		return nil, "", ErrNotOperator
	}
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Tenants(ctx, db.TenantsParams{After: after, Search: f.Search, State: f.State, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.Tenant) uuid.UUID { return r.ID })
		out = make([]Tenant, len(rows))
		for i, row := range rows {
			out[i] = tenantOf(row)
		}
		return nil
	})
	return out, next, err
}

// Served has the operator's settings for a tenant, as a subject of the platform tenant.
type Served struct {
	Tier            string // slug of the tenant's plan; "" for the default plan
	State           check.SubjectState
	Allowed, Denied int64 // checks of the tenant
}

// Served returns the operator's settings for tenants, and their checks since since, which is
// rounded down to the hour. For the operator only. Errors: ErrNotOperator.
func (s *Store) Served(ctx context.Context, a Actor, ids []uuid.UUID, since time.Time) (map[uuid.UUID]Served, error) {
	if !a.operator {
		return nil, ErrNotOperator
	}
	out := make(map[uuid.UUID]Served, len(ids))
	err := s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.TenantsServed(ctx, db.TenantsServedParams{Platform: PlatformSlug, Since: since.UTC().Truncate(time.Hour), Ids: ids})
		for _, row := range rows {
			state, err := check.ParseSubjectState(row.State)
			if err != nil {
				return err
			}
			out[row.ID] = Served{Tier: row.Tier, State: state, Allowed: row.Allowed, Denied: row.Denied}
		}
		return err
	})
	return out, err
}
