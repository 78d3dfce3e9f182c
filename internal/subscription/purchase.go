package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/stripe/stripe-go/v85"
)

// Purchase is a paid invoice or checkout, or a part of what is known of it.
type Purchase struct {
	ID       string // of the invoice or the checkout; "" of a refund
	Payment  string // "" if the event does not name it
	Subject  string // the reference of a checkout; "": none
	Metadata map[string]string
	Lines    []Line
	Partial  bool // the event does not have all lines
	Link     bool // the event says only which payment it has
}

// Invoice reports whether it is an invoice, and not a checkout.
func (p *Purchase) Invoice() bool { return !strings.HasPrefix(p.ID, checkoutPrefix) }

// long reports whether an id of the purchase is longer than any that is stored. It may be nil.
func (p *Purchase) long() bool { return p != nil && (len(p.ID) > maxID || len(p.Payment) > maxID) }

// Line is a price that was paid.
type Line struct {
	ID, Price, Product string
	Quantity           int64
}

// checkoutPrefix begins the id of a checkout. Other purchases are invoices.
const checkoutPrefix = "cs_"

// maxLines is the maximum number of lines of a purchase that are used.
const maxLines = 250

// stripeLine is a line of an invoice or a checkout, in the versions of the API since 2018.
type stripeLine struct {
	ID       string      `json:"id"`
	Amount   *int64      `json:"amount"` // of an invoice
	Quantity *int64      `json:"quantity"`
	Price    *stripePlan `json:"price"` // up to 2025-02-24
	Plan     *stripePlan `json:"plan"`  // in versions before prices
	Pricing  struct {
		PriceDetails struct {
			Price   reference `json:"price"`
			Product reference `json:"product"`
		} `json:"price_details"`
	} `json:"pricing"`
	Proration bool `json:"proration"` // up to 2025-02-24
	Parent    struct {
		Item struct {
			Proration bool `json:"proration"`
		} `json:"invoice_item_details"`
		Subscription struct {
			Proration bool `json:"proration"`
		} `json:"subscription_item_details"`
	} `json:"parent"`
}

// line returns what was paid, or false for a proration, a credit, and a line without an amount or a
// quantity, such as that of a trial, which sell nothing. The amount of an invoice's line is that
// before discounts.
func (l *stripeLine) line() (Line, bool) {
	price := cmp.Or(l.Price, l.Plan, &stripePlan{})
	out := Line{
		ID: l.ID, Price: cmp.Or(string(l.Pricing.PriceDetails.Price), price.ID),
		Product: cmp.Or(string(l.Pricing.PriceDetails.Product), string(price.Product)), Quantity: 1,
	}
	if l.Quantity != nil {
		out.Quantity = *l.Quantity
	}
	prorated := l.Proration || l.Parent.Item.Proration || l.Parent.Subscription.Proration
	return out, out.ID != "" && out.Price != "" && out.Quantity > 0 && !prorated && (l.Amount == nil || *l.Amount > 0)
}

// stripePayment is the payment of an invoice since 2025-03-31.
type stripePayment struct {
	Invoice reference `json:"invoice"`
	Payment struct {
		Intent reference `json:"payment_intent"`
		Charge reference `json:"charge"`
	} `json:"payment"`
}

func (p *stripePayment) id() string { return string(cmp.Or(p.Payment.Intent, p.Payment.Charge)) }

// invoicePurchase returns what an invoice is about.
func invoicePurchase(raw json.RawMessage) *Purchase {
	var in struct {
		ID       string            `json:"id"`
		Intent   reference         `json:"payment_intent"` // up to 2025-02-24
		Charge   reference         `json:"charge"`         // up to 2025-02-24
		Metadata map[string]string `json:"metadata"`
		Payments struct {
			Data []stripePayment `json:"data"`
		} `json:"payments"` // if the endpoint's version includes them
		Lines struct {
			Data []stripeLine `json:"data"`
			More bool         `json:"has_more"`
		} `json:"lines"`
	}
	if json.Unmarshal(raw, &in) != nil || in.ID == "" {
		return nil
	}
	p := &Purchase{ID: in.ID, Payment: string(cmp.Or(in.Intent, in.Charge)), Metadata: shortMetadata(in.Metadata), Partial: in.Lines.More}
	if p.Payment == "" && len(in.Payments.Data) > 0 {
		p.Payment = in.Payments.Data[0].id()
	}
	for i := range in.Lines.Data {
		if line, sold := in.Lines.Data[i].line(); sold && len(p.Lines) < maxLines {
			p.Lines = append(p.Lines, line)
		}
	}
	return p
}

// checkoutPurchase returns the purchase of a paid checkout in mode payment. A checkout in mode
// subscription, and one that creates an invoice, has an event of its invoice. The event of a
// checkout never has its lines.
func checkoutPurchase(raw json.RawMessage) *Purchase {
	var in struct {
		ID       string            `json:"id"`
		Mode     string            `json:"mode"`
		Status   string            `json:"payment_status"`
		Intent   reference         `json:"payment_intent"`
		Invoice  reference         `json:"invoice"`
		Subject  string            `json:"client_reference_id"`
		Metadata map[string]string `json:"metadata"`
		Creation struct {
			Enabled bool `json:"enabled"`
		} `json:"invoice_creation"`
	}
	paid := func() bool { return in.Status == "paid" || in.Status == "no_payment_required" }
	if json.Unmarshal(raw, &in) != nil || in.ID == "" || in.Mode != "payment" || in.Invoice != "" || in.Creation.Enabled || !paid() {
		return nil
	}
	return &Purchase{ID: in.ID, Payment: string(in.Intent), Subject: shortText(in.Subject), Metadata: shortMetadata(in.Metadata), Partial: true}
}

// payment parses the event that names the payment of an invoice.
func (e *Event) payment(raw json.RawMessage) {
	var in stripePayment
	if err := json.Unmarshal(raw, &in); err != nil {
		e.unknownForm("the payment of the invoice", err)
		return
	}
	if in.Invoice == "" || in.id() == "" {
		e.Why = "the payment has no invoice, or no charge that could be refunded"
		return
	}
	e.Kind, e.Purchase = Purchased, &Purchase{ID: string(in.Invoice), Payment: in.id(), Link: true}
}

// refund parses a refunded charge.
func (e *Event) refund(raw json.RawMessage) {
	var in struct {
		ID       string    `json:"id"`
		Intent   reference `json:"payment_intent"`
		Customer reference `json:"customer"`
		Refunded bool      `json:"refunded"`
	}
	if err := json.Unmarshal(raw, &in); err != nil || in.ID == "" {
		e.unreadable("the charge is not of a known form")
		return
	}
	e.Customer = string(in.Customer)
	if !in.Refunded {
		e.Why = "only a part of the payment was refunded: the credits stay; revoke them if they should not"
		return
	}
	e.Kind, e.Purchase = Refunded, &Purchase{Payment: cmp.Or(string(in.Intent), in.ID)}
}

// Lines fetches what was paid with an invoice or a checkout. It returns ErrGone if that does not
// exist.
func (c *Client) Lines(ctx context.Context, purchase string) (lines []Line, err error) {
	add := func(l *stripeLine) {
		if line, sold := l.line(); sold && len(lines) < maxLines {
			lines = append(lines, line)
		}
	}
	if strings.HasPrefix(purchase, checkoutPrefix) {
		params := &stripe.CheckoutSessionListLineItemsParams{Session: &purchase}
		params.Limit = stripe.Int64(100)
		for l, err := range c.api.V1CheckoutSessions.ListLineItems(ctx, params).All(ctx) {
			if err != nil {
				return nil, apiError("list the lines of checkout "+purchase, err)
			}
			line := stripeLine{ID: l.ID, Quantity: &l.Quantity}
			if l.Price != nil {
				line.Price = &stripePlan{ID: l.Price.ID}
				if l.Price.Product != nil {
					line.Price.Product = reference(l.Price.Product.ID)
				}
			}
			add(&line)
		}
		return lines, nil
	}
	params := &stripe.InvoiceListLinesParams{Invoice: &purchase}
	params.Limit = stripe.Int64(100)
	for l, err := range c.api.V1Invoices.ListLines(ctx, params).All(ctx) {
		if err != nil {
			return nil, apiError("list the lines of invoice "+purchase, err)
		}
		line := stripeLine{ID: l.ID, Amount: &l.Amount, Quantity: &l.Quantity}
		if l.Pricing != nil && l.Pricing.PriceDetails != nil {
			line.Pricing.PriceDetails.Product = reference(l.Pricing.PriceDetails.Product)
			if l.Pricing.PriceDetails.Price != nil {
				line.Pricing.PriceDetails.Price = reference(l.Pricing.PriceDetails.Price.ID)
			}
		}
		if p := l.Parent; p != nil {
			line.Proration = p.InvoiceItemDetails != nil && p.InvoiceItemDetails.Proration ||
				p.SubscriptionItemDetails != nil && p.SubscriptionItemDetails.Proration
		}
		add(&line)
	}
	return lines, nil
}
