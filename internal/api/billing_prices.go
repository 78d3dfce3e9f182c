package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// BillingPrice maps a price to a plan or to credits, as the API shows it.
type BillingPrice struct {
	ID        string        `json:"id" doc:"Id of a price or product at the provider"`
	Endpoint  string        `json:"endpoint" format:"uuid" doc:"Id of the billing endpoint"`
	Plan      *string       `json:"plan" doc:"Slug of the plan; null: the price stands for credits"`
	Credits   *PriceCredits `json:"credits,omitempty" doc:"What a purchase grants, if the price stands for credits"`
	Multiply  bool          `json:"multiply" doc:"The limits of the plan are multiplied by the quantity of the subscription"`
	Priority  int64         `json:"priority" doc:"If a customer pays several mapped prices, the highest priority decides; with equal ones, the first item of the youngest subscription"`
	CreatedAt time.Time     `json:"created_at"`
	UpdatedAt time.Time     `json:"updated_at"`
	Version   int64         `json:"version"`
}

// PriceCredits is what a purchase of one piece grants.
type PriceCredits struct {
	Rule        string `json:"rule" doc:"Slug"`
	Units       int64  `json:"units" doc:"For each piece; the quantity multiplies them"`
	ExpiresDays *int64 `json:"expires_after_days" doc:"Days after the purchase; null: the credits never expire"`
}

// PriceCreditsPut is PriceCredits in a request.
type PriceCreditsPut struct {
	Rule        string          `json:"rule" doc:"Slug of a rule that counts by subject, with a fixed window, sliding_window_counter or sliding_window_buckets, without a penalty and strict"`
	Units       int64           `json:"units" minimum:"1" maximum:"1000000000000000" doc:"For each piece; the quantity multiplies them"`
	ExpiresDays Optional[int64] `json:"expires_after_days,omitempty" minimum:"1" maximum:"3650" doc:"Days after the purchase; default: the credits never expire"`
}

func (c *PriceCreditsPut) credits() *tenants.PriceCredits {
	return &tenants.PriceCredits{Rule: c.Rule, Units: c.Units, ExpiresDays: int(c.ExpiresDays.or(0))}
}

// BillingPricePut is the body of PUT /v1/billing/prices/{id}.
type BillingPricePut struct {
	ID       Optional[string]          `json:"id,omitempty" doc:"If sent, must equal the path"`
	Endpoint Optional[string]          `json:"endpoint,omitempty" doc:"Id of the billing endpoint; default: the one that the price has, or else the tenant's only one"`
	Plan     Optional[string]          `json:"plan,omitempty" doc:"Slug of a plan; required unless the price stands for credits"`
	Credits  Optional[PriceCreditsPut] `json:"credits,omitempty" doc:"What each purchase grants, instead of a plan"`
	Multiply Optional[bool]            `json:"multiply,omitempty" doc:"Multiply the limits of the plan by the quantity of the subscription; default false"`
	Priority Optional[int64]           `json:"priority,omitempty" minimum:"0" maximum:"1000000" doc:"Default 0"`
}

// BillingPricePath names a price.
type BillingPricePath struct {
	Price string `path:"id" doc:"Id of a price or product at the provider"`
}

func billingPriceAnswer(p tenants.BillingPrice) BillingPrice {
	out := BillingPrice{
		ID: p.Price, Endpoint: p.Endpoint.String(), Plan: optionalText(p.Plan), Multiply: p.Multiply, Priority: int64(p.Priority),
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, Version: p.Version,
	}
	if c := p.Credits; c != nil {
		out.Credits = &PriceCredits{Rule: c.Rule, Units: c.Units}
		if days := int64(c.ExpiresDays); days > 0 {
			out.Credits.ExpiresDays = &days
		}
	}
	return out
}

func (a *admin) listBillingPrices(ctx context.Context, in *struct{ PageParams }) (*page[BillingPrice], error) {
	return listPage(ctx, a, "billing-prices", in.PageParams, billingPriceAnswer, func(p tenants.Page) ([]tenants.BillingPrice, string, error) {
		return a.store.BillingPrices(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) getBillingPrice(ctx context.Context, in *BillingPricePath) (*object[BillingPrice], error) {
	p, err := a.store.BillingPriceByID(ctx, actorFrom(ctx), in.Price)
	if err != nil {
		return nil, err
	}
	return found(billingPriceAnswer(p), p.Version), nil
}

func (a *admin) putBillingPrice(ctx context.Context, in *struct {
	BillingPricePath
	Body BillingPricePut
}) (*object[BillingPrice], error) {
	b := &in.Body
	errs := mismatch(b.ID, "/id", in.Price)
	p := tenants.BillingPrice{Price: in.Price, Plan: b.Plan.or(""), Multiply: b.Multiply.or(false), Priority: int(b.Priority.or(0))}
	if b.Credits.given() {
		p.Credits = b.Credits.Value.credits()
	}
	if b.Endpoint.given() {
		id, err := uuid.Parse(b.Endpoint.Value)
		if err != nil {
			errs = append(errs, wrongField("/endpoint", limit.Wrong("Use an id that GET /v1/billing/endpoints lists.", "names no billing endpoint of this tenant")))
		}
		p.Endpoint = id
	}
	if err := invalidIfAny(errs); err != nil {
		return nil, err
	}
	put, created, err := a.store.PutBillingPrice(ctx, actorFrom(ctx), p, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/id", "id")
	}
	a.billing.Wake()
	return stored(billingPriceAnswer(put), put.Version, created, "/v1/billing/prices/"+in.Price), nil
}

func (a *admin) deleteBillingPrice(ctx context.Context, in *BillingPricePath) error {
	return a.store.DeleteBillingPrice(ctx, actorFrom(ctx), in.Price, conditionsFrom(ctx).match)
}
