package tenants

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// BillingPrice maps a price or a product of a billing system to a plan, or to credits.
type BillingPrice struct {
	Price     string // the provider's id of the price or product
	Endpoint  uuid.UUID
	Plan      string        // "": it stands for credits
	Credits   *PriceCredits // nil: it stands for a plan
	Multiply  bool          // the plan's limits are multiplied by the quantity
	Priority  int           // of several mapped prices of a customer, the one with the highest priority is used
	CreatedAt time.Time
	UpdatedAt time.Time
	Version   int64

	id uuid.UUID
}

// PriceCredits is what a purchase of one piece grants.
type PriceCredits struct {
	Rule        string
	Units       int64
	ExpiresDays int // after the purchase; 0: the credits never expire
}

func (c *PriceCredits) equal(other *PriceCredits) bool {
	return c == other || c != nil && other != nil && *c == *other
}

const (
	maxPriceBytes    = 255
	maxPriority      = 1_000_000
	maxBillingPrices = 2000
	maxExpiresDays   = 3650
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
	c := p.Credits
	switch {
	case c == nil && p.Plan == "":
		add("plan", limit.NotListed("GET /v1/plans", "Use the slug of a plan %s, or send credits.", "must be the slug of a plan, unless the price stands for credits"))
	case c == nil:
		return fields
	case p.Plan != "":
		add("credits", limit.Wrong("Omit one of them.", "cannot be combined with a plan: a price stands for one of them"))
	case p.Multiply:
		add("multiply", limit.Wrong("Omit it.", "has no effect on credits, which are always granted for each piece"))
	case p.Priority != 0:
		add("priority", limit.Wrong("Omit it.", "has no effect on credits"))
	}
	if c == nil {
		return fields
	}
	if c.Units < 1 || c.Units > limit.MaxFixedLimit {
		add("credits.units", limit.MustBe("a whole number from 1 to %d", limit.MaxFixedLimit))
	}
	if c.ExpiresDays < 0 || c.ExpiresDays > maxExpiresDays {
		add("credits.expires_after_days", limit.MustBe("a whole number of days from 1 to %d", maxExpiresDays))
	}
	return fields
}

// PutBillingPrice maps a price to a plan or to credits, or replaces its mapping; created reports
// which. The nil endpoint means the endpoint of the existing mapping, or else the tenant's only
// endpoint. A mapping stays with its endpoint. Errors: *InvalidError (also for an unknown plan,
// rule or endpoint, or another endpoint than before), ErrPreconditionFailed.
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
		if !created && in.Endpoint != old.Endpoint { // its subscriptions would lose their plan
			return invalid("endpoint", limit.Wrong("Delete the mapping first, or omit the endpoint.",
				"must stay %s, the endpoint that has this price: a price has one mapping", old.Endpoint))
		}
		to, err := c.priceTarget(ctx, &in)
		if err != nil {
			return err
		}
		if !created && old.Endpoint == in.Endpoint && old.Plan == in.Plan && old.Credits.equal(in.Credits) && old.Multiply == in.Multiply && old.Priority == in.Priority {
			out = old
			return nil
		}
		version, err := c.nextAtEnd(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		out, err = c.writeBillingPrice(ctx, in, to, version)
		return err
	})
	return out, created && err == nil, err
}

// priceEndpoint finds the endpoint of a price.
func (c *change) priceEndpoint(ctx context.Context, in *BillingPrice) error {
	if in.Endpoint != uuid.Nil {
		endpoint, err := readBillingEndpoint(ctx, c.Queries, c.tenant, in.Endpoint)
		if errors.Is(err, ErrNotFound) {
			return invalid("endpoint", noSuchEndpoint)
		}
		if err == nil && !endpoint.HasPrices() {
			return invalid("endpoint", noPrices)
		}
		return err
	}
	rows, err := c.BillingEndpoints(ctx, db.BillingEndpointsParams{TenantID: c.tenant, Most: maxBillingEndpoints})
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r db.BillingEndpointsRow) bool { return r.Provider == GenericProvider })
	if len(rows) != 1 {
		return invalid("endpoint", limit.NotListed("GET /v1/billing/endpoints", "Use an id %s.", "must be the id of a billing endpoint of Stripe, as the tenant has not exactly one"))
	}
	in.Endpoint = rows[0].ID
	return nil
}

// HasPrices reports whether the events of the endpoint name prices. Those of the generic webhook
// name plans.
func (e *BillingEndpoint) HasPrices() bool { return e.Provider != GenericProvider }

var noPrices = limit.Wrong("Use the id of an endpoint of Stripe, or send the plan in the event.", "must be an endpoint of Stripe: events of the generic webhook name the plan themselves")

// priceTarget is what a price stands for: the id of a plan or of a rule.
type priceTarget struct{ plan, rule *uuid.UUID }

func (c *change) priceTarget(ctx context.Context, in *BillingPrice) (priceTarget, error) {
	if in.Credits == nil {
		plan, err := c.planNamed(ctx, in.Plan)
		return priceTarget{plan: &plan.ID}, err
	}
	rule, err := c.rule(ctx, in.Credits.Rule)
	if errors.Is(err, ErrNotFound) {
		return priceTarget{}, invalid("credits.rule", noSuchRule)
	}
	if err != nil {
		return priceTarget{}, err
	}
	return priceTarget{rule: &rule.ID}, invalidIf(rule.Rule.CheckCredits("credits.rule"))
}

// writeBillingPrice writes a mapping. DueBilling then wakes the events that wait for it.
func (c *change) writeBillingPrice(ctx context.Context, in BillingPrice, to priceTarget, version int64) (BillingPrice, error) {
	if in.id == uuid.Nil {
		in.id = newID()
	}
	p := db.UpsertBillingPriceParams{
		TenantID: c.tenant, Price: in.Price, ID: in.id, EndpointID: in.Endpoint, PlanID: to.plan, RuleID: to.rule, Multiply: in.Multiply,
		Priority: int32(in.Priority), CreatedAt: c.now, UpdatedAt: c.now, Version: version,
	}
	if g := in.Credits; g != nil {
		p.Units = &g.Units
		if days := int32(g.ExpiresDays); days > 0 {
			p.ExpiresDays = &days
		}
	}
	row, err := c.UpsertBillingPrice(ctx, p)
	if err != nil {
		return BillingPrice{}, err
	}
	err = c.MarkBillingPrices(ctx, db.MarkBillingPricesParams{TenantID: c.tenant, ID: in.Endpoint, Mark: version})
	return BillingPrice{
		Price: row.Price, Endpoint: row.EndpointID, Plan: in.Plan, Credits: in.Credits, Multiply: row.Multiply, Priority: int(row.Priority),
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
	p := BillingPrice{
		Price: row.Price, Endpoint: row.EndpointID, Plan: row.Plan, Multiply: row.Multiply, Priority: int(row.Priority),
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, id: row.ID,
	}
	if row.Units != nil {
		p.Credits = &PriceCredits{Rule: row.Rule, Units: *row.Units}
		if row.ExpiresDays != nil {
			p.Credits.ExpiresDays = int(*row.ExpiresDays)
		}
	}
	return p
}
