package billing_test

import (
	"maps"
	"strconv"
	"strings"

	"github.com/stripe/stripe-go/v85"
)

// The objects of the fake have all fields that the OpenAPI document requires.

const fakeCreated = 1_690_000_000

func fakeSubscription(id, customer string, status stripe.SubscriptionStatus, metadata map[string]string, prices []string) obj {
	if metadata == nil {
		metadata = map[string]string{}
	}
	items := []obj{}
	for i, price := range prices {
		items = append(items, obj{
			"id": "si_" + id + strconv.Itoa(i), "object": "subscription_item", "subscription": id, "quantity": 1, "price": fakePrice(price, "recurring"),
			"created": fakeCreated, "current_period_start": fakeCreated, "current_period_end": fakeCreated + 30*86_400, "discounts": []obj{}, "metadata": obj{},
		})
	}
	return obj{
		"id": id, "object": "subscription", "customer": customer, "status": status, "metadata": metadata,
		"items":   listOf("/v1/subscription_items?subscription="+id, items, len(items)),
		"created": fakeCreated, "start_date": fakeCreated, "billing_cycle_anchor": fakeCreated, "cancel_at_period_end": false, "livemode": false,
		"collection_method": "charge_automatically", "currency": "usd", "discounts": []obj{}, "billing_schedules": []obj{},
		"automatic_tax": obj{"enabled": false, "liability": nil}, "billing_mode": obj{"type": "flexible"},
		"invoice_settings": obj{"issuer": obj{"type": "self"}},
	}
}

// expanded returns a subscription with its customer's id, or with the customer.
func expanded(subscription obj, customer bool) obj {
	if !customer {
		return subscription
	}
	out := maps.Clone(subscription)
	out["customer"] = fakeCustomer(out["customer"])
	return out
}

func fakeCustomer(id any) obj {
	return obj{"id": id, "object": "customer", "created": fakeCreated, "livemode": false, "metadata": obj{}}
}

// firstItems is how many items a subscription has itself.
const firstItems = 10

func withFirstItems(subscription obj) obj {
	items := subscription["items"].(obj)
	out := maps.Clone(subscription)
	out["items"] = listOf(items["url"].(string), items["data"].([]obj), firstItems)
	return out
}

func fakePrice(id, typ string) obj {
	return obj{
		"id": id, "object": "price", "product": strings.Replace(id, "price", "prod", 1), "type": typ, "active": true, "billing_scheme": "per_unit",
		"created": fakeCreated, "currency": "usd", "livemode": false, "metadata": obj{},
	}
}

// checkoutLine returns a line of a checkout.
func checkoutLine(id, price string, quantity int) obj {
	return obj{
		"id": id, "object": "item", "quantity": quantity, "price": fakePrice(price, "one_time"), "currency": "usd", "description": "credits",
		"amount_discount": 0, "amount_subtotal": 1000 * quantity, "amount_tax": 0, "amount_total": 1000 * quantity,
	}
}

// invoiceLine returns a line of an invoice.
func invoiceLine(id, price string) obj {
	return obj{
		"id": id, "object": "line_item", "quantity": 1, "amount": 1000, "subtotal": 1000, "currency": "usd", "discountable": true, "discounts": []obj{},
		"livemode": false, "metadata": obj{}, "period": obj{"start": fakeCreated, "end": fakeCreated},
		"pricing": obj{"type": "price_details", "unit_amount_decimal": "1000", "price_details": obj{"price": price, "product": strings.Replace(price, "price", "prod", 1)}},
	}
}

func listOf(url string, all []obj, limit int) obj {
	return obj{"object": "list", "url": url, "has_more": len(all) > limit, "data": all[:min(limit, len(all))]}
}
