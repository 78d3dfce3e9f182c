package tenants

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// BillingPrice maps a price or a product of a billing system to a plan.
type BillingPrice struct {
	Price     string // the provider's id of the price or product
	Endpoint  uuid.UUID
	Plan      string
	Multiply  bool // the plan's limits are multiplied by the quantity
	Priority  int  // of several mapped prices of a customer, the one with the highest priority is used
	CreatedAt time.Time
	UpdatedAt time.Time
	Version   int64

	id uuid.UUID
}

const (
	maxPriceBytes    = 255
	maxPriority      = 1_000_000
	maxBillingPrices = 2000
)

func (p *BillingPrice) validate() (fields []limit.FieldError) {
	add := func(field string, p *limit.Problem) { fields = append(fields, limit.FieldProblem(field, p)) }
	if len(p.Price) < 1 || len(p.Price) > maxPriceBytes || strings.ContainsFunc(p.Price, func(r rune) bool { return r <= ' ' || r > '~' }) ||
		p.Price == "." || p.Price == ".." {
		add("id", limit.Wrong("Use the id that the billing system shows.", "must be 1 to %d visible ASCII characters: the id of a price or product of the billing system", maxPriceBytes))
	}
	if p.Priority < 0 || p.Priority > maxPriority {
		add("priority", limit.MustBe("a whole number from 0 to %d", maxPriority))
	}
	return fields
}

// PutBillingPrice maps a price to a plan, or replaces its mapping; created reports which. The nil
// endpoint means the endpoint of the existing mapping, or else the tenant's only endpoint. Errors:
// *InvalidError (also for an unknown plan or endpoint), ErrPreconditionFailed.
func (s *Store) PutBillingPrice(ctx context.Context, a Actor, in BillingPrice, m Match) (out BillingPrice, created bool, err error) {
	if err := invalidIf(in.validate()); err != nil {
		return BillingPrice{}, false, err
	}
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readBillingPrice(ctx, c.Queries, c.tenant, in.Price)
		switch {
		case errors.Is(err, ErrNotFound):
			if err := m.missing(); err != nil {
				return err
			}
			created = true
			count, err := c.CountBillingPrices(ctx, c.tenant)
			if err != nil {
				return err
			}
			if count >= maxBillingPrices {
				return invalid("id", limit.Wrong("Delete a price that is no longer needed.", "would be one price too many: a tenant may have %d", maxBillingPrices))
			}
		case err != nil:
			return err
		default:
			if err := m.check(old.Version); err != nil {
				return err
			}
			in.id = old.id
			if in.Endpoint == uuid.Nil {
				in.Endpoint = old.Endpoint
			}
		}
		if err := c.priceEndpoint(ctx, &in); err != nil {
			return err
		}
		if in.Plan == "" {
			return invalid("plan", limit.Wrong("Use the slug of a plan that GET /v1/plans lists.", "must be the slug of a plan"))
		}
		plan, err := c.planNamed(ctx, in.Plan)
		if err != nil {
			return err
		}
		if !created && old.Endpoint == in.Endpoint && old.Plan == in.Plan && old.Multiply == in.Multiply && old.Priority == in.Priority {
			out = old
			return nil
		}
		version, err := c.next(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		out, err = c.writeBillingPrice(ctx, in, plan.ID, version)
		return err
	})
	return out, created && err == nil, err
}

// priceEndpoint finds the endpoint of a price.
func (c *change) priceEndpoint(ctx context.Context, in *BillingPrice) error {
	if in.Endpoint != uuid.Nil {
		_, err := readBillingEndpoint(ctx, c.Queries, c.tenant, in.Endpoint)
		if errors.Is(err, ErrNotFound) {
			return invalid("endpoint", noSuchEndpoint)
		}
		return err
	}
	rows, err := c.BillingEndpoints(ctx, db.BillingEndpointsParams{TenantID: c.tenant, Most: 2})
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return invalid("endpoint", limit.Wrong("Use an id that GET /v1/billing/endpoints lists.", "must be the id of a billing endpoint, as the tenant has not exactly one"))
	}
	in.Endpoint = rows[0].ID
	return nil
}

// writeBillingPrice writes a mapping, and wakes events that wait for it.
func (c *change) writeBillingPrice(ctx context.Context, in BillingPrice, plan uuid.UUID, version int64) (BillingPrice, error) {
	if in.id == uuid.Nil {
		in.id = newID()
	}
	row, err := c.UpsertBillingPrice(ctx, db.UpsertBillingPriceParams{
		TenantID: c.tenant, Price: in.Price, ID: in.id, EndpointID: in.Endpoint, PlanID: plan, Multiply: in.Multiply,
		Priority: int32(in.Priority), CreatedAt: c.now, UpdatedAt: c.now, Version: version,
	})
	if err != nil {
		return BillingPrice{}, err
	}
	_, err = c.WakeBillingPrice(ctx, db.WakeBillingPriceParams{TenantID: c.tenant, EndpointID: in.Endpoint, Now: &c.now})
	return BillingPrice{
		Price: row.Price, Endpoint: row.EndpointID, Plan: in.Plan, Multiply: row.Multiply, Priority: int(row.Priority),
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, id: row.ID,
	}, err
}

// DeleteBillingPrice deletes a mapping. Subjects keep their plans until the next event. Errors:
// ErrNotFound, ErrPreconditionFailed.
func (s *Store) DeleteBillingPrice(ctx context.Context, a Actor, price string, m Match) error {
	return s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readBillingPrice(ctx, c.Queries, c.tenant, price)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		if _, err := c.next(ctx, parts{itself: true}); err != nil {
			return err
		}
		return c.DeleteBillingPrice(ctx, db.DeleteBillingPriceParams{TenantID: c.tenant, Price: price})
	})
}

// BillingPriceByID returns a mapping by the provider's id of the price, or ErrNotFound.
func (s *Store) BillingPriceByID(ctx context.Context, a Actor, price string) (out BillingPrice, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readBillingPrice(ctx, q, a.tenant, price)
		return err
	})
	return out, err
}

// BillingPrices lists mappings, newest first, and returns where the next page begins.
func (s *Store) BillingPrices(ctx context.Context, a Actor, p Page) (out []BillingPrice, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.BillingPrices(ctx, db.BillingPricesParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.BillingPricesRow) uuid.UUID { return r.ID })
		out = make([]BillingPrice, len(rows))
		for i, row := range rows {
			out[i] = billingPriceOf(row)
		}
		return nil
	})
	return out, next, err
}

func readBillingPrice(ctx context.Context, q *db.Queries, tenant uuid.UUID, price string) (BillingPrice, error) {
	if !plain(price) {
		return BillingPrice{}, ErrNotFound
	}
	row, err := q.BillingPriceByName(ctx, db.BillingPriceByNameParams{TenantID: tenant, Price: price})
	if err != nil {
		return BillingPrice{}, translate(err)
	}
	return billingPriceOf(db.BillingPricesRow(row)), nil
}

func billingPriceOf(row db.BillingPricesRow) BillingPrice {
	return BillingPrice{
		Price: row.Price, Endpoint: row.EndpointID, Plan: row.Plan, Multiply: row.Multiply, Priority: int(row.Priority),
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, id: row.ID,
	}
}
